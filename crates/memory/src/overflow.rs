//! Entries of a segment that do not fit in a slot, and their memory.
//!
//! The bytes counted are those that the allocator uses, so that the bound of a store bounds the memory of its
//! process. Entries share their policy: each segment counts it once, from the first entry under it to the last.

use std::collections::HashMap;

use ahash::RandomState;
use slab::Slab;
use sluicegate_core::{Entry, Limit, Policy, Timestamp, reached};

use crate::{
    budget::Budget,
    slot::{OVERFLOW, Slot, narrow},
};

/// Entries by index, of one segment.
#[derive(Debug, Default)]
pub(crate) struct OverflowTable {
    /// None is `None`, except while it changes.
    entries: Slab<Option<Entry>>,
    /// Number of entries under each policy, by the address of the policy.
    policies: HashMap<usize, u32, RandomState>,
    /// The hash of the key whose entry has become idle last, and the index of the entry.
    idle: Option<(u64, u64)>,
}

/// The remainder of an entry after a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    InUse,
    /// The entry is idle: only a later hold uses its memory.
    Idle,
    Nothing,
}

/// Bytes of a slot of the slab: an entry, or the index of the next free slot.
const SLOT_BYTES: usize = size_of::<Result<Option<Entry>, usize>>();

/// Maximum number of bytes of an idle entry outside its slot.
const MAX_IDLE_SIZE: usize = 512;

/// Capacity that is kept even if no slot is used.
const MIN_CAPACITY: usize = 16;

