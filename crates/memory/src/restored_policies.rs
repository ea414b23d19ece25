//! Policies of the keys of a state file.

use std::collections::HashMap;

use sluicegate_core::{Entry, Policy, Timestamp, as_micros};

use crate::{MemoryStore, NumberedPolicy, segment::SLOTS, snapshot::SavedKey};

/// Upper bound on the policies that are interned at a time.
const MAX_POLICIES: usize = 4096;

/// Interns the policies of entries: equal ones become one object, or two where only some keys were in slots.
#[derive(Default)]
pub(crate) struct RestoredPolicies {
    last: Option<(bool, NumberedPolicy)>,
    /// By whether their keys were in slots, and by policy string.
    policies: HashMap<(bool, String), NumberedPolicy>,
}

/// A key of a state file that has not recovered.
pub(crate) struct RestoredKey {
    pub(crate) hash: u64,
    pub(crate) entry: Entry,
    /// How long it must be kept, in microseconds.
    pub(crate) lifetime: u64,
    pub(crate) policy: NumberedPolicy,
}

impl RestoredPolicies {
    /// Makes space for the policies of a segment, because equal ones must be one object within it: memory is counted by
    /// object.
    pub(crate) fn begin_segment(&mut self) {
        if self.policies.len() + SLOTS > MAX_POLICIES {
            *self = Self::default();
        }
    }

    fn prepare(
        &mut self,
        store: &MemoryStore,
        policy: &Policy,
        in_slot: bool,
        now: Timestamp,
    ) -> NumberedPolicy {
        if let Some((last, prepared)) = &self.last
            && *last == in_slot
            && prepared.policy() == policy
        {
            return prepared.clone();
        }
        if self.policies.len() == MAX_POLICIES {
            self.policies.clear();
        }
        let prepared = self.policies.entry((in_slot, policy.to_string())).or_insert_with(|| {
            if in_slot {
                store.prepare(policy, now)
            } else {
                store.policies.find_or_unnumbered(policy)
            }
        });
        self.last = Some((in_slot, prepared.clone()));
        prepared.clone()
    }

    /// The key of a record; `None` if it has recovered.
    pub(crate) fn key(
        &mut self,
        store: &MemoryStore,
        SavedKey { hash, entry, in_slot }: SavedKey,
        now: Timestamp,
    ) -> Option<RestoredKey> {
        let lifetime = as_micros(entry.lifetime(now));
        if lifetime == 0 {
            return None;
        }
        let policy = self.prepare(store, entry.policy(), in_slot, now);
        Some(RestoredKey { hash, entry: entry.under(policy.policy()), lifetime, policy })
    }
}
