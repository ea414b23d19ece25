//! A sharded map of entries.
//!
//! Invariants:
//! - what happens to one key happens under the lock of its shard, so a decision is atomic;
//! - an entry that has recovered is not kept: it goes when it is touched, or when an insertion into
//!   its shard passes by. Each insertion looks at a few slots, so nothing ever stops to sweep.

use ahash::RandomState;
use hashbrown::HashTable;
use parking_lot::Mutex;
use sluicegate_core::{Decision, Entry, Operation, Policy, ReserveError, Timestamp, apply};

const SHARD_BITS: u32 = 6;
const SHARDS: usize = 1 << SHARD_BITS;
/// Slots looked at per insertion. More than one, so that sweeping outruns growing.
const SWEPT: usize = 4;

/// State in this process. Shared by reference between threads; keys are any bytes.
///
/// ```
/// use sluicegate_core::{Clock, Operation, Policy};
/// use sluicegate_memory::{MemoryStore, SystemClock};
///
/// let (store, clock) = (MemoryStore::new(), SystemClock::new());
/// let policy: Policy = "fixed-window:1/1h".parse()?;
///
/// assert!(store.apply(b"user7", &policy, clock.now(), Operation::Take(1))?.allowed());
/// assert!(!store.apply(b"user7", &policy, clock.now(), Operation::Take(1))?.allowed());
/// assert_eq!(store.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    forgetting: bool,
}

#[derive(Debug, Default)]
struct Shard {
    table: HashTable<Item>,
    /// The slot at which the next sweep begins.
    cursor: usize,
}

#[derive(Debug)]
struct Item {
    key: Box<[u8]>,
    entry: Option<Entry>,
}

