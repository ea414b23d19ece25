//! The store: keys to shards, and its public operations; and the store with a clock.

use std::{
    borrow::Cow,
    fmt::{self, Debug},
    hash::{BuildHasher, Hasher},
    ops::ControlFlow,
    ptr,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use ahash::RandomState;
use sluicegate_core::{
    Answer, Applied, Clock, Decision, Entry, EntryOperation, KeyedOperation, Operation,
    OperationError, Outcome, Policy, PreparedPolicy, ReadEntry, Request, Retry, Store, StoreError,
    StoreId, StoreStatus, TableUsage, Timestamp, apply, apply_all, apply_in_place, as_micros,
    reached,
};

use crate::{
    NumberedPolicy, SystemClock, WhenFull,
    budget::{Budget, MIN_BYTES},
    overflow::{self, Left, OverflowTable},
    page_arena::PageArena,
    policy_table::PolicyTable,
    segment::{HashedKey, KeyBuckets, LockedSegment, SEGMENT_BYTES, SLOTS, SlotIndex, SlotRef},
    shard::{SHARDS, Shard, Shards},
    slot::{MAX_SINCE, OVERFLOW, Slot, SlotCodec, Tat, WindowCodec, narrow},
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
    /// Operations on keys with more than [`MANY_HOLDS`].
    long_operations: AtomicU64,
}

/// Number of open holds of a key from which on an operation on it may take longer than others: it may read all of them for
/// each limit.
const MANY_HOLDS: usize = 256;

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
            long_operations: AtomicU64::new(0),
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
        self.policies.prepare(policy, self.one_clock.then_some(now), &self.budget, |number| {
            #[cfg(debug_assertions)]
            self.check_recovered(number, now);
            let _ = number;
        })
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

    /// Checks the counted keys and bytes against those of a walk through the table, if that is small.
    #[cfg(debug_assertions)]
    fn check(&self) {
        const CHECKED: usize = 16 << 20;
        if self.usage().bytes > CHECKED || std::thread::panicking() {
            return;
        }
        let (mut keys, mut bytes) = (0, self.policies.bytes());
        self.shards.for_each_segment(|locked| {
            let overflow = locked.slots().filter(|(_, slot)| slot.policy_number() == OVERFLOW);
            assert_eq!(overflow.count(), locked.data().len(), "an entry without a slot");
            keys += locked.slots().count();
            bytes += SEGMENT_BYTES + locked.data().all_bytes();
        });
        assert_eq!(keys, self.usage().keys, "the counted keys are those of the slots");
        assert_eq!(bytes, self.usage().bytes, "the counted bytes are those in use");
    }

    /// Checks that every state that is stored under a policy number has recovered, of a table that has not grown. It takes
    /// no lock, because it is called under that of the policies.
    #[cfg(debug_assertions)]
    fn check_recovered(&self, number: u64, now: Timestamp) {
        let since = as_micros(now.since(self.base()));
        let mut is_stored = false;
        for shard in 0..SHARDS {
            let buckets =
                self.shards.by_index(shard).segment(self.shards.first_hash(shard)).buckets();
            for slot in buckets.iter().flat_map(|it| it.slots()) {
                if slot.policy_number() == number && slot.second != 0 && !slot.is_marked() {
                    assert!(slot.tat().has_come(since), "a number is used again too early");
                    is_stored = true;
                }
            }
        }
        reached!(PolicyNumberUsedAgain if is_stored);
    }

    /// Checks a decision of the fast path by the general function, on the entry of the slot before it.
    #[cfg(debug_assertions)]
    fn check_fast_path(
        &self,
        before: Option<Slot>,
        policy: &NumberedPolicy,
        now: Timestamp,
        cost: u32,
        decision: &Decision,
    ) {
        let mut entry = before.and_then(|slot| self.simple_entry(slot));
        assert!(
            entry.as_ref().is_none_or(|it| it.policy().ptr_eq(policy.policy())),
            "other number"
        );
        let general = apply(policy.policy(), &mut entry, now, Operation::Take(cost));
        assert_eq!(general.as_ref(), Ok(decision), "a fast path decides differently");
    }

    /// Prefetches the slot of a key, for a request that follows soon.
    pub fn prefetch(&self, key: &[u8]) {
        let _ = self.look_up(key);
    }

    /// The hash of a key with its buckets, which are prefetched.
    #[inline(always)]
    fn look_up(&self, key: &[u8]) -> HashedKey<'_> {
        self.look_up_hash(self.hash(key))
    }

    /// A hash with its buckets, which are prefetched: the sooner their lines are requested, the more of the request before
    /// overlaps with their load (ADR 20).
    #[inline(always)]
    fn look_up_hash(&self, hash: u64) -> HashedKey<'_> {
        let buckets = self.shards.bucket_view(hash).key_buckets(hash);
        buckets.prefetch();
        (hash, buckets)
    }

    /// Calls `each` with the hash of each item's key, in order, while the slots of later ones are prefetched, until it breaks.
    #[inline(always)]
    pub(crate) fn for_each_hash<'a, T>(
        &self,
        items: &'a [T],
        key: impl Fn(&'a T) -> &'a [u8],
        mut each: impl FnMut(&'a T, HashedKey<'_>) -> ControlFlow<()>,
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
            if each(item, self.look_up_hash(hash)).is_break() {
                return;
            }
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

    /// Number of operations so far that may have taken longer than others, because their keys had more than 256 open
    /// holds. A thread that applies many operations in a row sees from it when others should go first.
    #[must_use]
    #[inline]
    pub fn long_operations(&self) -> u64 {
        self.long_operations.load(Ordering::Relaxed)
    }

    fn note_operation(&self, entry: Option<&Entry>) {
        if entry.is_some_and(|it| it.open_holds() > MANY_HOLDS) {
            self.long_operations.fetch_add(1, Ordering::Relaxed);
        }
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
        #[cfg(debug_assertions)]
        self.check();
        self.arena.close();
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

// Deciding one request: in the slot of its key by a compare-and-swap, or under the lock of the segment.

impl MemoryStore {
    /// Applies `operation` to `key` under `policy` at `now`, atomically. Looks the policy up first:
    /// callers that use it again should hold a [`NumberedPolicy`].
    ///
    /// # Errors
    /// [`OperationError`] for [`Operation::Reserve`] under a policy without reservations, for all operations that take
    /// or give back units under a policy with `concurrency` limits (hold them), and for invalid operations on holds.
    /// Nothing is changed.
    ///
    /// ```
    /// use sluicegate_core::{Clock, Operation};
    /// use sluicegate_memory::{MemoryStore, SystemClock};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let policy = "concurrency:1/30s".parse()?;
    /// let hold = |id| Operation::Hold { id, cost: 1, ttl: None };
    /// assert!(store.apply(b"user7", &policy, clock.now(), hold(b"a"))?.allowed());
    /// assert!(!store.apply(b"user7", &policy, clock.now(), hold(b"b"))?.allowed());
    /// let settle = Operation::Settle { id: b"a", used: None };
    /// assert!(store.apply(b"user7", &policy, clock.now(), settle)?.allowed());
    /// assert!(store.apply(b"user7", &policy, clock.now(), hold(b"b"))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        self.apply_numbered(key, &self.prepare(policy, now), now, operation)
    }

    /// [`MemoryStore::apply`] under a policy that is looked up already.
    ///
    /// # Errors
    /// As [`MemoryStore::apply`].
    #[inline(always)]
    pub fn apply_numbered(
        &self,
        key: &[u8],
        policy: &NumberedPolicy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        let key = self.look_up(key);
        self.apply_hashed::<true, _>(key, policy, now, operation)
    }

    /// [`MemoryStore::apply_numbered`] at the time of a clock, which is read while the slot of the key is loaded.
    #[inline(always)]
    pub(crate) fn apply_by<E: From<OperationError>>(
        &self,
        key: &[u8],
        policy: &NumberedPolicy,
        clock: &impl Clock,
        operation: Operation,
    ) -> Result<Decision, E> {
        // In this order, because a processor may finish all instructions before it reads its counter, and begin no later
        // ones until then (ADR 20). What precedes the reading overlaps with the end of the request before, and the load
        // of a prefetched slot with the reading.
        let key = self.look_up(key);
        self.apply_hashed::<true, E>(key, policy, clock.now(), operation)
    }

    /// [`apply_hashed`](Self::apply_hashed) under a policy to which another store has attached its data.
    #[cold]
    pub(crate) fn apply_unattached(
        &self,
        hash: u64,
        policy: &PreparedPolicy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        let policy = self.prepare(policy.policy(), now);
        self.apply_hashed::<true, _>(self.look_up_hash(hash), &policy, now, operation)
    }

    /// The fast path: a take under a policy whose states fit in slots, on a key whose state is in one. A denial writes
    /// nothing; an allowed take is one compare-and-swap and a write. For `GUESS`, see
    /// [`KeyBuckets::peek`].
    #[inline(always)]
    pub(crate) fn apply_hashed<const GUESS: bool, E: From<OperationError>>(
        &self,
        (hash, buckets): HashedKey<'_>,
        policy: &NumberedPolicy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, E> {
        if let Operation::Take(cost @ 1..) = operation
            && let Some((number, codec)) = policy.numbered()
            && let Some(since) = self.since_base(now)
        {
            let gcra = match codec {
                SlotCodec::Tat(gcra) => gcra,
                SlotCodec::WindowCodec(windows) => {
                    let times = (now, since);
                    if let Some(decision) = self.take_in_window::<GUESS>(
                        hash,
                        buckets,
                        policy,
                        (number, windows),
                        times,
                        cost,
                    ) {
                        return Ok(decision);
                    }
                    return Ok(self.apply_slow(hash, policy, now, operation)?);
                }
            };
            while let Some(seen) = buckets.peek::<GUESS>(hash, number)
                && let Some(take) = gcra.try_take(seen.slot().tat().debt(since, gcra.scale()), cost)
            {
                if !take.allowed {
                    if seen.is_whole() {
                        #[cfg(debug_assertions)]
                        {
                            let decision = gcra.decision(&take);
                            self.check_fast_path(Some(seen.slot()), policy, now, cost, &decision);
                        }
                        return Ok(gcra.decision(&take));
                    }
                    seen.wait_unmarked();
                    continue;
                }
                let tat = Tat::after(since, take.after, gcra.scale());
                if seen.replace(seen.slot().with_tat(tat)) {
                    policy.note_written(now);
                    #[cfg(debug_assertions)]
                    {
                        let decision = gcra.decision(&take);
                        self.check_fast_path(Some(seen.slot()), policy, now, cost, &decision);
                    }
                    return Ok(gcra.decision(&take));
                }
            }
        }
        Ok(self.apply_slow(hash, policy, now, operation)?)
    }

    /// The fast path in a fixed window.
    fn take_in_window<const GUESS: bool>(
        &self,
        hash: u64,
        buckets: KeyBuckets<'_>,
        policy: &NumberedPolicy,
        (number, windows): (u64, &WindowCodec),
        (now, since): (Timestamp, u64),
        cost: u32,
    ) -> Option<Decision> {
        loop {
            let seen = buckets.peek::<GUESS>(hash, number)?;
            let Some(open) = windows.open(Some(seen.slot().tat()), now, since) else {
                if seen.wait_unmarked() {
                    continue;
                }
                return None;
            };
            let take = windows.try_take(open, cost);
            if !open.counts(&take) {
                if seen.is_whole() {
                    #[cfg(debug_assertions)]
                    {
                        let decision = windows.decision(open, &take, since);
                        self.check_fast_path(Some(seen.slot()), policy, now, cost, &decision);
                    }
                    return Some(windows.decision(open, &take, since));
                }
                seen.wait_unmarked();
                continue;
            }
            if seen.replace(seen.slot().with_tat(windows.encode(open.after(&take))?)) {
                policy.note_written(now);
                #[cfg(debug_assertions)]
                {
                    let decision = windows.decision(open, &take, since);
                    self.check_fast_path(Some(seen.slot()), policy, now, cost, &decision);
                }
                return Some(windows.decision(open, &take, since));
            }
        }
    }

    /// The path for everything else: most often, a new key.
    // A function of its own, so that the fast path needs few registers.
    #[inline(never)]
    fn apply_slow(
        &self,
        hash: u64,
        policy: &NumberedPolicy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        if let Operation::Take(cost @ 1..) = operation
            && let Some(decision) = self.put_in_slot(hash, policy, now, cost)
        {
            return Ok(decision);
        }
        if operation.id().is_some() {
            let _ = self.since_set_base(now);
        }
        self.apply_locked(hash, policy, now, operation)
    }

    /// A take on a new key, if its state fits in a slot and there is space.
    fn put_in_slot(
        &self,
        hash: u64,
        policy: &NumberedPolicy,
        now: Timestamp,
        cost: u32,
    ) -> Option<Decision> {
        let (number, codec) = policy.numbered()?;
        let since = self.since_set_base(now)?;
        let mut locked = self.shard(hash).lock(hash);
        if locked.find(hash).is_some() {
            return None;
        }
        let (decision, state) = match codec {
            SlotCodec::Tat(gcra) => {
                let take = gcra.try_take(0, cost)?;
                let after = take.allowed.then_some(take.after);
                let state = after.map(|after| Tat::new(since, after, gcra.scale()));
                (gcra.decision(&take), state)
            }
            SlotCodec::WindowCodec(windows) => {
                let open = windows.open(None, now, since)?;
                let take = windows.try_take(open, cost);
                let state = open.counts(&take).then(|| windows.encode(open.after(&take)));
                (windows.decision(open, &take, since), state)
            }
        };
        if let Some(state) = state {
            if !self.insert(&mut locked, hash, Slot::simple(hash, number, state?), now) {
                return None;
            }
            policy.note_written(now);
            #[cfg(debug_assertions)]
            locked.check_buckets(hash);
        }
        #[cfg(debug_assertions)]
        self.check_fast_path(None, policy, now, cost, &decision);
        Some(decision)
    }

    /// The general path: any operation under any policy, as an [`Entry`] under the lock of the segment.
    fn apply_locked(
        &self,
        hash: u64,
        policy: &NumberedPolicy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        let shard = self.shard(hash);
        let mut locked = shard.lock(hash);
        loop {
            let found = self.find_charged(&mut locked, hash, now);
            let slot = found.map(|(_, seen)| seen.slot());
            if operation.only_reads()
                && let Some(slot) = slot
                && slot.policy_number() != OVERFLOW
            {
                return apply(policy.policy(), &mut self.simple_entry(slot), now, operation);
            }
            let forgets = |entry: &Entry| self.one_clock && entry.is_over(now);
            // An overflow entry that stays one changes in place. With holds it does, unless the last one ends.
            if let Some((at, seen)) = found
                && seen.slot().policy_number() == OVERFLOW
                && let (index, data) = (seen.slot().index(), locked.data_mut())
                && let Some((entry, before)) = data.entry_mut(index, policy.policy())
                && (operation.only_reads() || self.budget.fits(MAX_GROWTH + before))
                && (policy.numbered().is_none()
                    || entry.as_ref().is_some_and(|it| keeps_holds(operation, it)))
            {
                self.note_operation(entry.as_ref());
                let decision = apply_in_place(policy.policy(), entry, now, operation);
                // Most often, units are in use for some time.
                if decision.as_ref().is_ok_and(|it| it.reset_after.is_zero()) {
                    entry.take_if(|it| if it.is_idle() { !self.one_clock } else { forgets(it) });
                }
                match data.note_changed(index, before, policy.policy(), &self.budget) {
                    Left::InUse => {}
                    Left::Idle => self.keep_idle(&mut locked, hash, index),
                    Left::Nothing => {
                        locked.clear(at);
                        self.budget.count_keys(1, 0);
                    }
                }
                return decision;
            }
            let index = found.map(|(index, _)| index);
            let request = (hash, policy, now, operation);
            if let Some(decision) = self.replace_entry(&mut locked, (index, slot), request) {
                return decision;
            }
            // A split may have moved the key's range to another segment.
            drop(locked);
            locked = shard.lock(hash);
        }
    }

    /// Takes the entry out of its place, and puts it where it belongs once the operation is applied. `None`: there was no space for
    /// it, and now there may be.
    // A function of its own, so that changes in place need few registers.
    #[inline(never)]
    fn replace_entry(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        (index, slot): (Option<SlotIndex>, Option<Slot>),
        (hash, policy, now, operation): (u64, &NumberedPolicy, Timestamp, Operation<'_>),
    ) -> Option<Result<Decision, OperationError>> {
        let forgets = |entry: &Entry| self.one_clock && entry.is_over(now);
        // A change for which there may be no space is made on a copy, which replaces the entry if it fits.
        let on_copy = !operation.only_reads() && !self.has_room(locked.data(), slot, policy);
        reached!(ChangeIsMadeOnCopy if on_copy && slot.is_some());
        // Claimed until it is written again, so that no other request decides on it until then.
        let slot = index.map(|index| locked.claim(index));
        let mut entry = slot.and_then(|slot| self.entry_of(locked, slot, on_copy));
        let before = entry.as_ref().filter(|_| on_copy).map(|it| it.policy().clone());
        self.note_operation(entry.as_ref());
        let decision = apply(policy.policy(), &mut entry, now, operation);
        let mut entry = entry.filter(|entry| !forgets(entry));
        if on_copy {
            entry = entry.map(|it| self.under_before(it, before.as_ref(), policy, now));
            let fits = |locked: &LockedSegment<'_, OverflowTable>| {
                let growth = self.growth(locked.data(), slot, entry.as_ref(), policy, now);
                growth == 0 || self.budget.fits(growth)
            };
            // Each sweep that finds something is paid for by the insertions before.
            while !fits(locked) && self.sweep(locked, now) > 0 {}
            if !fits(locked) {
                if let (Some(index), Some(slot)) = (index, slot) {
                    reached!(ChangeHasNoSpace);
                    locked.put(index, slot);
                }
                return Some(decision.map(|it| self.reject(operation, it)));
            }
            slot.map(|slot| self.take_entry(locked, slot));
        }
        let Some(entry) = entry else {
            if let Some(index) = index {
                locked.clear(index);
                self.budget.count_keys(1, 0);
            }
            return Some(decision);
        };
        let slot = self.slot_of(locked, (hash, slot), entry, policy, now);
        let Some(index) = index else {
            if self.insert(locked, hash, slot, now) {
                return Some(decision);
            }
            self.take_entry(locked, slot);
            if !self.make_space(self.shard(hash), locked, hash, now) {
                return Some(decision.map(|it| self.reject(operation, it)));
            }
            return None;
        };
        locked.put(index, slot);
        #[cfg(debug_assertions)]
        locked.check_buckets(hash);
        Some(decision)
    }

    /// Keeps the idle entry of a key, which mostly holds again soon, in place of that of another key. A key with an idle
    /// entry has recovered.
    fn keep_idle(&self, locked: &mut LockedSegment<'_, OverflowTable>, hash: u64, index: u64) {
        if let Some((hash, index)) = locked.data_mut().keep_idle(hash, index)
            && let Some((at, seen)) = locked.find(hash)
            && seen.slot().policy_number() == OVERFLOW
            && seen.slot().index() == index
        {
            debug_assert!(locked.data().get(index).is_none(), "an entry in use is dropped");
            locked.clear(at);
            locked.data_mut().take(index, &self.budget);
            self.budget.count_keys(1, 0);
        }
    }
}

/// Whether the entry has holds, and still has after an operation on one.
fn keeps_holds(operation: Operation, entry: &Entry) -> bool {
    // Holds that have expired may be the last ones: that is rare, and the entry then stays where it is.
    operation.id().is_some()
        && entry.open_holds() > usize::from(matches!(operation, Operation::Settle { .. }))
}

// Entries of keys, in slots or in the table beside them.

impl MemoryStore {
    /// Calls `read` on the entry of `key`; `None` if nothing is stored.
    ///
    /// The entry may have recovered: check its [`lifetime`](Entry::lifetime). `read` is called under a lock, and must
    /// not call the store.
    pub fn with_entry<R>(&self, key: &[u8], read: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.with_entry_of(self.hash(key), read)
    }

    /// As [`with_entry`](Self::with_entry), for the key with this hash.
    pub(crate) fn with_entry_of<R>(&self, hash: u64, read: impl FnOnce(&Entry) -> R) -> Option<R> {
        let locked = self.shard(hash).lock(hash);
        let slot = locked.find(hash)?.1.slot();
        match slot.policy_number() {
            OVERFLOW => locked.data().get(slot.index()).map(read),
            _ => self.simple_entry(slot).as_ref().map(read),
        }
    }

    /// Calls `read` on the entry of `key`, after its expired holds are charged; `None` if nothing is stored, or it has
    /// recovered at `now`.
    pub(crate) fn with_live_entry<R>(
        &self,
        key: &[u8],
        now: Timestamp,
        read: impl FnOnce(&Entry) -> R,
    ) -> Option<R> {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let (_, seen) = self.find_charged(&mut locked, hash, now)?;
        let is_live = |entry: &&Entry| !entry.is_over(now);
        match seen.slot() {
            slot if slot.policy_number() == OVERFLOW => {
                locked.data().get(slot.index()).filter(is_live).map(read)
            }
            slot => self.simple_entry(slot).as_ref().filter(is_live).map(read),
        }
    }

    /// Finds the slot of a key. Before that, the holds that have expired are charged once, for all later operations.
    fn find_charged<'a>(
        &self,
        locked: &mut LockedSegment<'a, OverflowTable>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(SlotIndex, SlotRef<'a>)> {
        let (at, seen) = locked.find(hash)?;
        let slot = seen.slot();
        // Another clock may be earlier.
        if self.one_clock
            && slot.policy_number() == OVERFLOW
            && !locked.data_mut().charge_expiries(slot.index(), now, &self.budget)
        {
            locked.clear(at);
            locked.data_mut().take(slot.index(), &self.budget);
            self.budget.count_keys(1, 0);
            return None;
        }
        Some((at, seen))
    }

    /// Resets `key`. Whether it had state that had not recovered at `now`.
    pub fn reset(&self, key: &[u8], now: Timestamp) -> bool {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let Some((index, _)) = locked.find(hash) else { return false };
        let slot = locked.claim(index);
        let entry = self.take_entry(&mut locked, slot);
        locked.clear(index);
        self.budget.count_keys(1, 0);
        entry.is_some_and(|entry| !entry.is_over(now))
    }

    /// The slot for an entry that was in the slot `before`. It becomes an overflow entry if it does not fit.
    pub(crate) fn slot_of(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        (hash, before): (u64, Option<Slot>),
        entry: Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Slot {
        let was_overflow = before.map(|slot| slot.policy_number() == OVERFLOW);
        match self.simple_slot((hash, before), &entry, policy, now) {
            Some(slot) => {
                reached!(EntryReturnsToSlot if was_overflow == Some(true));
                // Without a clock of all keys, a state may recover under another one.
                debug_assert!(
                    !self.one_clock || self.simple_entry(slot).as_ref() == Some(&entry),
                    "a slot holds another state"
                );
                policy.note_written(now);
                slot
            }
            None => {
                reached!(EntryLeavesSlot if was_overflow == Some(false));
                Slot::overflow(hash, locked.data_mut().put(entry, &self.budget))
            }
        }
    }

    /// The slot that holds an entry by itself, if it fits, or did before and has not changed.
    fn simple_slot(
        &self,
        (hash, before): (u64, Option<Slot>),
        entry: &Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Option<Slot> {
        if let Some((number, state)) = self.packed(entry, policy, now) {
            return Some(Slot::simple(hash, number, state));
        }
        let before = before.filter(|slot| slot.policy_number() != OVERFLOW)?;
        if entry.open_holds() > 0 {
            return None;
        }
        (self.simple_entry(before).as_ref() == Some(entry)).then_some(before)
    }

    /// The entry of a copy that was changed, under the policy that it had `before` if that is equal and the entry does not fit
    /// in a slot: then it takes no memory for another.
    fn under_before(
        &self,
        entry: Entry,
        before: Option<&Policy>,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Entry {
        match before {
            Some(before) if self.packed(&entry, policy, now).is_none() => entry.under(before),
            _ => entry,
        }
    }

    /// Bytes by which the table grows if `entry` replaces what the slot `before` holds.
    pub(crate) fn growth(
        &self,
        data: &OverflowTable,
        before: Option<Slot>,
        entry: Option<&Entry>,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> usize {
        let is_simple =
            |entry: &&Entry| self.simple_slot((0, before), entry, policy, now).is_some();
        let overflow = before.filter(|slot| slot.policy_number() == OVERFLOW);
        let entry = entry.filter(|entry| !is_simple(entry));
        entry.map_or(0, |entry| data.growth(overflow.map(Slot::index), entry))
    }

    /// The number of the policy and the encoded state, if a slot can hold the entry.
    pub(crate) fn packed(
        &self,
        entry: &Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Option<(u64, Tat)> {
        // The entry may still be under an older policy, if the operation stored nothing.
        let (number, codec) =
            policy.numbered().filter(|_| entry.policy().ptr_eq(policy.policy()))?;
        Some((number, codec.encode(entry, self.base(), now)?))
    }

    /// The entry of a slot. An overflow entry is removed from its table.
    pub(crate) fn take_entry(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        slot: Slot,
    ) -> Option<Entry> {
        self.entry_of(locked, slot, false)
    }

    /// The entry of a slot, or a copy. An overflow entry that is not copied is removed from its table.
    fn entry_of(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        slot: Slot,
        as_copy: bool,
    ) -> Option<Entry> {
        match slot.policy_number() {
            OVERFLOW if as_copy => locked.data_mut().copy(slot.index(), &self.budget),
            OVERFLOW => locked.data_mut().take(slot.index(), &self.budget),
            _ => self.simple_entry(slot),
        }
    }

    pub(crate) fn simple_entry(&self, slot: Slot) -> Option<Entry> {
        let policy = self.policies.get(slot.policy_number())?;
        let (_, codec) = policy.numbered()?;
        codec.decode(policy.policy(), slot.tat(), self.base())
    }
}

// Space for new keys: recovered slots are reclaimed first, then the table grows; at its bound it rejects new
// keys. A live key is never evicted for another.

/// `retry_after` of requests denied because the table is full.
pub const TABLE_FULL_RETRY: Duration = Duration::from_secs(1);
/// Slots that are checked for recovered states with each rejected key.
const SWEEP_SLOTS: usize = 32;
/// Maximum number of bytes that a change adds to a key, with its policy; logs and holds aside, which double their memory,
/// and may be copied for a policy with more logs.
const MAX_GROWTH: usize = 4096;

/// Upper bound on the bytes that a change of the entry in this slot adds under `policy`.
fn max_growth(data: &OverflowTable, slot: Option<Slot>, policy: &NumberedPolicy) -> usize {
    let overflow = slot.filter(|slot| slot.policy_number() == OVERFLOW);
    let entry = overflow.and_then(|slot| data.get(slot.index()));
    let own = |entry| overflow::size(entry) + overflow::copied_size(entry, policy.policy());
    MAX_GROWTH + entry.map_or(0, own)
}

impl MemoryStore {
    /// Inserts a new key if one of its slots is free or has recovered.
    pub(crate) fn insert(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        hash: u64,
        slot: Slot,
        now: Timestamp,
    ) -> bool {
        self.vacate(locked, hash, now).map(|vacant| locked.fill(vacant, slot)).is_some()
    }

    /// Finds a slot for a new key that is free or has recovered, and counts the key.
    #[inline]
    pub(crate) fn vacate(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(SlotIndex, bool)> {
        // At most one is reclaimed, and asked for again if a decision changes it meanwhile.
        let mut reclaimed = 0;
        let vacant = locked.vacate(hash, |data, slot| {
            let recovered = self.reclaim_if_recovered(data, slot, now);
            reclaimed = usize::from(recovered);
            recovered
        });
        debug_assert!(reclaimed == 0 || vacant.is_some(), "a slot is reclaimed for no key");
        reached!(SlotIsReclaimedForNewKey if reclaimed > 0);
        self.budget.count_keys(reclaimed, usize::from(vacant.is_some()));
        vacant
    }

    /// Whether a slot has recovered. If so, its overflow entry is removed.
    fn reclaim_if_recovered(&self, data: &mut OverflowTable, slot: Slot, now: Timestamp) -> bool {
        if !self.one_clock {
            return false;
        }
        if slot.policy_number() != OVERFLOW {
            return slot.tat().has_come(as_micros(now.since(self.base())));
        }
        if data.charge_expiries(slot.index(), now, &self.budget)
            && !data.get(slot.index()).is_none_or(|entry| entry.is_over(now))
        {
            return false;
        }
        data.take(slot.index(), &self.budget);
        true
    }

    /// Whether any change of the entry in this slot fits under `policy`.
    fn has_room(&self, data: &OverflowTable, slot: Option<Slot>, policy: &NumberedPolicy) -> bool {
        self.budget.fits(max_growth(data, slot, policy))
    }

    /// Reclaims the recovered ones of the next few slots, and returns their number. Checking all slots for every key
    /// of a flood would itself block the segment.
    pub(crate) fn sweep(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        now: Timestamp,
    ) -> usize {
        let gone =
            locked.drain_some(SWEEP_SLOTS, |data, slot| self.reclaim_if_recovered(data, slot, now));
        self.budget.count_keys(gone, 0);
        gone
    }

    /// Makes space in the segment of a key that found no slot: reclaims recovered slots, or splits the segment.
    /// False if neither helps.
    pub(crate) fn make_space(
        &self,
        shard: &Shard<OverflowTable>,
        locked: &mut LockedSegment<'_, OverflowTable>,
        hash: u64,
        now: Timestamp,
    ) -> bool {
        if !self.budget.fits(SEGMENT_BYTES) {
            reached!(TableCannotGrow);
            self.sweep(locked, now);
            return false;
        }
        let gone =
            locked.drain_where(|data, slot| self.reclaim_if_recovered(data, slot, now)).len();
        self.budget.count_keys(gone, 0);
        if gone >= SLOTS / 8 {
            return true;
        }
        if locked.slots().count() < SLOTS / 4 {
            // Keys crowd in few buckets, which does not happen by chance.
            let seed = self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            if shard.reseed(hash, locked, narrow(self.hasher.hash_one(seed))) {
                return true;
            }
        }
        let split = shard.may_split(locked)
            && shard.split(hash, locked, |data, moving| data.split_off(moving, &self.budget));
        if split {
            self.budget.resize(0, SEGMENT_BYTES);
            #[cfg(debug_assertions)]
            locked.data().check();
        }
        split
    }

    /// The decision on a request that changes nothing, because the full table has no space for the change. `decision` is
    /// that with space.
    fn reject(&self, operation: Operation, mut decision: Decision) -> Decision {
        self.budget.count_table_full();
        reached!(TableFull);
        if !decision.allowed() {
            return decision;
        }
        let has_happened =
            matches!(operation, Operation::Charge(_) | Operation::Refund(_) | Operation::Reset);
        if self.when_full == WhenFull::Deny && !has_happened {
            decision.outcome = Outcome::Deny { retry: Retry::After(TABLE_FULL_RETRY) };
            decision.remaining = 0;
        }
        decision
    }
}

// Requests on several keys, all or nothing. All their slots are claimed while they are decided.
//
// The segments of the keys are locked in the order of their addresses, so that two takes on the same segments do not
// deadlock. Space for new keys is made before the decision, so that nothing has to be undone.

/// The operation on one of several keys, by its hash.
struct HashedOperation<'a> {
    hash: u64,
    policy: Cow<'a, NumberedPolicy>,
    operation: Operation<'a>,
}

/// The locks on the segments of several keys.
struct Locks<'a> {
    locked: Vec<LockedSegment<'a, OverflowTable>>,
    /// For each key, the index of its segment in `locked`.
    which: Vec<usize>,
}

/// The claimed state of a key.
struct ClaimedEntry {
    /// Its slot; `None` if nothing will be stored.
    index: Option<SlotIndex>,
    /// What the slot held; `None` for a new key.
    before: Option<Slot>,
    entry: Option<Entry>,
}

impl MemoryStore {
    /// Decides a request at `now`, atomically. A key that occurs twice counts once, the first time.
    ///
    /// ```
    /// use sluicegate_core::{Clock, KeyedOperation, Operation, PreparedPolicy, Request};
    /// use sluicegate_memory::{MemoryStore, SystemClock};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let [user, all]: [PreparedPolicy; 2] = ["gcra:5/1m".parse()?, "gcra:100/1s".parse()?];
    /// let operation = Operation::Take(1);
    /// let takes = [
    ///     KeyedOperation { key: b"user7", policy: &user, operation },
    ///     KeyedOperation { key: b"everybody", policy: &all, operation },
    /// ];
    /// let taken = store.apply_all(Request::all(&takes)?, clock.now())?;
    /// assert!(taken.allowed());
    /// assert_eq!((taken.key, taken.remaining), (0, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`]: a policy does not support its operation. Nothing is changed.
    pub fn apply_all(
        &self,
        request: Request<'_>,
        now: Timestamp,
    ) -> Result<Answer, OperationError> {
        let operations = request.operations();
        if let [KeyedOperation { key, policy, operation }] = *operations {
            let decision = self.apply_numbered(key, &self.numbered(policy, now), now, operation);
            return decision.map(Answer::from);
        }
        let stores =
            !matches!(operations, [KeyedOperation { operation: Operation::Peek(_), .. }, ..]);
        if stores {
            let _ = self.since_set_base(now);
        }
        let operations = self.hashed(operations, now);
        loop {
            let decided = if stores {
                self.try_all(&operations, now)
            } else {
                let mut locks = self.lock_all(&operations);
                self.charge_expiries(&mut locks, &operations, now);
                let reserved = vec![None; operations.len()];
                let mut claimed = self.claim(&mut locks, &operations, reserved, false);
                let peeked = apply_all(&mut parts(&operations, &mut claimed), now);
                self.put_back(&mut locks, &operations, claimed, now);
                Some(peeked)
            };
            if let Some(decided) = decided {
                return decided;
            }
        }
    }

    /// `None` if the slots must be looked up again, because a segment has made space.
    fn try_all(
        &self,
        takes: &[HashedOperation<'_>],
        now: Timestamp,
    ) -> Option<Result<Answer, OperationError>> {
        let mut locks = self.lock_all(takes);
        self.charge_expiries(&mut locks, takes, now);
        let (reserved, unplaced) = self.reserve(&mut locks, takes, now)?;
        let growth = takes.iter().zip(&locks.which).map(|(take, &at)| {
            let found = locks.locked[at].find(take.hash).map(|(_, seen)| seen.slot());
            max_growth(locks.locked[at].data(), found, &take.policy)
        });
        // Changes for which there may be no space are made on copies, each of which replaces its entry if it fits.
        let on_copies = unplaced.contains(&true) || !self.budget.fits(growth.sum());
        let mut claimed = self.claim(&mut locks, takes, reserved, on_copies);
        if !on_copies {
            let taken = apply_all(&mut parts(takes, &mut claimed), now);
            self.put_back(&mut locks, takes, claimed, now);
            return Some(taken);
        }
        let before: Vec<_> =
            claimed.iter().map(|it| it.entry.as_ref().map(|it| it.policy().clone())).collect();
        let taken = apply_all(&mut parts(takes, &mut claimed), now);
        for ((claimed, before), take) in claimed.iter_mut().zip(&before).zip(takes) {
            let entry = claimed.entry.take();
            claimed.entry =
                entry.map(|it| self.under_before(it, before.as_ref(), &take.policy, now));
        }
        let full = self.full_keys(&mut locks, takes, &claimed, &unplaced, now);
        let is_rejected = full.contains(&true) && taken.as_ref().is_ok_and(|it| it.allowed());
        let stores = !is_rejected || self.when_full == WhenFull::Allow;
        for (at, it) in claimed.iter_mut().enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            if stores && !full[at] {
                it.before.map(|slot| self.take_entry(locked, slot));
                continue;
            }
            match (it.index.take(), it.before) {
                (Some(index), Some(slot)) => locked.put(index, slot),
                (Some(index), None) => self.forget(locked, index),
                (None, _) => {}
            }
        }
        if !is_rejected {
            full.iter().filter(|full| **full).for_each(|_| self.budget.count_table_full());
            self.put_back(&mut locks, takes, claimed, now);
            return Some(taken);
        }
        reached!(MultiKeyHasNoSpace);
        let rejected = self.reject_keys(&mut locks, takes, (&full, taken), now);
        self.put_back(&mut locks, takes, claimed, now);
        Some(rejected)
    }

    /// Reserves slots for the new keys. Returns them, and for which keys there is none. `None` if the slots
    /// must be looked up again.
    fn reserve(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        now: Timestamp,
    ) -> Option<(Vec<Option<SlotIndex>>, Vec<bool>)> {
        let is_new = |locks: &Locks<'_>, at: usize| {
            locks.locked[locks.which[at]].find(takes[at].hash).is_none()
        };
        let mut unplaced = vec![false; takes.len()];
        let mut reserved = vec![None; takes.len()];
        // This may reclaim slots; therefore it comes before anything is claimed.
        let mut at = 0;
        while let Some(&HashedOperation { hash, operation, .. }) = takes.get(at) {
            if operation.cost() == 0 || unplaced[at] || reserved[at].is_some() || !is_new(locks, at)
            {
                at += 1;
                continue;
            }
            let locked = &mut locks.locked[locks.which[at]];
            reserved[at] = self.vacate(locked, hash, now).map(|it| locked.reserve(hash, it));
            if reserved[at].is_none() {
                self.release(locks, &mut reserved);
                let locked = &mut locks.locked[locks.which[at]];
                if self.make_space(self.shard(hash), locked, hash, now) {
                    return None;
                }
                unplaced[at] = true;
                at = 0;
            }
        }
        // What made space for a key may have reclaimed the slot of one before it that has recovered.
        let is_placed = |at: usize| {
            takes[at].operation.cost() == 0
                || unplaced[at]
                || reserved[at].is_some()
                || !is_new(locks, at)
        };
        if !(0..takes.len()).all(is_placed) {
            self.release(locks, &mut reserved);
            return None;
        }
        Some((reserved, unplaced))
    }

    /// For which keys there is no space: those that are unplaced, and those whose changed entry does not fit.
    fn full_keys(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        changed: &[ClaimedEntry],
        unplaced: &[bool],
        now: Timestamp,
    ) -> Vec<bool> {
        loop {
            // Bytes that the keys so far add.
            let mut growth = 0;
            let keys = takes.iter().zip(changed).zip(&locks.which).zip(unplaced);
            let full = keys.map(|(((take, it), &at), &unplaced)| {
                let entry = it.entry.as_ref().filter(|it| self.keeps(it, now));
                let data = locks.locked[at].data();
                let own = self.growth(data, it.before, entry, &take.policy, now);
                if unplaced || own > 0 && !self.budget.fits(growth + own) {
                    return true;
                }
                growth += own;
                false
            });
            let full: Vec<_> = full.collect();
            // Each sweep that finds something is paid for by the insertions before.
            if full == unplaced || locks.locked.iter_mut().all(|it| self.sweep(it, now) == 0) {
                return full;
            }
        }
    }

    /// The answer if there is no space for some of the keys, whose decisions with space are those of `taken`.
    fn reject_keys(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        (full, taken): (&[bool], Result<Answer, OperationError>),
        now: Timestamp,
    ) -> Result<Answer, OperationError> {
        let mut reject = |(at, decision): (usize, Decision)| {
            let HashedOperation { hash, policy, operation } = &takes[at];
            if full[at] {
                return self.reject(Operation::Take(operation.cost()), decision);
            }
            if self.when_full != WhenFull::Deny {
                return decision;
            }
            // Nothing is taken from the others.
            let locked = &mut locks.locked[locks.which[at]];
            let found = locked.find(*hash).map(|(_, seen)| seen.slot());
            let mut entry = found.and_then(|slot| self.entry_of(locked, slot, true));
            let is_open = |id| entry.as_ref().is_some_and(|it| it.has_open_hold(id, now));
            let cost = if operation.id().is_some_and(is_open) { 0 } else { operation.cost() };
            let peek = apply(policy.policy(), &mut entry, now, Operation::Peek(cost));
            peek.expect("every policy supports a peek")
        };
        Ok(taken?.map_each(&mut reject))
    }

    /// Locks the segments of all keys.
    fn lock_all(&self, takes: &[HashedOperation<'_>]) -> Locks<'_> {
        let segment = |hash: u64| self.shard(hash).segment(hash);
        loop {
            let segments: Vec<_> = takes.iter().map(|take| segment(take.hash)).collect();
            let mut order = segments.clone();
            order.sort_by_key(|segment| std::ptr::from_ref(*segment).addr());
            order.dedup_by(|a, b| std::ptr::eq(*a, *b));
            let locked = order.iter().map(|segment| segment.lock()).collect();
            // A segment is split under its lock: the entry of the directory stays valid until the lock is released.
            if takes.iter().zip(&segments).all(|(it, then)| std::ptr::eq(*then, segment(it.hash))) {
                let index = |segment| order.iter().position(|it| std::ptr::eq(*it, segment));
                let which = segments.into_iter().map(|it| index(it).unwrap_or_default()).collect();
                return Locks { locked, which };
            }
        }
    }

    /// Charges the holds of all keys that have expired, once for all later operations.
    fn charge_expiries(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        now: Timestamp,
    ) {
        for (take, &at) in takes.iter().zip(&locks.which) {
            self.find_charged(&mut locks.locked[at], take.hash, now);
        }
    }

    /// Claims the states of all keys. `indexes` are the reserved slots. The entries of copies stay where they are.
    fn claim(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        indexes: Vec<Option<SlotIndex>>,
        as_copies: bool,
    ) -> Vec<ClaimedEntry> {
        let claim = |(at, (take, reserved)): (usize, (&HashedOperation<'_>, Option<SlotIndex>))| {
            let locked = &mut locks.locked[locks.which[at]];
            let Some((index, _)) = locked.find(take.hash) else {
                return ClaimedEntry { index: reserved, before: None, entry: None };
            };
            let slot = locked.claim(index);
            let entry = self.entry_of(locked, slot, as_copies);
            ClaimedEntry { index: Some(index), before: Some(slot), entry }
        };
        takes.iter().zip(indexes).enumerate().map(claim).collect()
    }

    /// Writes the states back to their slots.
    fn put_back(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedOperation<'_>],
        held: Vec<ClaimedEntry>,
        now: Timestamp,
    ) {
        for (at, (&HashedOperation { hash, ref policy, .. }, held)) in
            takes.iter().zip(held).enumerate()
        {
            let locked = &mut locks.locked[locks.which[at]];
            let Some(index) = held.index else { continue };
            match held.entry.filter(|entry| self.keeps(entry, now)) {
                Some(entry) => {
                    let slot = self.slot_of(locked, (hash, held.before), entry, policy, now);
                    locked.put(index, slot);
                }
                None => self.forget(locked, index),
            }
        }
    }

    /// Frees reserved slots.
    fn release(&self, locks: &mut Locks<'_>, reserved: &mut [Option<SlotIndex>]) {
        for (index, &at) in reserved.iter_mut().zip(&locks.which) {
            if let Some(index) = index.take() {
                self.forget(&mut locks.locked[at], index);
            }
        }
    }

    /// Whether the entry must be stored from `now` on.
    fn keeps(&self, entry: &Entry, now: Timestamp) -> bool {
        !self.one_clock || !entry.is_over(now)
    }

    fn forget(&self, locked: &mut LockedSegment<'_, OverflowTable>, index: SlotIndex) {
        locked.clear(index);
        self.budget.count_keys(1, 0);
    }
}

impl MemoryStore {
    fn hashed<'a>(
        &self,
        operations: &[KeyedOperation<'a>],
        now: Timestamp,
    ) -> Vec<HashedOperation<'a>> {
        let mut hashed: Vec<HashedOperation<'a>> = Vec::with_capacity(operations.len());
        for &KeyedOperation { key, policy, operation } in operations {
            let hash = self.hash(key);
            if hashed.iter().all(|it| it.hash != hash) {
                let policy = self.numbered(policy, now);
                hashed.push(HashedOperation { hash, policy, operation });
            }
        }
        hashed
    }
}

fn parts<'a>(
    operations: &'a [HashedOperation<'_>],
    claimed: &'a mut [ClaimedEntry],
) -> Vec<EntryOperation<'a>> {
    let part = |(it, claimed): (&'a HashedOperation<'_>, &'a mut ClaimedEntry)| EntryOperation {
        policy: it.policy.policy(),
        entry: &mut claimed.entry,
        operation: it.operation,
    };
    operations.iter().zip(claimed).map(part).collect()
}

// The table with a clock: a store that needs no time from its callers.

/// A [`MemoryStore`] with its clock, which answers every operation now. The clock is read once for each operation, or
/// for each batch.
///
/// ```
/// use sluicegate_core::{Clock, ManualClock, Operation, PreparedPolicy, Timestamp};
/// use sluicegate_memory::{ClockedStore, MemoryStore};
///
/// let store = ClockedStore::new(MemoryStore::new(), ManualClock::new(Timestamp::EPOCH));
/// let policy: PreparedPolicy = "gcra:1/1s:burst=1".parse()?;
///
/// assert!(store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// assert!(!store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// store.clock().advance(std::time::Duration::from_secs(1));
/// assert!(store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ClockedStore<C = SystemClock> {
    store: MemoryStore,
    clock: C,
}

impl<C: Clock> ClockedStore<C> {
    /// `store`, in the time of `clock`.
    #[must_use]
    pub const fn new(store: MemoryStore, clock: C) -> Self {
        Self { store, clock }
    }

    /// The store without its clock.
    #[must_use]
    pub const fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Applies `operation` to `key`: [`Store::apply`] without the other errors of stores.
    ///
    /// # Errors
    /// As [`MemoryStore::apply`].
    #[inline(always)]
    pub fn decide(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        self.decide_as(key, policy, operation)
    }

    /// Applies independent operations at one time, in order, and passes each with its result to `answer`, until that breaks:
    /// [`Store::apply_many`] without its results in memory. The slots of later ones are prefetched while one is decided.
    #[inline(always)]
    pub fn apply_each<'a>(
        &self,
        operations: &'a [KeyedOperation<'a>],
        mut answer: impl FnMut(
            &'a KeyedOperation<'a>,
            Result<Decision, OperationError>,
        ) -> ControlFlow<()>,
    ) {
        let (store, now) = (&self.store, self.clock.now());
        let mut last: Option<(&PreparedPolicy, &NumberedPolicy)> = None;
        store.for_each_hash(
            operations,
            |it| it.key,
            |it, hash| {
                // Most operations of a batch have the policy of the one before.
                if !last.is_some_and(|last| ptr::eq(last.0, it.policy)) {
                    last = store.attached(it.policy, || now).map(|attached| (it.policy, attached));
                }
                let operation = it.operation;
                // The call is written twice, so that the decision is not copied.
                match last {
                    Some((_, policy)) => {
                        answer(it, store.apply_hashed::<false, _>(hash, policy, now, operation))
                    }
                    None => answer(it, store.apply_unattached(hash.0, it.policy, now, operation)),
                }
            },
        );
    }

    #[inline(always)]
    fn decide_as<E: From<OperationError>>(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Decision, E> {
        // Before the clock, too: see `apply_by`.
        match self.store.attached(policy, || self.clock.now()) {
            Some(policy) => self.store.apply_by(key, policy, &self.clock, operation),
            None => {
                let (hash, now) = (self.store.hash(key), self.clock.now());
                Ok(self.store.apply_unattached(hash, policy, now, operation)?)
            }
        }
    }
}

impl<C: Clock + Debug + Send + Sync> Store for ClockedStore<C> {
    type Error = StoreError;

    #[inline(always)]
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::Now(match request.single() {
            Some(KeyedOperation { key, policy, operation }) => {
                self.decide_as(key, policy, operation).map(Answer::from)
            }
            None => {
                let answer = self.store.apply_all(request, self.clock.now());
                answer.map_err(StoreError::from)
            }
        })
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        let mut answers = Vec::with_capacity(operations.len());
        self.apply_each(operations, |_, decision| {
            answers.push(decision.map(Answer::from).map_err(StoreError::from));
            ControlFlow::Continue(())
        });
        Applied::Now(answers)
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        let now = self.clock.now();
        // The entry is not copied, because it may be large.
        if self.store.with_live_entry(key, now, |entry| read(Some(entry), now)).is_none() {
            read(None, now);
        }
        Applied::Now(Ok(()))
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::Now(Ok(self.store.reset(key, self.clock.now())))
    }

    fn prefetch(&self, key: &[u8]) {
        self.store.prefetch(key);
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::Local(self.store.usage())
    }
}