impl OverflowTable {
    /// The entry at `index`, unless it is idle.
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(narrow(index))?.as_ref().filter(|entry| !entry.is_idle())
    }

    /// Charges the holds of the entry at `index` that have expired, unless the result has no space. `false`: nothing of the
    /// entry is left in use.
    pub(crate) fn charge_expiries(&mut self, index: u64, now: Timestamp, budget: &Budget) -> bool {
        let Some(Some(entry)) = self.entries.get_mut(narrow(index)) else { return true };
        if !entry.has_expired_holds(now) {
            return true;
        }
        let Some(charged) = entry.after_expiries(now) else { return false };
        let (before, after) = (size(entry), size(&charged));
        if after <= before || budget.fits(after - before) {
            *entry = charged;
            budget.resize(before, after);
        } else {
            reached!(ExpiredHoldsHaveNoSpace);
        }
        true
    }

    /// Checks the number of entries under each policy, if they are few.
    #[cfg(debug_assertions)]
    pub(crate) fn check(&self) {
        const CHECKED: usize = 64;
        if self.entries.len() > CHECKED {
            return;
        }
        let counted: u32 = self.policies.values().sum();
        assert_eq!(counted as usize, self.entries.len(), "each entry counts its policy once");
        for (_, entry) in &self.entries {
            let entry = entry.as_ref().expect("no entry is empty between two operations");
            assert!(
                self.policies.contains_key(&address(entry.policy())),
                "a policy is not counted"
            );
        }
    }

    /// Bytes of the table with all that its entries hold.
    #[cfg(debug_assertions)]
    pub(crate) fn all_bytes(&self) -> usize {
        let mut policies = std::collections::HashMap::new();
        let entries = self.entries.iter().filter_map(|(_, entry)| entry.as_ref());
        let own = entries.inspect(|entry| {
            _ = policies.insert(address(entry.policy()), policy_size(entry.policy()))
        });
        let held: usize = own.map(size).sum();
        assert_eq!(policies.len(), self.policies.len(), "a policy is counted without an entry");
        self.own_size() + held + policies.values().sum::<usize>()
    }

    /// Number of entries, with idle ones.
    #[cfg(debug_assertions)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Inserts an entry, and returns its index.
    pub(crate) fn put(&mut self, entry: Entry, budget: &Budget) -> u64 {
        let before = self.own_size();
        debug_assert!(!entry.is_idle(), "an idle entry is inserted");
        let own = self.policies.entry(address(entry.policy())).or_insert(0);
        *own += 1;
        let policy = if *own == 1 { policy_size(entry.policy()) } else { 0 };
        let taken = size(&entry) + policy;
        if self.entries.len() == self.entries.capacity() {
            // Doubling would leave half of the slots unused, and paid for.
            self.entries.reserve_exact(self.entries.len() / 8 + 4);
        }
        let index = self.entries.insert(Some(entry));
        budget.resize(before, self.own_size() + taken);
        index as u64
    }

    /// A copy of the entry at `index`, unless it is idle. It shares the events of long logs.
    pub(crate) fn copy(&mut self, index: u64, budget: &Budget) -> Option<Entry> {
        let entry = self.entries.get_mut(narrow(index))?.as_mut()?;
        let before = size(entry);
        let copy = (!entry.is_idle()).then(|| entry.share());
        budget.resize(before, size(entry));
        copy
    }

    /// Bytes by which the table grows if `after` replaces the entry at `before`, or is new. Spare slots are not counted.
    pub(crate) fn growth(&self, before: Option<u64>, after: &Entry) -> usize {
        let before = before.and_then(|index| self.entries.get(narrow(index))?.as_ref());
        let slot = if before.is_some() { 0 } else { SLOT_BYTES };
        let policy = if self.policies.contains_key(&address(after.policy())) {
            0
        } else {
            policy_size(after.policy())
        };
        (slot + policy + size(after)).saturating_sub(before.map_or(0, size))
    }

    /// Removes the entry at `index`, and returns it, unless it is idle.
    pub(crate) fn take(&mut self, index: u64, budget: &Budget) -> Option<Entry> {
        self.remove(index, budget).filter(|entry| !entry.is_idle())
    }

    fn remove(&mut self, index: u64, budget: &Budget) -> Option<Entry> {
        let entry = self.entries.try_remove(narrow(index))??;
        self.note_gone(size(&entry), entry.policy(), budget);
        Some(entry)
    }

    /// The entry at `index`, to be changed in place, and its size; `None` if it is not under this very `policy`. The change
    /// leaves an entry under that policy, or none, and is followed by [`note_changed`](Self::note_changed).
    pub(crate) fn entry_mut(
        &mut self,
        index: u64,
        policy: &Policy,
    ) -> Option<(&mut Option<Entry>, usize)> {
        let entry = self.entries.get_mut(narrow(index))?;
        let is_under = |entry: &&Entry| address(entry.policy()) == address(policy);
        let size = size(entry.as_ref().filter(is_under)?);
        Some((entry, size))
    }

    /// Counts a change of [`entry_mut`](Self::entry_mut), and returns the remainder.
    pub(crate) fn note_changed(
        &mut self,
        index: u64,
        before: usize,
        policy: &Policy,
        budget: &Budget,
    ) -> Left {
        let entry = self.entries.get(narrow(index)).and_then(Option::as_ref);
        // The capacity of the table is not kept for an idle entry alone.
        let is_large = self.entries.len() == 1 && self.entries.capacity() > MIN_CAPACITY;
        let left = entry.map(|entry| (size(entry), entry.is_idle()));
        if let Some((after, is_idle)) =
            left.filter(|&(after, is_idle)| !is_idle || after <= MAX_IDLE_SIZE && !is_large)
        {
            budget.resize(before, after);
            #[cfg(debug_assertions)]
            self.check();
            return if is_idle { Left::Idle } else { Left::InUse };
        }
        self.entries.remove(narrow(index));
        self.note_gone(before, policy, budget);
        Left::Nothing
    }

    /// Keeps the idle entry of the key with this hash. Returns the hash of the key and the index of the entry that
    /// was kept before it, if that is idle still.
    pub(crate) fn keep_idle(&mut self, hash: u64, index: u64) -> Option<(u64, u64)> {
        let before = self.idle.replace((hash, index)).filter(|before| before.1 != index)?;
        let entry = self.entries.get(narrow(before.1)).and_then(Option::as_ref);
        let is_idle = entry.is_some_and(Entry::is_idle);
        reached!(IdleEntryIsReplaced if is_idle);
        is_idle.then_some(before)
    }

    /// Counts an entry that has been removed; `held`: the bytes that it held outside the slot.
    fn note_gone(&mut self, held: usize, policy: &Policy, budget: &Budget) {
        let mut before = self.own_size() + held;
        let address = address(policy);
        debug_assert!(
            self.policies.contains_key(&address),
            "the policy of an entry is not counted"
        );
        if let Some(own) = self.policies.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                self.policies.remove(&address);
                before += policy_size(policy);
            }
        }
        if self.entries.is_empty() && self.entries.capacity() > MIN_CAPACITY {
            *self = Self::default();
        }
        budget.resize(before, self.own_size());
        #[cfg(debug_assertions)]
        self.check();
    }

    /// Frees the capacity beyond the slots in use.
    pub(crate) fn shrink(&mut self, budget: &Budget) {
        let before = self.own_size();
        self.entries.shrink_to_fit();
        budget.resize(before, self.own_size());
    }

    /// Moves the entries of `slots` to a new table, and updates their indexes.
    pub(crate) fn split_off<P>(&mut self, slots: &mut [(P, Slot)], budget: &Budget) -> Self {
        let mut other = Self::default();
        for (_, slot) in slots.iter_mut().filter(|(_, slot)| slot.policy_number() == OVERFLOW) {
            debug_assert!(self.entries.contains(narrow(slot.index())), "a slot leads to no entry");
            if let Some(entry) = self.remove(slot.index(), budget) {
                *slot = slot.moved(other.put(entry, budget));
            }
        }
        other
    }

    /// Bytes of the table, without those that its entries hold outside their slots.
    fn own_size(&self) -> usize {
        // A hash map uses at most seven eighths of its buckets, and one byte more for each.
        let buckets = match self.policies.capacity() {
            0 => 0,
            capacity => (capacity * 8 / 7).next_power_of_two(),
        };
        allocated(self.entries.capacity() * SLOT_BYTES)
            + allocated(buckets * (size_of::<(usize, u32)>() + 1))
    }
}

