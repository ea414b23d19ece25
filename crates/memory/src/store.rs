//! The store: which slot, which lock, and what becomes of what was decided.

use std::{
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use ahash::RandomState;
use sluicegate_core::{Decision, Entry, Operation, Policy, ReserveError, Timestamp};

use crate::{
    Rule, Usage, WhenFull,
    budget::Budget,
    dropped::DroppedKeys,
    ground::Ground,
    large::Large,
    rules::Rules,
    segment::BYTES,
    shard::{SHARD_BITS, Shard},
    slot::{LARGE, MAX_SINCE},
};

/// Sizes of shards.
const SIZES: usize = 16;
/// Shards of each size: the lowest two bits of a hash choose among them.
pub(crate) const QUARTERS: usize = 4;
const SHARDS: usize = SIZES * QUARTERS;
/// How many requests of a batch ahead slots are brought near.
const AHEAD: usize = 8;

/// State in this process, bounded. Shared by reference between threads; keys are any bytes.
///
/// What is kept of a key is its keyed 64-bit hash and its state: sixteen bytes under a policy of
/// one limit of the gcra family, or of one fixed window of at most 1023 units or on the clock, whatever the
/// length of the key.
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
    pub(crate) shards: Box<[Shard<Large>; SHARDS]>,
    /// The first of four shards for each value of the first eight bits of a hash.
    pub(crate) cells: [u8; 1 << SHARD_BITS],
    pub(crate) rules: Rules,
    ground: Ground,
    pub(crate) budget: Budget,
    pub(crate) when_full: WhenFull,
    /// Keys of the state file that did not fit in, if there were any.
    pub(crate) dropped: Option<Box<DroppedKeys>>,
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
            dropped: None,
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
        self.ask_as(request, now)
    }

    /// As [`MemoryStore::ask`], with an error of the caller's, for whom the decision need not move once more.
    ///
    /// # Errors
    /// As [`MemoryStore::apply`].
    #[inline(always)]
    pub fn ask_as<E: From<ReserveError>>(
        &self,
        request: Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, E> {
        self.ask_hashed::<true, E>(self.hash(request.key), request.rule, now, request.operation)
    }

    /// Has the slot of a key on its way from memory, for a request that follows soon.
    pub fn touch(&self, key: &[u8]) {
        let _ = self.touch_hashed(key);
    }

    /// The hash of a key whose slot is on its way from memory.
    #[inline(always)]
    fn touch_hashed(&self, key: &[u8]) -> u64 {
        let hash = self.hash(key);
        self.shard(hash).lines(hash).touch(hash);
        hash
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
        for (request, hash) in requests.iter().zip(&mut hashes) {
            *hash = self.touch_hashed(request.key);
        }
        for (turn, request) in requests.iter().enumerate() {
            let hash = hashes[turn % AHEAD];
            if let Some(request) = requests.get(turn + AHEAD) {
                hashes[turn % AHEAD] = self.touch_hashed(request.key);
            }
            let decision = self.ask_hashed::<false, _>(hash, request.rule, now, request.operation);
            answer(request, decision);
        }
    }

    /// What `read` makes of the entry of `key`, or `None` if nothing is stored.
    ///
    /// The entry may have recovered: its [`lifetime`](Entry::lifetime) tells. `read` holds a lock,
    /// and must not call the store.
    pub fn with_entry<R>(&self, key: &[u8], read: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.with_entry_of(self.hash(key), read)
    }

    /// As [`with_entry`](Self::with_entry), of the key with this hash.
    pub(crate) fn with_entry_of<R>(&self, hash: u64, read: impl FnOnce(&Entry) -> R) -> Option<R> {
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
        let keys_dropped = self.dropped.as_ref().map_or(0, |dropped| dropped.keys());
        Usage { keys_dropped, ..self.budget.usage() }
    }

    pub(crate) const fn hash_keys(&self) -> [u64; 4] {
        self.keys
    }

    #[inline(always)]
    pub(crate) fn hash(&self, key: &[u8]) -> u64 {
        // `write` stirs the length in; `hash_one` of a slice would do so twice.
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        hasher.finish()
    }

    #[inline(always)]
    pub(crate) fn shard(&self, hash: u64) -> &Shard<Large> {
        // The masks are of no effect, but spare two checks.
        let cell = narrow(hash >> (64 - SHARD_BITS)) % self.cells.len();
        &self.shards[(usize::from(self.cells[cell]) + narrow(hash) % QUARTERS) % SHARDS]
    }

    /// Microseconds since the base, where a TAT from then on fits in a slot.
    #[inline(always)]
    pub(crate) fn since_base(&self, now: Timestamp) -> Option<u64> {
        let since = now.as_micros().wrapping_sub(self.base.load(Ordering::Relaxed));
        // A time before the base wraps, and so is none of these.
        (since < MAX_SINCE).then_some(since)
    }

    /// As [`since_base`](Self::since_base), for a request that may be the first.
    pub(crate) fn since_set_base(&self, now: Timestamp) -> Option<u64> {
        let (now_micros, relaxed) = (now.as_micros(), Ordering::Relaxed);
        let _ = self.base.compare_exchange(NO_BASE, now_micros, relaxed, relaxed);
        self.since_base(now)
    }

    pub(crate) fn base(&self) -> Timestamp {
        Timestamp::saturating_from_micros(self.base.load(Ordering::Relaxed))
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
