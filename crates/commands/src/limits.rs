//! Bounds of the arguments.

use std::time::Duration;

/// Upper bound on a time span in an option, in microseconds: 2^50, 35 years. It is the default of `MAXWAIT`
/// in `SG.RESERVE`.
pub const MAX_SPAN: u64 = 1 << 50;

/// Default `TIMEOUT` of `SG.WAIT`.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Upper bound on the takes of one `SG.MTAKE`.
pub const MAX_MANY: usize = 256;
