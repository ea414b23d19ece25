//! Entries that do not fit in a slot, of one segment, and the memory that they take.
//!
//! What is counted is what the allocator hands out for them, so that the bound of a store is one on
//! the memory of its process. A policy is shared by the entries under it: it is counted once in each
//! segment, with the first of them, and goes with the last.

use std::collections::HashMap;

use ahash::RandomState;
use sluicegate_core::{Entry, Policy};

use crate::{
    budget::Budget,
    slot::{LARGE, Slot},
};

/// Entries by index.
#[derive(Debug, Default)]
pub(crate) struct Large {
    places: Vec<Place>,
    /// The free place that was given back last.
    free: Option<u32>,
    used: usize,
    /// How many entries are under each policy; policies are told apart by where they are.
    policies: HashMap<usize, u32, RandomState>,
}

#[derive(Debug)]
enum Place {
    Used(Entry),
    /// With the free place that was given back before.
    Free(Option<u32>),
}

/// Places that are kept even where none is used.
const KEPT: usize = 16;

impl Large {
    pub(crate) fn get(&self, index: u64) -> Option<&Entry> {
        match self.places.get(usize::try_from(index).ok()?)? {
            Place::Used(entry) => Some(entry),
            Place::Free(_) => None,
        }
    }

    /// Keeps an entry, and tells where.
    pub(crate) fn put(&mut self, entry: Entry, budget: &Budget) -> u64 {
        let before = self.own_size();
        let own = self.policies.entry(address(entry.policy())).or_insert(0);
        *own += 1;
        let policy = if *own == 1 { policy_size(entry.policy()) } else { 0 };
        let taken = size(&entry) + policy;
        self.used += 1;
        let index = if let Some(index) = self.free {
            let place = &mut self.places[index as usize];
            if let Place::Free(next) = *place {
                self.free = next;
            }
            *place = Place::Used(entry);
            index.into()
        } else {
            if self.places.len() == self.places.capacity() {
                // Doubling would leave half of the places unused, and paid for.
                self.places.reserve_exact(self.places.len() / 8 + 4);
            }
            self.places.push(Place::Used(entry));
            self.places.len() as u64 - 1
        };
        budget.resize(before, self.own_size() + taken);
        index
    }

    pub(crate) fn take(&mut self, index: u64, budget: &Budget) -> Option<Entry> {
        let index = u32::try_from(index).ok()?;
        let place = self.places.get_mut(index as usize)?;
        if matches!(place, Place::Free(_)) {
            return None;
        }
        let Place::Used(entry) = std::mem::replace(place, Place::Free(self.free)) else {
            return None;
        };
        self.note_gone(index, size(&entry), entry.policy(), budget);
        Some(entry)
    }

    /// Has `change` change an entry under `policy` where it is, which keeps it under that policy or
    /// leaves none: what it answers, and whether there still is an entry. `None`: it is under another.
    pub(crate) fn change<R>(
        &mut self,
        index: u64,
        policy: &Policy,
        budget: &Budget,
        change: impl FnOnce(&mut Option<Entry>) -> R,
    ) -> Option<(R, bool)> {
        let index = u32::try_from(index).ok()?;
        let place = self.places.get_mut(index as usize)?;
        if !matches!(place, Place::Used(entry) if address(entry.policy()) == address(policy)) {
            return None;
        }
        let Place::Used(entry) = std::mem::replace(place, Place::Free(self.free)) else {
            return None;
        };
        let before = size(&entry);
        let mut entry = Some(entry);
        let answer = change(&mut entry);
        let stays = entry.is_some();
        if let Some(entry) = entry {
            budget.resize(before, size(&entry));
            *place = Place::Used(entry);
        } else {
            self.note_gone(index, before, policy, budget);
        }
        Some((answer, stays))
    }

    /// Takes note that an entry which held so many bytes elsewhere has left a place, which is free now.
    fn note_gone(&mut self, index: u32, held: usize, policy: &Policy, budget: &Budget) {
        let before = self.own_size();
        self.free = Some(index);
        self.used -= 1;
        let mut given = held;
        let address = address(policy);
        if let Some(own) = self.policies.get_mut(&address) {
            *own -= 1;
            if *own == 0 {
                self.policies.remove(&address);
                given += policy_size(policy);
            }
        }
        if self.used == 0 && self.places.len() > KEPT {
            *self = Self::default();
        }
        budget.resize(before + given, self.own_size());
    }

    /// Gives back places beyond those in use.
    pub(crate) fn shrink(&mut self, budget: &Budget) {
        let before = self.own_size();
        self.places.shrink_to_fit();
        budget.resize(before, self.own_size());
    }

    /// Moves the entries of `slots` to another, where the slots then find them.
    pub(crate) fn split_off<P>(&mut self, slots: &mut [(P, Slot)], budget: &Budget) -> Self {
        let mut other = Self::default();
        for (_, slot) in slots.iter_mut().filter(|(_, slot)| slot.rule() == LARGE) {
            if let Some(entry) = self.take(slot.index(), budget) {
                *slot = slot.moved(other.put(entry, budget));
            }
        }
        other
    }

