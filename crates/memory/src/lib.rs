//! State in this process, and the clock that goes with it.
//!
//! - [`MemoryStore`]: keys and their entries, atomic per key, forgetting what has recovered.
//! - [`SystemClock`]: the time of this process, which never steps.
//!
//! The store reads no clock: whoever calls it says what time it is.

mod clock;
mod store;

pub use clock::SystemClock;
pub use store::MemoryStore;
