//! The store: which slot, which lock, and what becomes of what was decided.

use std::{
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use ahash::RandomState;
use sluicegate_core::{Decision, Entry, Operation, Policy, ReserveError, Timestamp, apply};

use crate::{
    Rule, Usage, WhenFull,
    budget::Budget,
    ground::Ground,
    large::Large,
    rules::Rules,
    segment::{BYTES, Locked},
    shard::{Part, SHARD_BITS, Shard},
    slot::{LARGE, MAX_SINCE, Slot, Tat},
};

/// Sizes of shards.
const SIZES: usize = 16;
/// Shards of each size: the lowest two bits of a hash choose among them.
const QUARTERS: usize = 4;
const SHARDS: usize = SIZES * QUARTERS;
/// How many requests of a batch ahead slots are brought near.
const AHEAD: usize = 8;

/// State in this process, bounded. Shared by reference between threads; keys are any bytes.
///
/// What is kept of a key is its keyed 64-bit hash and its state: sixteen bytes under a policy of
/// one limit of the gcra family, whatever the length of the key.
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
    pub(crate) hasher: RandomState,
    /// What the hasher was made from.
    keys: [u64; 4],
    shards: Box<[Shard<Large>; SHARDS]>,
    /// The first of four shards for each value of the first eight bits of a hash.
    cells: [u8; 1 << SHARD_BITS],
    rules: Rules,
    ground: Ground,
    pub(crate) budget: Budget,
    pub(crate) when_full: WhenFull,
    /// The time that TATs in slots count from: that of the first request.
    base: AtomicU64,
    /// Whether the time of one request says something about all keys.
    pub(crate) one_clock: bool,
    pub(crate) seeds: AtomicU64,
}

/// One request of a batch.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Whom it is about.
    pub key: &'a [u8],
    /// The policy.
    pub rule: &'a Rule,
    /// What is asked.
    pub operation: Operation,
}

/// So far from every time that no request comes within the range of a TAT of it.
const NO_BASE: u64 = 1 << 62;

