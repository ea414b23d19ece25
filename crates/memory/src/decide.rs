//! How one request is decided: in the slot of its key by a compare-and-swap, or under the segment's
//! lock.

use sluicegate_core::{Decision, Entry, Operation, ReserveError, Timestamp, apply};

use crate::{
    MemoryStore, Rule,
    large::Large,
    segment::Locked,
    shard::Part,
    slot::{LARGE, Slot, Tat},
};

impl MemoryStore {
    /// The short way: a take under a rule whose states fit in a slot, of a key whose state is in
    /// one. A denial writes nothing; what is taken is one compare-and-swap. For `GUESS`, see
    /// [`Lines::peek`](crate::segment::Lines::peek).
    #[inline(always)]
    pub(crate) fn ask_hashed<const GUESS: bool, E: From<ReserveError>>(
        &self,
        hash: u64,
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, E> {
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
        Ok(self.ask_locked(hash, rule, now, operation)?)
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
            let forgets = |entry: &Entry| self.one_clock && entry.lifetime(now).is_zero();
            // What is beside the table and stays there changes where it is.
            if let Some((place, seen)) = found
                && seen.slot().rule() == LARGE
                && rule.numbered().is_none()
            {
                let index = seen.slot().index();
                let change = |entry: &mut Option<Entry>| {
                    let decision = apply(rule.policy(), entry, now, operation);
                    entry.take_if(|entry| forgets(entry));
                    decision
                };
                let kept = &mut locked.kept_mut().kept;
                if let Some((decision, stays)) =
                    kept.change(index, rule.policy(), &self.budget, change)
                {
                    if !stays {
                        locked.clear(place);
                        self.budget.count_keys(1, 0);
                    }
                    return decision;
                }
            }
            // In our hands until it is put back, so that nobody decides on it meanwhile.
            let found = found.map(|(place, _)| place);
            let mut entry = found.and_then(|place| {
                let slot = locked.claim(place);
                self.take_entry(&mut locked, slot)
            });
            let decision = apply(rule.policy(), &mut entry, now, operation);
            match (found, entry.filter(|entry| !forgets(entry))) {
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
    pub(crate) fn slot_of(
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
    pub(crate) fn take_entry(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        slot: Slot,
    ) -> Option<Entry> {
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
