//! Entries of keys, in slots or in the table beside them.

use sluicegate_core::{Entry, Policy, Timestamp};

use crate::{
    MemoryStore, NumberedPolicy,
    overflow::OverflowTable,
    segment::{LockedSegment, SlotIndex, SlotRef},
    slot::{OVERFLOW, Slot, Tat},
};

impl MemoryStore {
    /// Calls `read` on the entry of `key`; `None` if nothing is stored.
    ///
    /// The entry may have recovered: check its [`lifetime`](Entry::lifetime). `read` is called under a lock, and must
    /// not call the store.
    pub fn with_entry<R>(&self, key: &[u8], read: impl FnOnce(&Entry) -> R) -> Option<R> {
        self.with_entry_of(self.hash(key), read)
    }

    /// As [`with_entry`](Self::with_entry), for the key with this hash.
    pub(crate) fn with_entry_of<R>(&self, hash: u64, read: impl FnOnce(&Entry) -> R) -> Option<R> {
        let locked = self.shard(hash).lock(hash);
        let slot = locked.find(hash)?.1.slot();
        match slot.policy_number() {
            OVERFLOW => locked.data().get(slot.index()).map(read),
            _ => self.simple_entry(slot).as_ref().map(read),
        }
    }

    /// Calls `read` on the entry of `key`, after its expired holds are charged; `None` if nothing is stored, or it has
    /// recovered at `now`.
    pub(crate) fn with_live_entry<R>(
        &self,
        key: &[u8],
        now: Timestamp,
        read: impl FnOnce(&Entry) -> R,
    ) -> Option<R> {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let (_, seen) = self.find_charged(&mut locked, hash, now)?;
        let is_live = |entry: &&Entry| !entry.is_over(now);
        match seen.slot() {
            slot if slot.policy_number() == OVERFLOW => {
                locked.data().get(slot.index()).filter(is_live).map(read)
            }
            slot => self.simple_entry(slot).as_ref().filter(is_live).map(read),
        }
    }

    /// Finds the slot of a key. Before that, the holds that have expired are charged once, for all later operations.
    pub(crate) fn find_charged<'a>(
        &self,
        locked: &mut LockedSegment<'a, OverflowTable>,
        hash: u64,
        now: Timestamp,
    ) -> Option<(SlotIndex, SlotRef<'a>)> {
        let (at, seen) = locked.find(hash)?;
        let slot = seen.slot();
        // Another clock may be earlier.
        if self.one_clock
            && slot.policy_number() == OVERFLOW
            && !locked.data_mut().charge_expiries(slot.index(), now, &self.budget)
        {
            locked.clear(at);
            locked.data_mut().take(slot.index(), &self.budget);
            self.budget.count_keys(1, 0);
            return None;
        }
        Some((at, seen))
    }

    /// Resets `key`. Whether it had state that had not recovered at `now`.
    pub fn reset(&self, key: &[u8], now: Timestamp) -> bool {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let Some((index, _)) = locked.find(hash) else { return false };
        let slot = locked.claim(index);
        let entry = self.take_entry(&mut locked, slot);
        locked.clear(index);
        self.budget.count_keys(1, 0);
        entry.is_some_and(|entry| !entry.is_over(now))
    }

    /// The slot for an entry that was in the slot `before`. It becomes an overflow entry if it does not fit.
    pub(crate) fn slot_of(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        (hash, before): (u64, Option<Slot>),
        entry: Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Slot {
        match self.simple_slot((hash, before), &entry, policy, now) {
            Some(slot) => {
                policy.note_written(now);
                slot
            }
            None => Slot::overflow(hash, locked.data_mut().put(entry, &self.budget)),
        }
    }

    /// The slot that holds an entry by itself, if it fits, or did before and has not changed.
    fn simple_slot(
        &self,
        (hash, before): (u64, Option<Slot>),
        entry: &Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Option<Slot> {
        if let Some((number, state)) = self.packed(entry, policy, now) {
            return Some(Slot::simple(hash, number, state));
        }
        let before = before.filter(|slot| slot.policy_number() != OVERFLOW)?;
        if entry.open_holds() > 0 {
            return None;
        }
        (self.simple_entry(before).as_ref() == Some(entry)).then_some(before)
    }

    /// The entry of a copy that was changed, under the policy that it had `before` if that is equal and the entry does not fit
    /// in a slot: then it takes no memory for another.
    pub(crate) fn under_before(
        &self,
        entry: Entry,
        before: Option<&Policy>,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Entry {
        match before {
            Some(before) if self.packed(&entry, policy, now).is_none() => entry.under(before),
            _ => entry,
        }
    }

    /// Bytes by which the table grows if `entry` replaces what the slot `before` holds.
    pub(crate) fn growth(
        &self,
        data: &OverflowTable,
        before: Option<Slot>,
        entry: Option<&Entry>,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> usize {
        let is_simple =
            |entry: &&Entry| self.simple_slot((0, before), entry, policy, now).is_some();
        let overflow = before.filter(|slot| slot.policy_number() == OVERFLOW);
        let entry = entry.filter(|entry| !is_simple(entry));
        entry.map_or(0, |entry| data.growth(overflow.map(Slot::index), entry))
    }

    /// The number of the policy and the encoded state, if a slot can hold the entry.
    pub(crate) fn packed(
        &self,
        entry: &Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Option<(u64, Tat)> {
        // The entry may still be under an older policy, if the operation stored nothing.
        let (number, codec) =
            policy.numbered().filter(|_| entry.policy().ptr_eq(policy.policy()))?;
        Some((number, codec.encode(entry, self.base(), now)?))
    }

    /// The entry of a slot. An overflow entry is removed from its table.
    pub(crate) fn take_entry(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        slot: Slot,
    ) -> Option<Entry> {
        self.entry_of(locked, slot, false)
    }

    /// The entry of a slot, or a copy. An overflow entry that is not copied is removed from its table.
    pub(crate) fn entry_of(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        slot: Slot,
        as_copy: bool,
    ) -> Option<Entry> {
        match slot.policy_number() {
            OVERFLOW if as_copy => locked.data_mut().copy(slot.index(), &self.budget),
            OVERFLOW => locked.data_mut().take(slot.index(), &self.budget),
            _ => self.simple_entry(slot),
        }
    }

    pub(crate) fn simple_entry(&self, slot: Slot) -> Option<Entry> {
        let policy = self.policies.get(slot.policy_number())?;
        let (_, codec) = policy.numbered()?;
        codec.decode(policy.policy(), slot.tat(), self.base())
    }
}