/// The address of a policy, which identifies it.
fn address(policy: &Policy) -> usize {
    policy.limits().as_ptr().addr()
}

/// Bytes that an entry holds outside its slot, without its policy.
pub(crate) fn size(entry: &Entry) -> usize {
    entry.allocations().map(allocated).sum()
}

/// Upper bound on the bytes by which an entry grows under another policy, whose logs continue its longest one: with a further
/// event, each may need twice as much.
pub(crate) fn copied_size(entry: &Entry, policy: &Policy) -> usize {
    if entry.policy().ptr_eq(policy) || !entry.grows() || entry.policy() == policy {
        return 0;
    }
    let logs = policy.limits().iter().filter(|limit| limit.keeps_log()).count();
    // The first is that of the states, and the last may be that of the holds.
    let sizes = || entry.allocations().skip(1).take(entry.policy().limits().len());
    (2 * sizes().max().unwrap_or_default() * logs).saturating_sub(sizes().sum())
}

/// Bytes that the allocator loses beside a policy that one key has: its parts were in memory when it was parsed. As measured
/// by `store_flood_resident_memory_stays_within_bound`.
const POLICY_LOSS: usize = 48;

/// Bytes of a policy, with its two reference counts and the names of time zones.
fn policy_size(policy: &Policy) -> usize {
    let zones = policy.limits().iter().filter_map(Limit::calendar);
    let names: usize = zones.map(|(_, zone)| allocated(zone.len())).sum();
    allocated(size_of_val(policy.limits()) + 2 * size_of::<usize>()) + names + POLICY_LOSS
}

