//! The store's data for a policy.

use std::{
    borrow::Cow,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sluicegate_core::{
    LeaseTerms, OnError, Operation, Policy, PolicySettings, PreparedPolicy, Share,
};

use crate::script::Plan;

/// A policy with its plan and its identity in the caches, which the store attaches to a [`PreparedPolicy`].
#[derive(Clone, Debug)]
pub(crate) struct PlannedPolicy(Arc<PolicyData>);

#[derive(Debug)]
pub(crate) struct PolicyData {
    /// Identity: the same for all clones, and unique otherwise.
    pub(crate) number: u64,
    pub(crate) policy: Policy,
    pub(crate) plan: Plan,
    pub(crate) settings: PolicySettings,
    /// How its limits forget units of leases.
    pub(crate) terms: LeaseTerms,
    /// The share of [`OnError::Local`] and its policy, if that is set: usage in replies is then recorded.
    pub(crate) local: Option<(Share, PreparedPolicy)>,
    /// Whether denials count as usage.
    pub(crate) records_denials: bool,
    /// Whether a denial applies until its retry time, if no units are returned.
    pub(crate) is_cached: bool,
}

/// An operation on a key of the store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlannedOperation<'a> {
    /// The key in the store.
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a PlannedPolicy,
    pub(crate) operation: Operation<'a>,
}

/// The same with the name of the key that the store has given it.
#[derive(Clone, Debug)]
pub(crate) struct PlannedKey<'a> {
    pub(crate) key: Cow<'a, [u8]>,
    pub(crate) policy: Cow<'a, PlannedPolicy>,
    pub(crate) operation: Operation<'a>,
}

impl PlannedKey<'_> {
    /// The operation.
    pub(crate) fn planned(&self) -> PlannedOperation<'_> {
        self.with(self.operation)
    }

    /// Another operation on the key.
    pub(crate) fn with<'a>(&'a self, operation: Operation<'a>) -> PlannedOperation<'a> {
        PlannedOperation { key: &self.key, policy: &self.policy, operation }
    }
}

/// The units of a take that a lease may decide.
pub(crate) const fn leased_cost(settings: PolicySettings, operation: Operation<'_>) -> Option<u32> {
    match operation {
        Operation::Take(cost) if cost > 0 && settings.lease > 1 && cost <= settings.lease => {
            Some(cost)
        }
        _ => None,
    }
}

impl PlannedPolicy {
    pub(crate) fn new(prepared: &PreparedPolicy) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (policy, settings) = (prepared.policy(), prepared.settings());
        let local = match settings.on_error {
            OnError::Local(share) => Some((share, policy.share(share).into())),
            _ => None,
        };
        let records_denials = policy.records_denials();
        Self(Arc::new(PolicyData {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            policy: policy.clone(),
            plan: Plan::new(policy),
            settings,
            terms: LeaseTerms::new(policy, settings.lease),
            local,
            records_denials,
            is_cached: !records_denials && settings.on_error != OnError::Fail,
        }))
    }
}

impl Deref for PlannedPolicy {
    type Target = PolicyData;

    fn deref(&self) -> &PolicyData {
        &self.0
    }
}
