//! Bounds of the arguments.

use std::time::Duration;

use sluicegate_core::MAX_DRAIN;

/// Upper bound on a time span in an option, in microseconds: 2^50, 35 years. No request waits longer. It is the default
/// of `MAXWAIT` in `SG.RESERVE`.
pub const MAX_SPAN: u64 = MAX_DRAIN;

/// Default `TIMEOUT` of `SG.WAIT`.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);

/// Upper bound on the takes of one `SG.MTAKE`.
pub const MAX_INDEPENDENT_TAKES: usize = 256;
