//! Holds and waiting, for the library and the Tower middleware.
//!
//! Applications do not need this crate: `sluicegate` and `sluicegate-tower` have what they need of it. It may change with
//! every release.
//!
//! - [`HoldGuard`]: one hold of a key in a store. Dropping it settles the hold: at once in a store in this process,
//!   otherwise by a task, because a drop cannot wait. A hold that cannot be settled expires.
//! - [`TakeWait`], [`HoldWait`]: when a request that waits sends its next operation, within its [`WaitOptions`].
//! - [`return_units`]: what a cancelled request has taken and not used.

mod guard;
mod hold_wait;
mod id;
mod stored_hold;
mod take_wait;
mod unused_units;
mod wait_options;

pub use guard::HoldGuard;
pub use hold_wait::HoldWait;
pub use id::HoldId;
pub use take_wait::TakeWait;
pub use unused_units::return_units;
pub use wait_options::{Jitter, WaitOptions};
