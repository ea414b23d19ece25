//! Entries of keys, in slots or in the table beside them.

use sluicegate_core::{Entry, Timestamp};

use crate::{
    MemoryStore, NumberedPolicy,
    overflow::OverflowTable,
    segment::LockedSegment,
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

    /// Resets `key`. Whether it had state that had not recovered at `now`.
    pub fn reset(&self, key: &[u8], now: Timestamp) -> bool {
        let hash = self.hash(key);
        let mut locked = self.shard(hash).lock(hash);
        let Some((index, _)) = locked.find(hash) else { return false };
        let slot = locked.claim(index);
        let entry = self.take_entry(&mut locked, slot);
        locked.clear(index);
        self.budget.count_keys(1, 0);
        entry.is_some_and(|entry| !entry.lifetime(now).is_zero())
    }

    /// The slot for an entry, which becomes an overflow entry if it does not fit.
    pub(crate) fn slot_of(
        &self,
        locked: &mut LockedSegment<'_, OverflowTable>,
        hash: u64,
        entry: Entry,
        policy: &NumberedPolicy,
        now: Timestamp,
    ) -> Slot {
        if let Some((number, state)) = self.packed(&entry, policy, now) {
            policy.note_written(now);
            return Slot::simple(hash, number, state);
        }
        Slot::overflow(hash, locked.data_mut().put(entry, &self.budget))
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
        if slot.policy_number() != OVERFLOW {
            return self.simple_entry(slot);
        }
        locked.data_mut().take(slot.index(), &self.budget)
    }

    pub(crate) fn simple_entry(&self, slot: Slot) -> Option<Entry> {
        let policy = self.policies.get(slot.policy_number())?;
        let (_, codec) = policy.numbered()?;
        codec.decode(policy.policy(), slot.tat(), self.base())
    }
}
