//! Takes on several keys, all or nothing. All their slots are claimed while they are decided.
//!
//! The segments of the keys are locked in the order of their addresses, so that two takes on the same segments do not
//! deadlock. Space for new keys is made before the decision, so that nothing has to be undone.

use std::borrow::Cow;

use sluicegate_core::{
    Decision, Entry, EntryTake, HoldOperation, KeyedTake, MultiKeyDecision, MultiKeyError,
    MultiKeyOperation, Operation, Timestamp, apply, apply_multi_key,
};

use crate::{
    MemoryStore, NumberedPolicy, WhenFull,
    change::Change,
    overflow::OverflowTable,
    segment::{LockedSegment, SlotIndex},
};

/// Maximum number of bytes that a request adds by a key, copies of logs aside.
const MAX_GROWTH: usize = 4096;

/// One key of a multi-key take, by its hash.
struct HashedTake<'a> {
    hash: u64,
    policy: Cow<'a, NumberedPolicy>,
    cost: u32,
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
    entry: Option<Entry>,
}

impl MemoryStore {
    /// Applies `operation` to several keys at `now`, atomically. A key that occurs twice counts once, the first time.
    ///
    /// ```
    /// use sluicegate_core::{Clock, KeyedTake, MultiKeyOperation, PreparedPolicy};
    /// use sluicegate_memory::{MemoryStore, SystemClock};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let [user, all]: [PreparedPolicy; 2] = ["gcra:5/1m".parse()?, "gcra:100/1s".parse()?];
    /// let takes = [
    ///     KeyedTake { key: b"user7", policy: &user, cost: 1 },
    ///     KeyedTake { key: b"everybody", policy: &all, cost: 1 },
    /// ];
    /// let taken = store.apply_multi_key(MultiKeyOperation::Take, &takes, clock.now())?;
    /// assert!(taken.decision.allowed());
    /// assert_eq!((taken.key, taken.decision.remaining), (0, 4));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`MultiKeyError`]: there is no key, or a policy does not support the operation. Nothing is changed.
    pub fn apply_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, MultiKeyError> {
        let stores = operation != MultiKeyOperation::Peek;
        if stores {
            let _ = self.since_set_base(now);
        }
        let takes = self.hashed(takes, now);
        loop {
            let taken = if stores {
                self.try_multi_key(operation, &takes, now)
            } else {
                let mut locks = self.lock_all(&takes);
                let indexes = vec![None; takes.len()];
                Some(self.apply_claimed(operation, &mut locks, &takes, indexes, now))
            };
            if let Some(taken) = taken {
                return taken;
            }
        }
    }

    /// Claims the states of all keys, and decides. `indexes` are the reserved slots.
    fn apply_claimed(
        &self,
        operation: MultiKeyOperation<'_>,
        locks: &mut Locks<'_>,
        takes: &[HashedTake<'_>],
        indexes: Vec<Option<SlotIndex>>,
        now: Timestamp,
    ) -> Result<MultiKeyDecision, MultiKeyError> {
        let mut claimed = self.claim(locks, takes, indexes);
        let taken = apply_multi_key(operation, &mut entry_takes(takes, &mut claimed), now);
        self.put_back(locks, takes, claimed, now);
        taken
    }

    /// `None` if a segment had to make space: the slots must be looked up again.
    fn try_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[HashedTake<'_>],
        now: Timestamp,
    ) -> Option<Result<MultiKeyDecision, MultiKeyError>> {
        let mut locks = self.lock_all(takes);
        let mut indexes = vec![None; takes.len()];
        let mut full = vec![false; takes.len()];
        // Bytes that the keys so far add.
        let mut pending = 0;
        // This may reclaim slots; therefore it comes before anything is claimed.
        for (at, take) in takes.iter().enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            full[at] = take.cost > 0
                && match operation {
                    MultiKeyOperation::Hold { id, ttl } => {
                        let hold = HoldOperation::Hold { id, cost: take.cost, ttl };
                        self.is_full_for(locked, take, now, hold, takes.len(), &mut pending)
                    }
                    _ => {
                        let change = Operation::Take(take.cost);
                        self.is_full_for(locked, take, now, change, takes.len(), &mut pending)
                    }
                };
        }
        for (at, &HashedTake { hash, cost, .. }) in takes.iter().enumerate() {
            let locked = &mut locks.locked[locks.which[at]];
            if cost == 0 || full[at] || locked.find(hash).is_some() {
                continue;
            }
            indexes[at] = self.vacate(locked, hash, now).map(|it| locked.reserve(hash, it));
            if indexes[at].is_none() {
                self.release(&mut locks, &indexes);
                let locked = &mut locks.locked[locks.which[at]];
                if self.make_space(self.shard(hash), locked, hash, now) {
                    return None;
                }
                full[at] = true;
                return Some(self.reject_keys(operation, &mut locks, takes, &full, now));
            }
        }
        // What made space for a key may have reclaimed the slot of one before it that has recovered.
        let has_slot = |(at, take): (usize, &HashedTake<'_>)| {
            take.cost == 0
                || full[at]
                || indexes[at].is_some()
                || locks.locked[locks.which[at]].find(take.hash).is_some()
        };
        if !takes.iter().enumerate().all(has_slot) {
            self.release(&mut locks, &indexes);
            return None;
        }
        if full.contains(&true) && self.when_full == WhenFull::Deny {
            self.release(&mut locks, &indexes);
            return Some(self.reject_keys(operation, &mut locks, takes, &full, now));
        }
        full.iter().filter(|it| **it).for_each(|_| self.budget.count_table_full());
        Some(self.apply_claimed(operation, &mut locks, takes, indexes, now))
    }