    /// Bytes that it takes itself, without what its entries hold elsewhere.
    fn own_size(&self) -> usize {
        // Seven eighths of a hash map are used at most; a byte each says which.
        let buckets = match self.policies.capacity() {
            0 => 0,
            capacity => (capacity * 8 / 7).next_power_of_two(),
        };
        allocated(self.places.capacity() * size_of::<Place>())
            + allocated(buckets * (size_of::<(usize, u32)>() + 1))
    }
}

/// Where a policy is, which says whether two are one.
fn address(policy: &Policy) -> usize {
    policy.limits().as_ptr().addr()
}

/// Bytes that an entry holds elsewhere, its policy aside.
pub(crate) fn size(entry: &Entry) -> usize {
    entry.allocations().map(allocated).sum()
}

/// Bytes that a policy holds, with the two counts of its holders.
fn policy_size(policy: &Policy) -> usize {
    allocated(size_of_val(policy.limits()) + 2 * size_of::<usize>())
}

/// Bytes that go for an allocation of so many: allocators keep a word beside each, hand out
/// multiples of sixteen bytes, and no less than 32.
const fn allocated(bytes: usize) -> usize {
    match (bytes + 8).next_multiple_of(16) {
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
    fn what_is_put_is_found_and_all_is_given_back() {
        let budget = Budget::new(1 << 20);
        let bytes = || budget.usage().bytes;
        let policies: Vec<Policy> = ["fixed-window:1/1d", "sliding-log:5/1d,gcra:1/1d"]
            .map(|text| text.parse().expect("a policy"))
            .to_vec();
        let mut large = Large::default();
        let put = |large: &mut Large, count: usize| -> Vec<u64> {
            policies.iter().cycle().take(count).map(|it| large.put(entry(it), &budget)).collect()
        };
        let indices = put(&mut large, 1000);
        let full = bytes();
        assert!(full > 1000 * size_of::<Entry>());
        for index in &indices[..500] {
            assert!(large.take(*index, &budget).is_some());
            assert!(large.take(*index, &budget).is_none());
        }
        assert!(large.get(indices[0]).is_none());
        let again = put(&mut large, 500);
        assert_eq!(bytes(), full, "places are used again");

        let mut slots: Vec<_> =
            again.iter().map(|&index| (index, Slot::large(index << 20, index))).collect();
        let mut other = large.split_off(&mut slots, &budget);
        for (index, slot) in slots {
            assert!(large.get(index).is_none());
            assert!(other.take(slot.index(), &budget).is_some());
        }
        for index in &indices[500..] {
            assert!(large.take(*index, &budget).is_some());
        }
        assert_eq!(bytes(), 0);
    }

    #[test]
    fn what_changes_in_place_is_counted() {
        let budget = Budget::new(1 << 20);
        let policy: Policy = "sliding-log:500/1d".parse().expect("a policy");
        let other: Policy = "sliding-log:500/1d".parse().expect("a policy");
        let mut large = Large::default();
        let index = large.put(entry(&policy), &budget);
        assert!(large.change(index, &other, &budget, |_| ()).is_none(), "under another policy");
        for _ in 0..400 {
            let taken = large.change(index, &policy, &budget, |entry| {
                apply(&policy, entry, Timestamp::EPOCH, Operation::Take(1)).is_ok()
            });
            assert_eq!(taken, Some((true, true)));
            let held = large.get(index).map_or(0, size);
            assert_eq!(budget.usage().bytes, large.own_size() + policy_size(&policy) + held);
        }
        assert_eq!(large.change(index, &policy, &budget, Option::take).map(|it| it.1), Some(false));
        assert!(large.get(index).is_none());
        assert_eq!(budget.usage().bytes, large.own_size());
        assert_eq!(large.put(entry(&policy), &budget), index, "its place is used again");
    }

    #[test]
    fn a_policy_is_counted_with_the_first_and_goes_with_the_last() {
        let budget = Budget::new(1 << 20);
        let text = ["fixed-window:1/1d"; 8].join(",");
        let [own, shared]: [Policy; 2] = [&text, &text].map(|text| text.parse().expect("a policy"));
        let mut large = Large::default();
        let mut last = 0;
        let mut grown = |large: &mut Large, policy: &Policy| {
            let before = budget.usage().bytes;
            last = large.put(entry(policy), &budget);
            budget.usage().bytes - before
        };
        // The first two make places and a map for both.
        grown(&mut large, &shared);
        grown(&mut large, &shared);
        let next = grown(&mut large, &shared);
        assert_eq!(grown(&mut large, &own), next + policy_size(&own));
        for index in (0..4).rev() {
            assert!(large.take(index, &budget).is_some());
        }
        let empty = budget.usage().bytes;
        assert_eq!(empty, large.own_size());
    }
}
