//! Deciding one request: in the slot of its key by a compare-and-swap, or under the lock of the segment.

use sluicegate_core::{
    Clock, Decision, Entry, Operation, OperationError, Policy, PreparedPolicy, Timestamp, apply,
    apply_in_place,
};

use crate::{
    MemoryStore, NumberedPolicy,
    eviction::MAX_GROWTH,
    overflow::{Left, OverflowTable},
    segment::{HashedKey, KeyBuckets, LockedSegment},
    slot::{OVERFLOW, Slot, Tat},
    slot_codec::{SlotCodec, WindowCodec},
};

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
                        return Ok(gcra.decision(&take));
                    }
                    seen.wait_unmarked();
                    continue;
                }
                let tat = Tat::after(since, take.after, gcra.scale());
                if seen.replace(seen.slot().with_tat(tat)) {
                    policy.note_written(now);
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
                    return Some(windows.decision(open, &take, since));
                }
                seen.wait_unmarked();
                continue;
            }
            if seen.replace(seen.slot().with_tat(windows.encode(open.after(&take))?)) {
                policy.note_written(now);
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
        }
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
            // A change for which there may be no space is made on a copy, which replaces the entry if it fits.
            let on_copy = !operation.only_reads() && !self.has_room(locked.data(), slot, policy);
            // Claimed until it is written again, so that no other request decides on it until then.
            let index = found.map(|(index, _)| index);
            let slot = index.map(|index| locked.claim(index));
            let mut entry = slot.and_then(|slot| self.entry_of(&mut locked, slot, on_copy));
            let before = entry.as_ref().filter(|_| on_copy).map(|it| it.policy().clone());
            let decision = apply(policy.policy(), &mut entry, now, operation);
            let mut entry = entry.filter(|entry| !forgets(entry));
            if on_copy {
                entry = entry.map(|it| self.under_before(it, before.as_ref(), policy, now));
                let fits = |locked: &LockedSegment<'_, OverflowTable>| {
                    let growth = self.growth(locked.data(), slot, entry.as_ref(), policy, now);
                    growth == 0 || self.budget.fits(growth)
                };
                // Each sweep that finds something is paid for by the insertions before.
                while !fits(&locked) && self.sweep(&mut locked, now) > 0 {}
                if !fits(&locked) {
                    if let (Some(index), Some(slot)) = (index, slot) {
                        locked.put(index, slot);
                    }
                    return decision.map(|it| self.reject(operation, it));
                }
                slot.map(|slot| self.take_entry(&mut locked, slot));
            }
            let Some(entry) = entry else {
                if let Some(index) = index {
                    locked.clear(index);
                    self.budget.count_keys(1, 0);
                }
                return decision;
            };
            let slot = self.slot_of(&mut locked, (hash, slot), entry, policy, now);
            let Some(index) = index else {
                if self.insert(&mut locked, hash, slot, now) {
                    return decision;
                }
                self.take_entry(&mut locked, slot);
                if !self.make_space(shard, &mut locked, hash, now) {
                    return decision.map(|it| self.reject(operation, it));
                }
                // A split may have moved the key's range to another segment.
                drop(locked);
                locked = shard.lock(hash);
                continue;
            };
            locked.put(index, slot);
            return decision;
        }
    }

    /// Keeps the idle entry of a key, which mostly holds again soon, in place of that of another key. A key with an idle
    /// entry has recovered.
    fn keep_idle(&self, locked: &mut LockedSegment<'_, OverflowTable>, hash: u64, index: u64) {
        if let Some((hash, index)) = locked.data_mut().keep_idle(hash, index)
            && let Some((at, seen)) = locked.find(hash)
            && seen.slot().policy_number() == OVERFLOW
            && seen.slot().index() == index
        {
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