    /// Whether the table is full for one of `keys`. Adds to `pending` what the request adds by it.
    fn is_full_for<C: Change>(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        &HashedTake { hash, ref policy, .. }: &HashedTake<'_>,
        now: Timestamp,
        change: C,
        keys: usize,
        pending: &mut usize,
    ) -> bool {
        let found =
            |locked: &LockedSegment<'_, OverflowTable>| locked.find(hash).map(|it| it.1.slot());
        let slot = found(locked);
        if self.is_full(locked, (hash, slot), policy, now, change, *pending) {
            return true;
        }
        let are_few = self.budget.fits(keys * MAX_GROWTH + *pending);
        *pending += self.growth(locked.data(), found(locked), policy, now, change, are_few);
        false
    }

    /// The decision if there is no space for some of the keys: nothing is stored.
    fn reject_keys(
        &self,
        operation: MultiKeyOperation<'_>,
        locks: &mut Locks<'_>,
        takes: &[HashedTake<'_>],
        full: &[bool],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, MultiKeyError> {
        let mut held = self.claim(locks, takes, vec![None; takes.len()]);
        let each = takes.iter().zip(&mut held).zip(full).map(|((it, held), &full)| {
            let &HashedTake { hash, ref policy, cost } = it;
            let policy = policy.policy();
            let entry = &mut held.entry;
            match operation {
                MultiKeyOperation::Hold { id, ttl } if full => {
                    let hold = HoldOperation::Hold { id, cost, ttl };
                    Ok(self.reject_new_key(hash, policy, now, hold)?)
                }
                _ if full => Ok(self.reject_new_key(hash, policy, now, Operation::Take(cost))?),
                _ => Ok(apply(policy, entry, now, Operation::Peek(cost))?),
            }
        });
        let each: Result<Vec<Decision>, MultiKeyError> = each.collect();
        self.put_back(locks, takes, held, now);
        MultiKeyDecision::of(each?).ok_or(MultiKeyError::MissingKey)
    }

    /// Locks the segments of all keys.
    fn lock_all(&self, takes: &[HashedTake<'_>]) -> Locks<'_> {
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

    /// Claims the states of all keys. `indexes` are the reserved slots.
    fn claim(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedTake<'_>],
        indexes: Vec<Option<SlotIndex>>,
    ) -> Vec<ClaimedEntry> {
        let claim = |(at, (take, reserved)): (usize, (&HashedTake<'_>, Option<SlotIndex>))| {
            let locked = &mut locks.locked[locks.which[at]];
            let Some((index, _)) = locked.find(take.hash) else {
                return ClaimedEntry { index: reserved, entry: None };
            };
            let slot = locked.claim(index);
            ClaimedEntry { index: Some(index), entry: self.take_entry(locked, slot) }
        };
        takes.iter().zip(indexes).enumerate().map(claim).collect()
    }

    /// Writes the states back to their slots.
    fn put_back(
        &self,
        locks: &mut Locks<'_>,
        takes: &[HashedTake<'_>],
        held: Vec<ClaimedEntry>,
        now: Timestamp,
    ) {
        for (at, (&HashedTake { hash, ref policy, .. }, held)) in takes.iter().zip(held).enumerate()
        {
            let locked = &mut locks.locked[locks.which[at]];
            let Some(index) = held.index else { continue };
            let keeps = |entry: &Entry| !self.one_clock || !entry.lifetime(now).is_zero();
            match held.entry.filter(keeps) {
                Some(entry) => {
                    let slot = self.slot_of(locked, hash, entry, policy, now);
                    locked.put(index, slot);
                }
                None => self.forget(locked, index),
            }
        }
    }

    /// Frees reserved slots.
    fn release(&self, locks: &mut Locks<'_>, indexes: &[Option<SlotIndex>]) {
        for (index, &at) in indexes.iter().zip(&locks.which) {
            if let Some(index) = *index {
                self.forget(&mut locks.locked[at], index);
            }
        }
    }

    fn forget(&self, locked: &mut LockedSegment<'_, OverflowTable>, index: SlotIndex) {
        locked.clear(index);
        self.budget.count_keys(1, 0);
    }
}

impl MemoryStore {
    fn hashed<'a>(&self, takes: &[KeyedTake<'a>], now: Timestamp) -> Vec<HashedTake<'a>> {
        let mut hashed: Vec<HashedTake<'a>> = Vec::with_capacity(takes.len());
        for &KeyedTake { key, policy, cost } in takes {
            let hash = self.hash(key);
            if hashed.iter().all(|it| it.hash != hash) {
                hashed.push(HashedTake { hash, policy: self.numbered(policy, now), cost });
            }
        }
        hashed
    }
}

fn entry_takes<'a>(
    takes: &'a [HashedTake<'_>],
    held: &'a mut [ClaimedEntry],
) -> Vec<EntryTake<'a>> {
    let entry_take = |(it, held): (&'a HashedTake<'_>, &'a mut ClaimedEntry)| EntryTake {
        policy: it.policy.policy(),
        entry: &mut held.entry,
        cost: it.cost,
    };
    takes.iter().zip(held).map(entry_take).collect()
}