impl MemoryStore {
    /// The bound of a store that was given none: 1 GiB.
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
        Self::with_keys(std::array::from_fn(|index| fresh.hash_one(index)), max_bytes, when_full)
    }

    /// An empty store with these keys of the hash.
    pub(crate) fn with_keys(keys: [u64; 4], max_bytes: usize, when_full: WhenFull) -> Self {
        let hasher = RandomState::with_seeds(keys[0], keys[1], keys[2], keys[3]);
        let seed = hasher.hash_one("seed");
        let budget = Budget::new(max_bytes.max(2 << 20));
        budget.resize(0, SHARDS * BYTES);
        let ground = Ground::new(budget.usage().max_bytes);
        Self {
            shards: Box::new(std::array::from_fn(|shard| {
                let quarter = (shard % QUARTERS) as u64;
                Shard::new(ground.clone(), narrow(seed), quarter, Large::default())
            })),
            ground,
            hasher,
            keys,
            cells: cells(),
            rules: Rules::default(),
            budget,
            when_full,
            base: AtomicU64::new(NO_BASE),
            one_clock: true,
            seeds: AtomicU64::new(seed),
        }
    }

    /// The same store, but it keeps entries that have recovered.
    ///
    /// For a virtual clock under which each key has a time of its own: there, the time of one
    /// request says nothing about the other keys. What is decided is the same.
    #[must_use]
    pub fn without_forgetting(mut self) -> Self {
        self.one_clock = false;
        self
    }

    /// The policy as this store knows it, for requests that follow.
    #[must_use]
    pub fn rule(&self, policy: &Policy, now: Timestamp) -> Rule {
        self.rules.rule(policy, self.one_clock.then_some(now), &self.budget)
    }

    /// Applies `operation` to `key` under `policy` at `now`, atomically. Looks the policy up first:
    /// who asks often holds a [`Rule`].
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
        let rule = self.rule(policy, now);
        self.ask(Request { key, rule: &rule, operation }, now)
    }

    /// Answers one request at `now`, atomically.
    ///
    /// # Errors
    /// As [`MemoryStore::apply`].
    #[inline(always)]
    pub fn ask(&self, request: Request<'_>, now: Timestamp) -> Result<Decision, ReserveError> {
        self.ask_hashed::<true>(self.hash(request.key), request.rule, now, request.operation)
    }

    /// Answers requests at one time, in order, each for itself. The slots of those that follow are on
    /// their way from memory while one is decided.
    pub fn apply_many<'a>(
        &self,
        requests: &[Request<'a>],
        now: Timestamp,
        mut answer: impl FnMut(&Request<'a>, Result<Decision, ReserveError>),
    ) {
        // The hashes of the requests from the one that is decided on, in turn.
        let mut hashes = [0; AHEAD];
        let touch = |request: &Request<'_>| {
            let hash = self.hash(request.key);
            self.shard(hash).lines(hash).touch(hash);
            hash
        };
        for (request, hash) in requests.iter().zip(&mut hashes) {
            *hash = touch(request);
        }
        let mut coming = requests.iter().skip(AHEAD);
        for (turn, request) in requests.iter().enumerate() {
            let hash = hashes[turn % AHEAD];
            if let Some(request) = coming.next() {
                hashes[turn % AHEAD] = touch(request);
            }
            let decision = self.ask_hashed::<false>(hash, request.rule, now, request.operation);
            answer(request, decision);
        }
    }

    /// What `read` makes of the entry of `key`, or `None` if nothing is stored.
    ///
    /// The entry may have recovered: its [`lifetime`](Entry::lifetime) tells. `read` holds a lock,
    /// and must not call the store.
    pub fn with_entry<R>(&self, key: &[u8], read: impl FnOnce(&Entry) -> R) -> Option<R> {
        let hash = self.hash(key);
        let locked = self.shard(hash).lock(hash);
        let slot = locked.find(hash)?.1.slot();
        match slot.rule() {
            LARGE => locked.kept().kept.get(slot.index()).map(read),
            _ => self.simple_entry(slot).as_ref().map(read),
        }
    }

    /// Makes `key` as if never used. Whether there was state that had not recovered at `now`.
    pub fn reset(&self, key: &[u8], now: Timestamp) -> bool {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let Some((place, _)) = locked.find(hash) else { return false };
        let slot = locked.claim(place);
        let entry = self.take_entry(&mut locked, slot);
        locked.clear(place);
        self.budget.count_keys(1, 0);
        entry.is_some_and(|entry| !entry.lifetime(now).is_zero())
    }

    /// How many keys are stored, those among them that have recovered and were not passed by yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.usage().keys
    }

    /// Whether nothing is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is held, and what was turned away.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.budget.usage()
    }

    pub(crate) const fn hash_keys(&self) -> [u64; 4] {
        self.keys
    }

    /// Every key that has not recovered at `now`, by its hash. Decisions go on meanwhile: a segment
    /// is locked only while its slots are copied.
    pub(crate) fn for_each(&self, now: Timestamp, mut each: impl FnMut(u64, &Entry)) {
        for segment in self.shards.iter().flat_map(Shard::segments) {
            let locked = segment.lock();
            let slots: Vec<_> = locked.slots().collect();
            let large = |slot: Slot| {
                (slot.rule() == LARGE).then(|| locked.kept().kept.get(slot.index()).cloned())
            };
            let large: Vec<_> = slots.iter().map(|(_, slot)| large(*slot)).collect();
            drop(locked);
            for ((hash, slot), large) in slots.into_iter().zip(large) {
                let entry = large.unwrap_or_else(|| self.simple_entry(slot));
                if let Some(entry) = entry.filter(|entry| !entry.lifetime(now).is_zero()) {
                    each(hash, &entry);
                }
            }
        }
    }

    /// Puts in an entry that was kept elsewhere, unless it has recovered.
    pub(crate) fn restore(&self, hash: u64, entry: Entry, now: Timestamp) {
        if entry.lifetime(now).is_zero() {
            return;
        }
        let _ = self.since_set_base(now);
        let rule = self.rule(entry.policy(), now);
        let entry = entry.under(rule.policy());
        let shard = self.shard(hash);
        loop {
            let mut locked = shard.lock(hash);
            let slot = self.slot_of(&mut locked, hash, entry.clone(), &rule, now);
            if self.insert(&mut locked, hash, slot, now) {
                return;
            }
            self.take_entry(&mut locked, slot);
            if !self.make_room(shard, &mut locked, hash, now) {
                self.budget.count_turned_away();
                return;
            }
        }
    }

    #[inline(always)]
    fn hash(&self, key: &[u8]) -> u64 {
        // `write` stirs the length in; `hash_one` of a slice would do so twice.
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    #[inline(always)]
    fn shard(&self, hash: u64) -> &Shard<Large> {
        // The masks are of no effect, but spare two checks.
        let cell = narrow(hash >> (64 - SHARD_BITS)) % self.cells.len();
        &self.shards[(usize::from(self.cells[cell]) + narrow(hash) % QUARTERS) % SHARDS]
    }

    /// Microseconds since the base, where a TAT from then on fits in a slot.
    #[inline(always)]
    fn since_base(&self, now: Timestamp) -> Option<u64> {
        let since = now.as_micros().wrapping_sub(self.base.load(Ordering::Relaxed));
        // A time before the base wraps, and so is none of these.
        (since < MAX_SINCE).then_some(since)
    }

    /// As [`since_base`](Self::since_base), for a request that may be the first.
    fn since_set_base(&self, now: Timestamp) -> Option<u64> {
        let (now_micros, relaxed) = (now.as_micros(), Ordering::Relaxed);
        let _ = self.base.compare_exchange(NO_BASE, now_micros, relaxed, relaxed);
        self.since_base(now)
    }

    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::saturating_from_micros(self.base.load(Ordering::Relaxed))
    }

    /// The short way: a take under a rule whose states fit in a slot, of a key whose state is in
    /// one. A denial writes nothing; what is taken is one compare-and-swap. For `GUESS`, see
    /// [`Lines::peek`](crate::segment::Lines::peek).
    #[inline(always)]
    fn ask_hashed<const GUESS: bool>(
        &self,
        hash: u64,
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        if let Operation::Take(cost @ 1..) = operation
            && let Some((number, gcra)) = rule.numbered()
            && let Some(since) = self.since_base(now)
        {
            let shard = self.shard(hash);
            while let Some(seen) = shard.lines(hash).peek::<GUESS>(hash, number)
                && let Some(judgement) =
                    gcra.judge(seen.slot().tat().debt(since, gcra.scale()), cost)
            {
                if !judgement.allowed {
                    if seen.is_whole() {
                        return Ok(gcra.tell(&judgement));
                    }
                    continue;
                }
                let tat = Tat::after(since, judgement.after, gcra.scale());
                if seen.replace(seen.slot().at(tat)) {
                    rule.note_written(now);
                    return Ok(gcra.tell(&judgement));
                }
            }
        }
        self.ask_locked(hash, rule, now, operation)
    }

    /// What [`ask_hashed`](Self::ask_hashed) leaves: most often, a key of which nothing is known.
    // Apart, so that the short way needs few registers.
    #[inline(never)]
    fn ask_locked(
        &self,
        hash: u64,
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        if let Operation::Take(cost @ 1..) = operation
            && let Some(decision) = self.put_in_slot(hash, rule, now, cost)
        {
            return Ok(decision);
        }
        self.apply_locked(hash, rule, now, operation)
    }

    /// A take of a key of which nothing is known, where its state fits in a slot and there is room.
    fn put_in_slot(&self, hash: u64, rule: &Rule, now: Timestamp, cost: u32) -> Option<Decision> {
        let (_, gcra) = rule.numbered()?;
        let since = self.since_set_base(now)?;
        let mut locked = self.shard(hash).lock(hash);
        if locked.find(hash).is_some() {
            return None;
        }
        let judgement = gcra.judge(0, cost)?;
        if judgement.allowed {
            let slot = self.simple_slot(hash, rule, since, judgement.after)?;
            if !self.insert(&mut locked, hash, slot, now) {
                return None;
            }
            rule.note_written(now);
        }
        Some(gcra.tell(&judgement))
    }

    /// The long way: any operation under any policy, as an [`Entry`] under the segment's lock.
    fn apply_locked(
        &self,
        hash: u64,
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        let shard = self.shard(hash);
        let mut locked = shard.lock(hash);
        loop {
            let found = locked.find(hash).map(|(_, seen)| seen.slot());
            let adds = matches!(
                operation,
                Operation::Take(1..)
                    | Operation::Charge(1..)
                    | Operation::Reserve { cost: 1.., .. }
            );
            if adds && self.is_full(&mut locked, found, rule, now, operation) {
                return self.turn_away(rule.policy(), now, operation);
            }
            // What has recovered may have been given up to make room.
            let found = locked.find(hash);
            if !adds
                && !matches!(operation, Operation::Refund(1..) | Operation::Reset)
                && let Some((_, seen)) = found
                && seen.slot().rule() != LARGE
            {
                return apply(rule.policy(), &mut self.simple_entry(seen.slot()), now, operation);
            }
            // In our hands until it is put back, so that nobody decides on it meanwhile.
            let found = found.map(|(place, _)| place);
            let mut entry = found.and_then(|place| {
                let slot = locked.claim(place);
                self.take_entry(&mut locked, slot)
            });
            let decision = apply(rule.policy(), &mut entry, now, operation);
            let forget =
                entry.as_ref().is_none_or(|entry| self.one_clock && entry.lifetime(now).is_zero());
            match (found, entry.filter(|_| !forget)) {
                (None, None) => {}
                (Some(place), None) => {
                    locked.clear(place);
                    self.budget.count_keys(1, 0);
                }
                (Some(place), Some(entry)) => {
                    let slot = self.slot_of(&mut locked, hash, entry, rule, now);
                    locked.put(place, slot);
                }
                (None, Some(entry)) => {
                    let slot = self.slot_of(&mut locked, hash, entry, rule, now);
                    if !self.insert(&mut locked, hash, slot, now) {
                        self.take_entry(&mut locked, slot);
                        if !self.make_room(shard, &mut locked, hash, now) {
                            return self.turn_away(rule.policy(), now, operation);
                        }
                        // A split may have moved the key's range to another segment.
                        drop(locked);
                        locked = shard.lock(hash);
                        continue;
                    }
                }
            }
            return decision;
        }
    }

    /// The slot for a debt `since` microseconds after the base, where it fits. Only what
    /// [`holds`](sluicegate_core::Gcra::holds) may go there: what a charge or a borrower owes may
    /// take longer to recover than the number of its rule is held for.
    fn simple_slot(&self, hash: u64, rule: &Rule, since: u64, debt: u64) -> Option<Slot> {
        let (number, gcra) = rule.numbered()?;
        Some(Slot::simple(hash, number, Tat::new(since, debt, gcra.scale())?))
    }

    /// The slot for an entry, which is kept beside the table where it does not fit.
    fn slot_of(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        hash: u64,
        entry: Entry,
        rule: &Rule,
        now: Timestamp,
    ) -> Slot {
        // An entry may still be under an older policy, where nothing was stored under this one.
        if entry.policy().is(rule.policy())
            && entry
                .debt(now)
                .is_some_and(|debt| rule.policy().as_gcra().is_some_and(|it| it.holds(debt)))
            && let Some(since @ 1..) = entry.debt(self.base())
            && let Ok(since) = u64::try_from(since)
            && let Some(slot) = self.simple_slot(hash, rule, 0, since)
        {
            rule.note_written(now);
            return slot;
        }
        Slot::large(hash, locked.kept_mut().kept.put(entry, &self.budget))
    }

    /// What a slot says, taken out of where it is kept if that is not the slot.
    fn take_entry(&self, locked: &mut Locked<'_, Part<Large>>, slot: Slot) -> Option<Entry> {
        if slot.rule() != LARGE {
            return self.simple_entry(slot);
        }
        locked.kept_mut().kept.take(slot.index(), &self.budget)
    }

    pub(crate) fn simple_entry(&self, slot: Slot) -> Option<Entry> {
        let rule = self.rules.numbered(slot.rule())?;
        let (_, gcra) = rule.numbered()?;
        Entry::with_debt(rule.policy(), self.base(), slot.tat().since_base(gcra.scale()))
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        self.ground.close();
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

/// The low bits of a hash, as many as there are in a `usize`.
#[expect(clippy::cast_possible_truncation, reason = "the low bits are those that are asked for")]
#[inline(always)]
pub(crate) const fn narrow(bits: u64) -> usize {
    bits as usize
}

/// Shares the first eight bits of the hash out to the shards, to each 2^(1/16) times as many as to
/// the one before: so they do not all grow at once, and the table is always about half to two
/// thirds full.
fn cells() -> [u8; 1 << SHARD_BITS] {
    // 256 * 2^(i/16) / sum of them, rounded so that they add up.
    const SHARES: [u8; SIZES] = [11, 12, 12, 13, 13, 14, 14, 15, 16, 17, 17, 18, 20, 20, 21, 23];
    let mut cells = [0; 1 << SHARD_BITS];
    let shards = (0..)
        .step_by(QUARTERS)
        .zip(SHARES)
        .flat_map(|(shard, share)| std::iter::repeat_n(shard, share.into()));
    cells.iter_mut().zip(shards).for_each(|(cell, shard)| *cell = shard);
    cells
}
