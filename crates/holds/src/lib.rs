//! Holds and waiting, for the library and the Tower middleware.
//!
//! Applications do not need this crate: `sluicegate` and `sluicegate-tower` have what they need of it. It may change with
//! every release.
//!
//! - [`HoldGuard`]: one hold of a key in a store. Dropping it settles the hold: at once in a store in this process,
//!   otherwise by a task, because a drop cannot wait. A hold that cannot be settled expires.
//! - [`PendingRequest`]: a request that waits, within its [`WaitOptions`].
//! - [`apply_cancellable`]: an operation for a request that may be dropped.

mod guard;
mod id;
mod pending;
mod stored_hold;
mod wait_options;

pub use guard::HoldGuard;
pub use id::HoldId;
pub use pending::apply_cancellable;
pub use pending::{Guards, PendingRequest, Progress};
pub use wait_options::{Jitter, WaitOptions};
