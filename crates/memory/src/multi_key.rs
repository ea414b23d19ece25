//! Requests on several keys, all or nothing. All their slots are claimed while they are decided.
//!
//! The segments of the keys are locked in the order of their addresses, so that two takes on the same segments do not
//! deadlock. Space for new keys is made before the decision, so that nothing has to be undone.

use std::borrow::Cow;

use sluicegate_core::{
    Answer, Decision, Entry, EntryOperation, KeyedOperation, Operation, OperationError, Request,
    Timestamp, apply, apply_all,
};

use crate::{
    MemoryStore, NumberedPolicy, WhenFull,
    eviction::max_growth,
    overflow::OverflowTable,
    segment::{LockedSegment, SlotIndex},
    slot::Slot,
};

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
