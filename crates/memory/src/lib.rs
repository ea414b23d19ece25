//! State in this process, and the clock that goes with it.
//!
//! - [`MemoryStore`]: a bounded table of keys, sixteen bytes each under a simple policy; atomic per
//!   key, without a lock for who is denied; saved to a file and loaded again.
//! - [`Rule`]: a policy as the store knows it, for who asks often.
//! - [`SystemClock`]: the time of this process, which never steps.
//!
//! The store reads no clock: whoever calls it says what time it is.
//!
//! From the outside in: `store` (which slot, which lock), `shard` (segments behind a directory, and
//! how they split), `segment` (buckets, versions, moves), `slot` (sixteen bytes), `form` (what these say
//! of a state); beside them `room` (growing, and being full), `large` (entries that do not fit), `rules`
//! (numbers of policies), `budget` (bytes and keys); `snapshot` (the file), `survey` and `restore` (a table made from it), `dropped`
//! (keys that did not fit).

mod budget;
mod clock;
mod decide;
mod dropped;
mod form;
mod ground;
mod heap;
mod large;
mod restore;
mod room;
mod rules;
mod segment;
mod shard;
mod slot;
mod snapshot;
mod store;
mod survey;
mod sync;
mod ticks;
mod together;

pub use budget::{Usage, WhenFull};
pub use clock::SystemClock;
pub use heap::release_free_memory;
pub use rules::Rule;
pub use snapshot::SnapshotError;
pub use store::{MemoryStore, Request};
pub use together::Take;
