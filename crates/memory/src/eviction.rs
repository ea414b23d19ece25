//! Space for new keys: recovered slots are reclaimed first, then the table grows; at its bound it rejects new
//! keys. A live key is never evicted for another.

use std::{sync::atomic::Ordering, time::Duration};

use sluicegate_core::{Decision, Operation, Outcome, Retry, Timestamp, as_micros};

use crate::{
    MemoryStore, NumberedPolicy, WhenFull,
    bits::narrow,
    overflow::{self, OverflowTable},
    segment::{LockedSegment, SEGMENT_BYTES, SLOTS, SlotIndex},
    shard::Shard,
    slot::{OVERFLOW, Slot},
};

/// `retry_after` of requests denied because the table is full.
const TABLE_FULL_RETRY: Duration = Duration::from_secs(1);
/// Slots that are checked for recovered states with each rejected key.
const SWEEP_SLOTS: usize = 32;
/// Maximum number of bytes that a change adds to a key, with its policy; logs and holds aside, which double their memory,
/// and may be copied for a policy with more logs.
pub(crate) const MAX_GROWTH: usize = 4096;

/// Upper bound on the bytes that a change of the entry in this slot adds under `policy`.
pub(crate) fn max_growth(
    data: &OverflowTable,
    slot: Option<Slot>,
    policy: &NumberedPolicy,
) -> usize {
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
    pub(crate) fn has_room(
        &self,
        data: &OverflowTable,
        slot: Option<Slot>,
        policy: &NumberedPolicy,
    ) -> bool {
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
        }
        split
    }

    /// The decision on a request that changes nothing, because the full table has no space for the change. `decision` is
    /// that with space.
    pub(crate) fn reject(&self, operation: Operation, mut decision: Decision) -> Decision {
        self.budget.count_table_full();
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
