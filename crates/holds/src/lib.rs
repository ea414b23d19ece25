//! Guards of holds, for the library and the Tower middleware.
//!
//! A [`HoldGuard`] belongs to one hold of a key in a store. Dropping it settles the hold: at once in a store in this
//! process, otherwise by a task, because a drop cannot wait. A hold that cannot be settled expires.

mod guard;
mod id;
mod stored_hold;

pub use guard::HoldGuard;
pub use id::HoldId;
