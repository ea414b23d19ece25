//! State in this process, and its clock.
//!
//! - [`MemoryStore`]: a bounded table of keys, sixteen bytes each under a simple policy. Operations on a key are
//!   atomic, and denials take no lock. It can be saved to a file and loaded again.
//! - [`ClockedStore`]: the table with a clock, as a [`Store`](sluicegate_core::Store).
//! - [`SystemClock`]: the time of this process, which never steps.
//!
//! ```
//! use sluicegate_core::{PreparedPolicy, Store};
//! use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock, WhenFull};
//!
//! let table = MemoryStore::bounded(64 << 20, WhenFull::Deny);
//! let store = ClockedStore::new(table, SystemClock::new());
//! let policy: PreparedPolicy = "gcra:30/1m:burst=16".parse()?;
//! let answer = store.take(b"user7", &policy, 1).now().expect("it answers now")?;
//! assert_eq!(answer.remaining, 15);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The table reads no clock: its caller passes the time, and may hold policies with their numbers
//! ([`NumberedPolicy`]).
//!
//! From the outside in: `store` (the clock, decisions on one key and on several, what happens at the bound), `shard` (segments behind a
//! directory, and how they split), `segment` (slots in buckets, versions, moves), `slot` (sixteen bytes, and the state in
//! them). Beside them: `overflow` (entries that do not fit in
//! slots), `policy_table` (numbers of policies), `page_arena` (memory of buckets), `budget` (bytes and keys).
//! State files: `snapshot` (the format) and `restore` (a table made from a file).

mod budget;
mod clock;
mod heap;
mod overflow;
mod page_arena;
mod policy_table;
mod restore;
mod segment;
mod shard;
mod slot;
mod snapshot;
mod store;
mod sync;

pub use budget::WhenFull;
pub use clock::SystemClock;
pub use heap::{limit_free_memory, release_end_of_heap, release_free_memory};
pub use policy_table::NumberedPolicy;
pub use snapshot::SnapshotError;
pub use store::{ClockedStore, MemoryStore, TABLE_FULL_RETRY};
