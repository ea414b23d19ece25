//! How one request is decided: in the slot of its key by a compare-and-swap, or under the segment's
//! lock.

use sluicegate_core::{Decision, Entry, Operation, ReserveError, Timestamp, apply};

use crate::{
    MemoryStore, Rule,
    form::{Form, Windows},
    large::Large,
    segment::Locked,
    shard::Part,
    slot::{LARGE, Slot, Tat},
};

impl MemoryStore {
    /// The short way: a take under a rule whose states fit in a slot, of a key whose state is in
    /// one. A denial writes nothing; what is taken is one compare-and-swap and a write. For `GUESS`, see
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
            && let Some((number, form)) = rule.numbered()
            && let Some(since) = self.since_base(now)
        {
            let gcra = match form {
                Form::Tat(gcra) => gcra,
                Form::Windows(windows) => {
                    let times = (now, since);
                    if let Some(decision) =
                        self.count::<GUESS>(hash, rule, (number, windows), times, cost)
                    {
                        return Ok(decision);
                    }
                    return Ok(self.ask_locked(hash, rule, now, operation)?);
                }
            };
            let shard = self.shard(hash);
            while let Some(seen) = shard.lines(hash).peek::<GUESS>(hash, number)
                && let Some(take) = gcra.try_take(seen.slot().tat().debt(since, gcra.scale()), cost)
            {
                if !take.allowed {
                    if seen.is_whole() {
                        return Ok(gcra.decision(&take));
                    }
                    seen.settle();
                    continue;
                }
                let tat = Tat::after(since, take.after, gcra.scale());
                if seen.replace(seen.slot().at(tat)) {
                    rule.note_written(now);
                    return Ok(gcra.decision(&take));
                }
            }
        }
        Ok(self.ask_locked(hash, rule, now, operation)?)
    }

    /// The short way in windows.
    fn count<const GUESS: bool>(
        &self,
        hash: u64,
        rule: &Rule,
        (number, windows): (u64, &Windows),
        (now, since): (Timestamp, u64),
        cost: u32,
    ) -> Option<Decision> {
        let shard = self.shard(hash);
        loop {
            let seen = shard.lines(hash).peek::<GUESS>(hash, number)?;
            let Some(open) = windows.open(Some(seen.slot().tat()), now, since) else {
                if seen.settle() {
                    continue;
                }
                return None;
            };
            let take = windows.try_take(open, cost);
            if !open.counts(&take) {
                if seen.is_whole() {
                    return Some(windows.decision(open, &take, since));
                }
                seen.settle();
                continue;
            }
            if seen.replace(seen.slot().at(windows.write(open.after(&take))?)) {
                rule.note_written(now);
                return Some(windows.decision(open, &take, since));
            }
        }
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
        let (number, form) = rule.numbered()?;
        let since = self.since_set_base(now)?;
        let mut locked = self.shard(hash).lock(hash);
        if locked.find(hash).is_some() || self.may_be_dropped(hash, now).is_some() {
            return None;
        }
        let (decision, state) = match form {
            Form::Tat(gcra) => {
                let take = gcra.try_take(0, cost)?;
                let after = take.allowed.then_some(take.after);
                let state = after.map(|after| Tat::new(since, after, gcra.scale()));
                (gcra.decision(&take), state)
            }
            Form::Windows(windows) => {
                let open = windows.open(None, now, since)?;
                let take = windows.try_take(open, cost);
                let state = open.counts(&take).then(|| windows.write(open.after(&take)));
                (windows.decision(open, &take, since), state)
            }
        };
        if let Some(state) = state {
            if !self.insert(&mut locked, hash, Slot::simple(hash, number, state?), now) {
                return None;
            }
            rule.note_written(now);
        }
        Some(decision)
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
            if adds && self.is_full(&mut locked, (hash, found), rule, now, operation) {
                return self.turn_away(hash, rule.policy(), now, operation);
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
                            return self.turn_away(hash, rule.policy(), now, operation);
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

    /// The slot for an entry, which is kept beside the table where it does not fit.
    pub(crate) fn slot_of(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        hash: u64,
        entry: Entry,
        rule: &Rule,
        now: Timestamp,
    ) -> Slot {
        if let Some((number, state)) = self.packed(&entry, rule, now) {
            rule.note_written(now);
            return Slot::simple(hash, number, state);
        }
        Slot::large(hash, locked.kept_mut().kept.put(entry, &self.budget))
    }

    /// The number of the rule and the state of an entry, where a slot can hold it.
    pub(crate) fn packed(&self, entry: &Entry, rule: &Rule, now: Timestamp) -> Option<(u64, Tat)> {
        // An entry may still be under an older policy, where nothing was stored under this one.
        let (number, form) = rule.numbered().filter(|_| entry.policy().is(rule.policy()))?;
        Some((number, form.keep(entry, self.base(), now)?))
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
        let (_, form) = rule.numbered()?;
        form.entry(rule.policy(), slot.tat(), self.base())
    }
}
