//! Room for what is to be kept: what has recovered goes first, then the table grows, and where the
//! bound is reached a new key is turned away. A live key is never dropped for another.

use std::{sync::atomic::Ordering, time::Duration};

use sluicegate_core::{
    Decision, Entry, Operation, Outcome, Policy, ReserveError, Retry, Timestamp, apply,
};

use crate::{
    MemoryStore, Rule, WhenFull,
    large::Large,
    segment::{BYTES, Locked, Place, SLOTS},
    shard::{Part, Shard},
    slot::{LARGE, Slot},
    store::narrow,
};

/// What a request is told to wait that was denied for lack of room: nothing is known of its key.
const NO_ROOM_RETRY: Duration = Duration::from_secs(1);
/// Slots looked at, for what has recovered, for each key that is turned away.
const SWEPT: usize = 32;

impl MemoryStore {
    /// Puts in a key that is not there, if one of its slots is free or has recovered.
    pub(crate) fn insert(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        hash: u64,
        slot: Slot,
        now: Timestamp,
    ) -> bool {
        let mut given_up = 0;
        let inserted = locked.insert(hash, slot, |part, slot| {
            let recovered = self.give_up(&mut part.kept, slot, now);
            given_up += usize::from(recovered);
            recovered
        });
        if inserted {
            self.budget.count_keys(given_up, 1);
        } else {
            self.budget.count_keys(given_up, 0);
        }
        inserted
    }

    /// Takes a slot for a key that is not there into one's hands, if one is free or has recovered.
    pub(crate) fn reserve(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        hash: u64,
        now: Timestamp,
    ) -> Option<Place> {
        let mut given_up = 0;
        let reserved = locked.reserve(hash, |part, slot| {
            let recovered = self.give_up(&mut part.kept, slot, now);
            given_up += usize::from(recovered);
            recovered
        });
        self.budget.count_keys(given_up, usize::from(reserved.is_some()));
        reserved
    }

    /// Whether a slot has recovered; what is kept of it elsewhere is then dropped.
    fn give_up(&self, kept: &mut Large, slot: Slot, now: Timestamp) -> bool {
        if !self.one_clock {
            return false;
        }
        if slot.rule() != LARGE {
            return slot.tat().has_come(now.as_micros().saturating_sub(self.base().as_micros()));
        }
        if !kept.get(slot.index()).is_none_or(|entry| entry.lifetime(now).is_zero()) {
            return false;
        }
        kept.take(slot.index(), &self.budget);
        true
    }

    /// Whether a request that adds must be denied for lack of space: the bound is reached, or it was reached when
    /// the state file was read and this key may be one that was dropped then.
    pub(crate) fn is_full(
        &self,
        locked: &mut Locked<'_, Part<Large>>,
        (hash, found): (u64, Option<Slot>),
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> bool {
        if found.is_none() && self.may_be_dropped(hash, now).is_some() {
            return true;
        }
        if self.budget.has_room(0) || self.stays_in_slot(found, rule, now, operation) {
            return false;
        }
        // Each look that finds something was paid for when that was put in.
        while self.sweep(locked, now) > 0 {
            if self.budget.has_room(0) {
                return false;
            }
        }
        // What is kept already may go on, unless it is a log that this request would lengthen.
        found.is_none_or(|slot| {
            let entry = locked.kept().kept.get(slot.index()).filter(|_| slot.rule() == LARGE);
            let lengthens = |entry: &Entry| {
                entry.grows() && entry.usage(now).all(|(_, usage)| usage.remaining > 0)
            };
            entry.is_none_or(lengthens)
        })
    }

    /// Whether all that `operation` leaves behind fits in a slot: it then takes no memory. A debt
    /// beyond the burst, from a charge or a borrower, does not.
    fn stays_in_slot(
        &self,
        found: Option<Slot>,
        rule: &Rule,
        now: Timestamp,
        operation: Operation,
    ) -> bool {
        let Some((_, form)) = rule.numbered() else { return false };
        let mut entry = match found {
            Some(slot) if slot.rule() == LARGE => return false,
            Some(slot) => self.simple_entry(slot),
            None => None,
        };
        let _ = apply(rule.policy(), &mut entry, now, operation);
        entry.is_none_or(|entry| form.keep(&entry, self.base(), now).is_some())
    }

    /// Gives up what has recovered of the next few slots, and tells how many that were. Looking at
    /// all of them for every key of a flood would be a stop of its own.
    fn sweep(&self, locked: &mut Locked<'_, Part<Large>>, now: Timestamp) -> usize {
        let gone =
            locked.take_out_some(SWEPT, |part, slot| self.give_up(&mut part.kept, slot, now));
        self.budget.count_keys(gone, 0);
        gone
    }

    /// Makes room in the segment of a key that found none: what has recovered goes, or half of the
    /// segment does. False where neither helps.
    pub(crate) fn make_room(
        &self,
        shard: &Shard<Large>,
        locked: &mut Locked<'_, Part<Large>>,
        hash: u64,
        now: Timestamp,
    ) -> bool {
        if !self.budget.has_room(BYTES) {
            self.sweep(locked, now);
            return false;
        }
        let gone = locked.take_out(|part, slot| self.give_up(&mut part.kept, slot, now)).len();
        self.budget.count_keys(gone, 0);
        if gone >= SLOTS / 8 {
            return true;
        }
        if locked.slots().count() < SLOTS / 4 {
            // Keys gather in few buckets: chance does not do that.
            let seed = self.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            if shard.reseed(hash, locked, narrow(self.hasher.hash_one(seed))) {
                return true;
            }
        }
        let split = shard.split(hash, locked, |kept, moving| kept.split_off(moving, &self.budget));
        if split {
            self.budget.resize(0, BYTES);
        }
        split
    }

    /// The answer to a request for which there is no room.
    pub(crate) fn turn_away(
        &self,
        hash: u64,
        policy: &Policy,
        now: Timestamp,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        self.budget.count_turned_away();
        let mut decision = apply(policy, &mut None, now, operation)?;
        // A charge has been spent already, and cannot be denied.
        let denies = self.when_full == WhenFull::Deny && !matches!(operation, Operation::Charge(_));
        if denies && decision.allowed() {
            let retry = self.may_be_dropped(hash, now).unwrap_or(NO_ROOM_RETRY);
            decision.outcome = Outcome::Deny { retry: Retry::After(retry) };
            decision.remaining = 0;
        }
        Ok(decision)
    }

    /// How long a key that is not in the table must be denied, since it may be one that was dropped and is still
    /// limited. `None`: it was not dropped, has recovered, or new keys are allowed without room.
    #[inline]
    pub(crate) fn may_be_dropped(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        let dropped = self.dropped.as_ref()?;
        (self.when_full == WhenFull::Deny).then(|| dropped.remaining(hash, now))?
    }
}
