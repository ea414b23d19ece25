//! Space for new keys: recovered slots are reclaimed first, then the table grows; at its bound it rejects new
//! keys. A live key is never evicted for another.

use std::{sync::atomic::Ordering, time::Duration};

use sluicegate_core::{Decision, Entry, Outcome, Policy, Retry, Timestamp, as_micros};

use crate::{
    MemoryStore, NumberedPolicy, WhenFull,
    bits::narrow,
    change::Change,
    overflow::{self, OverflowTable},
    segment::{LockedSegment, SEGMENT_BYTES, SLOTS, SlotIndex},
    shard::Shard,
    slot::{OVERFLOW, Slot},
};

/// `retry_after` of requests denied because the table is full.
const TABLE_FULL_RETRY: Duration = Duration::from_secs(1);
/// Slots that are checked for recovered states with each rejected key.
const SWEEP_SLOTS: usize = 32;
/// Maximum number of bytes that one request adds to an entry, with its spare capacity aside: those of an event or a hold in each of
/// eight limits.
const LENGTHENED: usize = 512;

/// The overflow entry of a slot, unless it is idle.
fn entry_of(data: &OverflowTable, found: Option<Slot>) -> Option<&Entry> {
    data.get(found.filter(|slot| slot.policy_number() == OVERFLOW)?.index())
}

/// Bytes by which the entry of a key may grow under another policy.
pub(crate) fn copied_size(
    data: &OverflowTable,
    found: Option<Slot>,
    policy: &NumberedPolicy,
) -> usize {
    entry_of(data, found).map_or(0, |entry| overflow::copied_size(entry, policy.policy()))
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
        let mut reclaimed = 0;
        let vacant = locked.vacate(hash, |data, slot| {
            let recovered = self.reclaim_if_recovered(data, slot, now);
            reclaimed += usize::from(recovered);
            recovered
        });
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
        if !data.get(slot.index()).is_none_or(|entry| entry.lifetime(now).is_zero()) {
            return false;
        }
        data.take(slot.index(), &self.budget);
        true
    }

    /// Whether a request that adds usage must be denied because the table is full: it has reached its bound, or it
    /// had when the state file was read and this key may have been dropped then. `pending`: bytes that the request adds
    /// by other keys.
    pub(crate) fn is_full<C: Change>(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        (hash, found): (u64, Option<Slot>),
        policy: &NumberedPolicy,
        now: Timestamp,
        change: C,
        pending: usize,
    ) -> bool {
        if found.is_none() && self.may_be_dropped(hash, now).is_some() {
            return true;
        }
        let copied = copied_size(locked.data(), found, policy);
        let pending = pending + copied;
        if self.budget.fits(pending) || self.stays_in_slot(found, policy, now, change) {
            return false;
        }
        // Each sweep that finds something is paid for by the insertions before.
        while self.sweep(locked, now) > 0 {
            if self.budget.fits(pending) {
                return false;
            }
        }
        // Existing keys are decided as usual, except for a log or a ledger that this request would lengthen, or copy.
        found.is_none_or(|slot| {
            let entry = entry_of(locked.data(), Some(slot));
            let lengthens = |entry: &Entry| {
                change.lengthens(entry, now)
                    && entry.usage(now).all(|(_, usage)| usage.remaining > 0)
            };
            copied > 0 || entry.is_none_or(lengthens)
        })
    }

    /// Bytes that a request adds by a key, or a few more. `are_few`: those of an entry or an event are not worth counting.
    pub(crate) fn growth<C: Change>(
        &self,
        data: &OverflowTable,
        found: Option<Slot>,
        policy: &NumberedPolicy,
        now: Timestamp,
        change: C,
        are_few: bool,
    ) -> usize {
        let copied = copied_size(data, found, policy);
        if are_few {
            return copied;
        }
        if entry_of(data, found).is_some() {
            return copied + LENGTHENED;
        }
        if self.stays_in_slot(found, policy, now, change) {
            return 0;
        }
        let mut entry = None;
        let _ = change.apply(policy.policy(), &mut entry, now);
        entry.as_ref().map_or(0, overflow::size_of_new)
    }

    /// Whether the state after `change` fits in a slot, so that it takes no memory. A debt beyond the burst, from
    /// a charge or a borrower, does not.
    fn stays_in_slot<C: Change>(
        &self,
        found: Option<Slot>,
        policy: &NumberedPolicy,
        now: Timestamp,
        change: C,
    ) -> bool {
        let Some((_, codec)) = policy.numbered() else { return false };
        let mut entry = match found {
            Some(slot) if slot.policy_number() == OVERFLOW => return false,
            Some(slot) => self.simple_entry(slot),
            None => None,
        };
        let _ = change.apply(policy.policy(), &mut entry, now);
        entry.is_none_or(|entry| codec.encode(&entry, self.base(), now).is_some())
    }

    /// Reclaims the recovered ones of the next few slots, and returns their number. Checking all slots for every key
    /// of a flood would itself block the segment.
    fn sweep(&self, locked: &mut LockedSegment<'_, OverflowTable>, now: Timestamp) -> usize {
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
        let split = shard.split(hash, locked, |data, moving| data.split_off(moving, &self.budget));
        if split {
            self.budget.resize(0, SEGMENT_BYTES);
        }
        split
    }

    /// The decision for a request on a new key that the full table rejects.
    pub(crate) fn reject_new_key<C: Change>(
        &self,
        hash: u64,
        policy: &Policy,
        now: Timestamp,
        change: C,
    ) -> Result<Decision, C::Error> {
        self.budget.count_table_full();
        let mut decision = change.apply(policy, &mut None, now)?;
        let denies = self.when_full == WhenFull::Deny && !change.has_happened();
        if denies && decision.allowed() {
            let retry = self.may_be_dropped(hash, now).unwrap_or(TABLE_FULL_RETRY);
            decision.outcome = Outcome::Deny { retry: Retry::After(retry) };
            decision.remaining = 0;
        }
        Ok(decision)
    }

    /// How long a key that is not in the table must be denied because it may have been dropped and be limited still.
    /// `None`: it was not dropped, has recovered, or the full table allows new keys.
    #[inline]
    pub(crate) fn may_be_dropped(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        let dropped = self.dropped.as_ref()?;
        (self.when_full == WhenFull::Deny).then(|| dropped.remaining(hash, now))?
    }
}