impl MemoryStore {
    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, hasher: RandomState::new(), forgetting: true }
    }

    /// The same store, but it keeps entries that have recovered.
    ///
    /// For a virtual clock under which each key has a time of its own: there, the time of one
    /// request says nothing about the other keys. What is decided is the same.
    #[must_use]
    pub fn without_forgetting(mut self) -> Self {
        self.forgetting = false;
        self
    }

    /// Applies `operation` to `key` under `policy` at `now`, atomically.
    ///
    /// # Errors
    /// [`ReserveError`] for [`Operation::Reserve`] under a policy that cannot tell when a later
    /// request would pass.
    pub fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        match shard.table.find_entry(hash, |item| *item.key == *key) {
            Ok(mut slot) => {
                let entry = &mut slot.get_mut().entry;
                let decision = apply(policy, entry, now, operation);
                if entry.as_ref().is_none_or(|entry| self.forgets(entry, now)) {
                    slot.remove();
                }
                decision
            }
            Err(_) => {
                let mut entry = None;
                let decision = apply(policy, &mut entry, now, operation);
                if entry.is_some() {
                    self.insert(&mut shard, hash, Item { key: key.into(), entry }, now);
                }
                decision
            }
        }
    }

    /// What `read` makes of the entry of `key`, or `None` if nothing is stored.
    ///
    /// The entry may have recovered: its [`lifetime`](Entry::lifetime) tells. `read` holds a lock,
    /// and must not call the store.
    pub fn with_entry<R>(&self, key: &[u8], read: impl FnOnce(&Entry) -> R) -> Option<R> {
        let hash = self.hasher.hash_one(key);
        let shard = self.shard(hash).lock();
        let item = shard.table.find(hash, |item| *item.key == *key)?;
        item.entry.as_ref().map(read)
    }

    /// Makes `key` as if never used. Whether there was state that had not recovered at `now`.
    pub fn reset(&self, key: &[u8], now: Timestamp) -> bool {
        let hash = self.hasher.hash_one(key);
        let mut shard = self.shard(hash).lock();
        let Ok(slot) = shard.table.find_entry(hash, |item| *item.key == *key) else {
            return false;
        };
        let (item, _) = slot.remove();
        item.entry.is_some_and(|entry| !entry.lifetime(now).is_zero())
    }

    /// How many keys are stored, those among them that have recovered and were not passed by yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().table.len()).sum()
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard> {
        // The table takes the highest and the lowest bits; these are in between.
        let index = usize::try_from((hash >> 32) & (SHARDS as u64 - 1)).unwrap_or_default();
        &self.shards[index]
    }

    fn forgets(&self, entry: &Entry, now: Timestamp) -> bool {
        self.forgetting && entry.lifetime(now).is_zero()
    }

    /// Adds a key that is not there.
    fn insert(&self, shard: &mut Shard, hash: u64, item: Item, now: Timestamp) {
        if self.forgetting {
            self.sweep(shard, now);
        }
        let rehash = |item: &Item| self.hasher.hash_one(&*item.key);
        shard.table.insert_unique(hash, item, rehash);
    }

    /// Drops what has recovered in the next few slots.
    fn sweep(&self, shard: &mut Shard, now: Timestamp) {
        let slots = shard.table.num_buckets();
        for _ in 0..SWEPT.min(slots) {
            shard.cursor = if shard.cursor + 1 < slots { shard.cursor + 1 } else { 0 };
            if let Ok(slot) = shard.table.get_bucket_entry(shard.cursor)
                && slot.get().entry.as_ref().is_none_or(|entry| self.forgets(entry, now))
            {
                slot.remove();
            }
        }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::HashMap,
        sync::atomic::{AtomicU32, Ordering},
    };

    use proptest::prelude::*;

    use super::*;

    fn policy(text: &str) -> Policy {
        text.parse().unwrap()
    }

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros).unwrap()
    }

    fn take(store: &MemoryStore, key: &[u8], policy: &Policy, now: u64) -> bool {
        store.apply(key, policy, at(now), Operation::Take(1)).unwrap().allowed()
    }

    #[test]
    fn keys_are_any_bytes_and_apart() {
        let store = MemoryStore::new();
        let once = policy("fixed-window:1/1h");
        let long = [0xff; 65_536];
        for key in [&b""[..], b"\0", b"\0\0", b"a", &long] {
            assert!(take(&store, key, &once, 0));
            assert!(!take(&store, key, &once, 0));
        }
        assert_eq!(store.len(), 5);
        assert_eq!(
            store.with_entry(b"a", |entry| entry.policy().to_string()).unwrap(),
            "fixed-window:1/1h"
        );
        assert_eq!(store.with_entry(b"b", |_| ()), None);
    }

    #[test]
    fn a_reset_tells_whether_there_was_state() {
        let store = MemoryStore::new();
        let once = policy("fixed-window:1/1s");
        assert!(!store.reset(b"a", at(0)));
        assert!(take(&store, b"a", &once, 0));
        assert!(store.reset(b"a", at(999_999)));
        assert!(store.is_empty());
        assert!(take(&store, b"a", &once, 0));
        assert!(!store.reset(b"a", at(1_000_000)), "it had recovered");
        assert!(store.is_empty());
    }

    #[test]
    fn what_has_recovered_goes_when_it_is_touched() {
        let store = MemoryStore::new();
        let once = policy("fixed-window:1/1s");
        assert!(take(&store, b"a", &once, 0));
        assert!(store.apply(b"a", &once, at(999_999), Operation::Peek(0)).unwrap().allowed());
        assert_eq!(store.len(), 1);
        assert!(store.apply(b"a", &once, at(1_000_000), Operation::Peek(1)).unwrap().allowed());
        assert_eq!(store.len(), 0);
    }

    #[test]
    fn nothing_is_kept_of_what_stores_nothing() {
        let store = MemoryStore::new();
        let once = policy("fixed-window:1/1s");
        for operation in
            [Operation::Peek(1), Operation::Take(0), Operation::Refund(3), Operation::Reset]
        {
            assert!(store.apply(b"a", &once, at(5), operation).unwrap().allowed());
        }
        let later = Operation::Reserve { cost: 1, max_wait: std::time::Duration::ZERO };
        assert!(store.apply(b"a", &once, at(5), later).is_err());
        assert!(store.is_empty());
    }

    #[test]
    fn insertions_sweep_what_has_recovered() {
        let store = MemoryStore::new();
        let once = policy("fixed-window:1/1s");
        for key in 0..20_000_u32 {
            assert!(take(&store, &key.to_le_bytes(), &once, 0));
        }
        assert_eq!(store.len(), 20_000);
        // A stream of new keys, each seen once a second: the old ones are gone before long.
        for key in 20_000..60_000_u32 {
            assert!(take(&store, &key.to_le_bytes(), &once, u64::from(key) * 1_000));
        }
        assert!(store.len() < 8_000, "{} keys are left", store.len());
    }

    #[test]
    fn without_forgetting_a_key_of_another_time_is_kept() {
        let store = MemoryStore::new().without_forgetting();
        let once = policy("fixed-window:1/1s");
        assert!(take(&store, b"early", &once, 0));
        for key in 0..1_000_u32 {
            assert!(take(&store, &key.to_le_bytes(), &once, 1 << 50));
        }
        assert!(!take(&store, b"early", &once, 5));
        assert_eq!(store.len(), 1_001);
    }

    #[test]
    fn many_threads_on_one_key_never_admit_more_than_the_burst() {
        let store = MemoryStore::new();
        let burst = policy("gcra:1000/1h");
        let allowed = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let passed = take(&store, b"hot", &burst, 7);
                        allowed.fetch_add(u32::from(passed), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(allowed.load(Ordering::Relaxed), 1000);
    }

    proptest! {
        /// Whatever is forgotten and swept, the answers are those of a plain map that keeps all.
        #[test]
        fn it_answers_as_a_plain_map(steps in prop::collection::vec((0..9_u8, 0..4_000_000_u64, 0..4_u32, 0..5_u8), 1..200)) {
            let policies = [policy("gcra:3/1s"), policy("sliding-log:2/1s:count=all"), policy("fixed-window:3/2s")];
            let (store, mut plain, mut now) = (MemoryStore::new(), HashMap::<u8, Option<Entry>>::new(), 0);
            for (key, gap, cost, kind) in steps {
                now += gap / 8;
                let policy = &policies[usize::from(key) % 3];
                let operation = match kind {
                    0 | 1 => Operation::Take(cost),
                    2 => Operation::Peek(cost),
                    3 => Operation::Charge(cost),
                    _ => Operation::Refund(cost),
                };
                let expected = apply(policy, plain.entry(key).or_default(), at(now), operation);
                prop_assert_eq!(store.apply(&[key], policy, at(now), operation), expected);
            }
        }
    }
}
