//! The store: keys to shards, and its public operations.

use std::{
    borrow::Cow,
    fmt,
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use ahash::RandomState;
use sluicegate_core::{Policy, PreparedPolicy, StoreId, TableUsage, Timestamp};

use crate::{
    NumberedPolicy, WhenFull,
    bits::narrow,
    budget::{Budget, MIN_BYTES},
    overflow::OverflowTable,
    page_arena::PageArena,
    policy_table::PolicyTable,
    segment::{HashedKey, SEGMENT_BYTES},
    shard::{SHARDS, Shard, Shards},
    slot::MAX_SINCE,
};

/// Requests of a batch whose slots are prefetched while another is decided.
const PREFETCH_AHEAD: usize = 8;

/// State in this process, bounded. Shared by reference between threads; keys are any bytes.
///
/// A key is stored as its keyed 64-bit hash and its state: sixteen bytes under a policy of one limit of the gcra family,
/// or of one fixed window of at most 1023 units or aligned to the clock, regardless of the length of the key.
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
pub struct MemoryStore {
    id: StoreId,
    pub(crate) hasher: RandomState,
    /// The keys of the hasher.
    pub(crate) keys: [u64; 4],
    pub(crate) shards: Shards<OverflowTable>,
    pub(crate) policies: PolicyTable,
    arena: PageArena,
    pub(crate) budget: Budget,
    pub(crate) when_full: WhenFull,
    /// The base of TATs in slots: the time of the first request.
    base: AtomicU64,
    /// Whether all keys share one clock.
    pub(crate) one_clock: bool,
    pub(crate) seeds: AtomicU64,
}

/// No base yet: a time so far away that no request is within the range of its TATs.
const NO_BASE: u64 = 1 << 62;

impl MemoryStore {
    /// Default bound of a store: 1 GiB.
    pub const DEFAULT_MAX_BYTES: usize = 1 << 30;

    /// An empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(Self::DEFAULT_MAX_BYTES, WhenFull::default())
    }

    /// An empty store that takes up to `max_bytes` (at least 2 MiB).
    #[must_use]
    pub fn bounded(max_bytes: usize, when_full: WhenFull) -> Self {
        let fresh = RandomState::new();
        Self::with_hash_keys(
            std::array::from_fn(|index| fresh.hash_one(index)),
            max_bytes,
            when_full,
        )
    }

    /// As [`bounded`](Self::bounded), with these keys of the hash instead of random ones.
    ///
    /// For simulations: equal keys give equal tables. An attacker who knows the keys can choose keys that collide.
    #[must_use]
    pub fn with_hash_keys(keys: [u64; 4], max_bytes: usize, when_full: WhenFull) -> Self {
        let hasher = RandomState::with_seeds(keys[0], keys[1], keys[2], keys[3]);
        let seed = hasher.hash_one("seed");
        let budget = Budget::new(max_bytes.max(MIN_BYTES));
        budget.resize(0, SHARDS * SEGMENT_BYTES);
        let arena = PageArena::new(budget.usage().max_bytes);
        Self {
            id: StoreId::new(),
            shards: Shards::new(&arena, narrow(seed), OverflowTable::default),
            arena,
            hasher,
            keys,
            policies: PolicyTable::default(),
            budget,
            when_full,
            base: AtomicU64::new(NO_BASE),
            one_clock: true,
            seeds: AtomicU64::new(seed),
        }
    }

    /// The same store, but it keeps entries that have recovered.
    ///
    /// For a virtual clock with a time for each key, where the time of one request does not apply to other keys.
    /// Decisions are the same.
    #[must_use]
    pub fn without_forgetting(mut self) -> Self {
        self.one_clock = false;
        self
    }

    /// Prepares a policy for use with this store.
    #[must_use]
    pub fn prepare(&self, policy: &Policy, now: Timestamp) -> NumberedPolicy {
        self.policies.prepare(policy, self.one_clock.then_some(now), &self.budget)
    }

    /// The policy as [`prepare`](Self::prepare) returns it, attached to `policy` by the first store that uses it.
    #[inline(always)]
    pub fn numbered<'a>(
        &self,
        policy: &'a PreparedPolicy,
        now: Timestamp,
    ) -> Cow<'a, NumberedPolicy> {
        let prepare = || self.prepare(policy.policy(), now);
        policy.attached(&self.id, prepare).map_or_else(|| Cow::Owned(prepare()), Cow::Borrowed)
    }

    /// The policy as this store has attached it; `None` if another store has.
    #[inline(always)]
    pub(crate) fn attached<'a>(
        &self,
        policy: &'a PreparedPolicy,
        now: impl FnOnce() -> Timestamp,
    ) -> Option<&'a NumberedPolicy> {
        policy.attached(&self.id, || self.prepare(policy.policy(), now()))
    }

    /// Prefetches the slot of a key, for a request that follows soon.
    pub fn prefetch(&self, key: &[u8]) {
        let _ = self.look_up(key);
    }

    /// The hash of a key with its buckets, which are prefetched.
    #[inline(always)]
    pub(crate) fn look_up(&self, key: &[u8]) -> HashedKey<'_> {
        self.look_up_hash(self.hash(key))
    }

    /// A hash with its buckets, which are prefetched: the sooner their lines are requested, the more of the request before
    /// overlaps with their load (ADR 20).
    #[inline(always)]
    pub(crate) fn look_up_hash(&self, hash: u64) -> HashedKey<'_> {
        let buckets = self.shards.bucket_view(hash).key_buckets(hash);
        buckets.prefetch();
        (hash, buckets)
    }

    /// Calls `each` with the hash of each item's key, in order, while the slots of later ones are prefetched.
    #[inline(always)]
    pub(crate) fn for_each_hash<'a, T>(
        &self,
        items: &'a [T],
        key: impl Fn(&'a T) -> &'a [u8],
        mut each: impl FnMut(&'a T, HashedKey<'_>),
    ) {
        // The hashes of the current item and those after it, as a ring.
        let mut hashes = [0; PREFETCH_AHEAD];
        for (item, hash) in items.iter().zip(&mut hashes) {
            *hash = self.look_up(key(item)).0;
        }
        for (turn, item) in items.iter().enumerate() {
            let hash = hashes[turn % PREFETCH_AHEAD];
            if let Some(item) = items.get(turn + PREFETCH_AHEAD) {
                hashes[turn % PREFETCH_AHEAD] = self.look_up(key(item)).0;
            }
            each(item, self.look_up_hash(hash));
        }
    }

    /// Number of stored keys, including recovered ones that have not been reclaimed yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.usage().keys
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Counters of the store.
    #[must_use]
    pub fn usage(&self) -> TableUsage {
        self.budget.usage()
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        // `write` includes the length; `hash_one` of a slice would include it twice.
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    pub(crate) fn shard(&self, hash: u64) -> &Shard<OverflowTable> {
        self.shards.shard_for(hash)
    }

    /// Microseconds since the base, if TATs from then on fit in slots.
    #[inline(always)]
    pub(crate) fn since_base(&self, now: Timestamp) -> Option<u64> {
        let since = now.as_micros().wrapping_sub(self.base.load(Ordering::Relaxed));
        // A time before the base wraps, and is greater than the bound.
        (since < MAX_SINCE).then_some(since)
    }

    /// As [`since_base`](Self::since_base), for a request that may be the first.
    pub(crate) fn since_set_base(&self, now: Timestamp) -> Option<u64> {
        let (now_micros, relaxed) = (now.as_micros(), Ordering::Relaxed);
        // A read first: a write takes the line from the other processors.
        if self.base.load(relaxed) == NO_BASE {
            let _ = self.base.compare_exchange(NO_BASE, now_micros, relaxed, relaxed);
        }
        self.since_base(now)
    }

    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::saturating_from_micros(self.base.load(Ordering::Relaxed))
    }
}

/// Usage and settings only: the keys of the hash are secret, and the table is large.
impl fmt::Debug for MemoryStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("MemoryStore")
            .field("usage", &self.usage())
            .field("when_full", &self.when_full)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.arena.close();
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}
