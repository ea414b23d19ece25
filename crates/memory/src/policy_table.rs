//! Numbers of policies, so that a slot can name the policy that it was written under.
//!
//! There are 32 766 numbers. One is reused when no [`NumberedPolicy`] with it exists any more and every state
//! written under it has recovered: a client that sends a new policy with every request takes up no memory. If no
//! number is free, a policy has none, and its states are overflow entries.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering, fence},
    },
};

use parking_lot::RwLock;
use sluicegate_core::{Policy, Timestamp, reached};

use crate::{
    budget::Budget,
    slot::{MAX_POLICY_NUMBER, SlotCodec},
};

/// Microseconds after a recorded write in which further writes are not recorded.
const SLACK: u64 = 1_000_000;
/// Bytes of a numbered policy, including its text and its entries in both tables.
const POLICY_BYTES: usize = 304;
/// Policies that get a number even if the store is full.
const MIN_NUMBERS: usize = 64;
/// Numbers that are checked for one to reuse.
const PROBE_LIMIT: usize = 16;

/// A policy with its number in one [`MemoryStore`](crate::MemoryStore), which then need not look the policy up. Cheap
/// to clone; made by [`MemoryStore::prepare`](crate::MemoryStore::prepare). A
/// [`ClockedStore`](crate::ClockedStore) attaches it to the policies that it is used with.
#[derive(Clone, Debug)]
pub struct NumberedPolicy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    policy: Policy,
    /// The number and the encoding of states in slots, if it has a number.
    numbered: Option<(u64, SlotCodec)>,
    /// Upper bound on the time until a state in a slot recovers, in microseconds.
    drain: u64,
    /// The time from which a write of a slot is recorded again: `SLACK` after the last recorded one.
    noted: AtomicU64,
}

impl NumberedPolicy {
    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The number and the encoding of states in slots, if it has a number.
    #[inline]
    pub(crate) fn numbered(&self) -> Option<(u64, &SlotCodec)> {
        self.0.numbered.as_ref().map(|(number, codec)| (*number, codec))
    }

    /// Records that a slot is written under it.
    #[inline]
    pub(crate) fn note_written(&self, now: Timestamp) {
        // All threads share the cache line: it is written only once a second.
        if self.0.noted.load(Ordering::Relaxed) < now.as_micros() {
            self.0.noted.store(now.as_micros() + SLACK, Ordering::Relaxed);
        }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        if Arc::strong_count(&self.0) > 1 {
            return false;
        }
        // What was noted under a reference that has been dropped is read after its drop.
        fence(Ordering::Acquire);
        self.0.noted.load(Ordering::Relaxed) + self.0.drain < now.as_micros()
    }
}

/// All policies that have a number.
#[derive(Debug, Default)]
pub(crate) struct PolicyTable(RwLock<NumberedPolicies>);

#[derive(Debug, Default)]
struct NumberedPolicies {
    /// By number, from 1.
    policies: Vec<NumberedPolicy>,
    numbers: HashMap<String, usize>,
    /// The next number to check for reuse.
    hand: usize,
}

impl PolicyTable {
    /// Prepares a policy, with a number if one is free. Without `now`, which is then not the time of all keys,
    /// numbers are not reused. `reuses` is called with a number that becomes that of another policy.
    pub(crate) fn prepare(
        &self,
        policy: &Policy,
        now: Option<Timestamp>,
        budget: &Budget,
        reuses: impl FnOnce(u64),
    ) -> NumberedPolicy {
        let Some(codec) = SlotCodec::new(policy) else { return NumberedPolicy::new(policy, None) };
        let text = policy.to_string();
        if let Some(prepared) = self.0.read().find(&text) {
            return prepared;
        }
        let mut numbered = self.0.write();
        if let Some(prepared) = numbered.find(&text) {
            return prepared;
        }
        let Some(index) = numbered.free(now, budget) else {
            reached!(PolicyHasNoNumber);
            return NumberedPolicy::new(policy, None);
        };
        let prepared = NumberedPolicy::new(policy, Some((index as u64 + 1, codec)));
        if let Some(now) = now {
            prepared.note_written(now);
        }
        if index < numbered.policies.len() {
            let old = std::mem::replace(&mut numbered.policies[index], prepared.clone());
            let index_of_old = numbered.numbers.remove(&old.policy().to_string());
            debug_assert_eq!(index_of_old, Some(index), "a number of another policy is reused");
            debug_assert_eq!(Arc::strong_count(&old.0), 1, "a number in use is reused");
            reuses(index as u64 + 1);
        } else {
            numbered.policies.push(prepared.clone());
            budget.resize(0, POLICY_BYTES);
        }
        let other = numbered.numbers.insert(text, index);
        debug_assert!(other.is_none(), "a policy has two numbers");
        debug_assert_eq!(
            numbered.numbers.len(),
            numbered.policies.len(),
            "one text for each number"
        );
        prepared
    }

    /// Bytes of the policies that have a number even if the store is full.
    pub(crate) fn unbounded_bytes(&self) -> usize {
        self.0.read().policies.len().min(MIN_NUMBERS) * POLICY_BYTES
    }

    /// Bytes that all policies with a number take.
    #[cfg(debug_assertions)]
    pub(crate) fn bytes(&self) -> usize {
        self.0.read().policies.len() * POLICY_BYTES
    }

    /// The policy with the number that it has; without one if it has none.
    pub(crate) fn find_or_unnumbered(&self, policy: &Policy) -> NumberedPolicy {
        let numbered = self.0.read().find(&policy.to_string());
        numbered.unwrap_or_else(|| NumberedPolicy::new(policy, None))
    }

    /// The policy with a number.
    pub(crate) fn get(&self, number: u64) -> Option<NumberedPolicy> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        let policy = self.0.read().policies.get(index).cloned();
        debug_assert!(
            policy.as_ref().is_none_or(|it| it
                .0
                .numbered
                .as_ref()
                .is_some_and(|(own, _)| *own == number))
        );
        policy
    }
}

impl NumberedPolicies {
    fn find(&self, text: &str) -> Option<NumberedPolicy> {
        self.numbers.get(text).and_then(|&index| self.policies.get(index)).cloned()
    }

    /// The index for a new policy.
    fn free(&mut self, now: Option<Timestamp>, budget: &Budget) -> Option<usize> {
        let length = self.policies.len();
        // The first few numbers are useful even if the store is full.
        if (length as u64) < MAX_POLICY_NUMBER
            && (length < MIN_NUMBERS || budget.fits(POLICY_BYTES))
        {
            return Some(length);
        }
        let now = now?;
        for _ in 0..PROBE_LIMIT {
            self.hand = (self.hand + 1) % length;
            if self.policies[self.hand].is_over(now) {
                return Some(self.hand);
            }
        }
        None
    }
}

impl NumberedPolicy {
    fn new(policy: &Policy, numbered: Option<(u64, SlotCodec)>) -> Self {
        let drain = numbered.as_ref().map_or(0, |(_, codec)| codec.drain());
        let noted = AtomicU64::new(0);
        Self(Arc::new(Inner { policy: policy.clone(), numbered, drain, noted }))
    }
}