/// Bytes that an allocation of `bytes` uses: allocators add a word, and round up to a multiple of sixteen bytes
/// and to at least 32.
const fn allocated(bytes: usize) -> usize {
    match (bytes + 8 + 15) & !15 {
        _ if bytes == 0 => 0,
        ..32 => 32,
        bytes => bytes,
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Timestamp, apply};

    use super::*;

    fn entry(policy: &Policy) -> Entry {
        let mut entry = None;
        assert!(apply(policy, &mut entry, Timestamp::EPOCH, Operation::Take(1)).is_ok());
        entry.expect("something was taken")
    }

    #[test]
    fn overflow_table_put_and_take_all_returns_to_zero_bytes() {
        let budget = Budget::new(1 << 20);
        let bytes = || budget.usage().bytes;
        let policies: Vec<Policy> = ["fixed-window:1/1d", "sliding-log:5/1d,gcra:1/1d"]
            .map(|text| text.parse().expect("a policy"))
            .to_vec();
        let mut table = OverflowTable::default();
        let put = |table: &mut OverflowTable, count: usize| -> Vec<u64> {
            policies.iter().cycle().take(count).map(|it| table.put(entry(it), &budget)).collect()
        };
        let indices = put(&mut table, 1000);
        let full = bytes();
        assert!(full > 1000 * size_of::<Entry>());
        for index in &indices[..500] {
            assert!(table.take(*index, &budget).is_some());
            assert!(table.take(*index, &budget).is_none());
        }
        assert!(table.get(indices[0]).is_none());
        let again = put(&mut table, 500);
        assert_eq!(bytes(), full, "slots are used again");

        let mut slots: Vec<_> =
            again.iter().map(|&index| (index, Slot::overflow(index << 20, index))).collect();
        let mut other = table.split_off(&mut slots, &budget);
        for (index, slot) in slots {
            assert!(table.get(index).is_none());
            assert!(other.take(slot.index(), &budget).is_some());
        }
        for index in &indices[500..] {
            assert!(table.take(*index, &budget).is_some());
        }
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn change_in_place_updates_budget() {
        let budget = Budget::new(1 << 20);
        let policy: Policy = "sliding-log:500/1d".parse().expect("a policy");
        let other: Policy = "sliding-log:500/1d".parse().expect("a policy");
        let mut table = OverflowTable::default();
        let index = table.put(entry(&policy), &budget);
        assert!(table.entry_mut(index, &other).is_none(), "under another policy");
        for _ in 0..400 {
            let (kept, before) = table.entry_mut(index, &policy).expect("it is under the policy");
            let taken = apply(&policy, kept, Timestamp::EPOCH, Operation::Take(1));
            assert!(taken.is_ok());
            assert_eq!(table.note_changed(index, before, &policy, &budget), Left::InUse);
            let held = table.get(index).map_or(0, size);
            assert_eq!(budget.usage().bytes, table.own_size() + policy_size(&policy) + held);
        }
        let (last, before) = table.entry_mut(index, &policy).expect("it is under the policy");
        *last = None;
        assert_eq!(table.note_changed(index, before, &policy, &budget), Left::Nothing);
        assert!(table.get(index).is_none());
        assert_eq!(budget.usage().bytes, table.own_size());
        assert_eq!(table.put(entry(&policy), &budget), index, "its slot is used again");
    }

    #[test]
    fn put_shared_policy_is_counted_once() {
        let budget = Budget::new(1 << 20);
        let text = ["fixed-window:1/1d"; 8].join(",");
        let [own, shared]: [Policy; 2] = [&text, &text].map(|text| text.parse().expect("a policy"));
        let mut table = OverflowTable::default();
        let mut last = 0;
        let mut grown = |table: &mut OverflowTable, policy: &Policy| {
            let before = budget.usage().bytes;
            last = table.put(entry(policy), &budget);
            budget.usage().bytes - before
        };
        // The first two make slots and a map for both.
        grown(&mut table, &shared);
        grown(&mut table, &shared);
        let next = grown(&mut table, &shared);
        assert_eq!(grown(&mut table, &own), next + policy_size(&own));
        for index in (0..4).rev() {
            assert!(table.take(index, &budget).is_some());
        }
        let empty = budget.usage().bytes;
        assert_eq!(empty, table.own_size());
    }
}
