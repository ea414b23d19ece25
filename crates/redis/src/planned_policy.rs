//! The store's data for a policy.

use std::{borrow::Cow, ops::Deref, sync::Arc};

use sluicegate_core::{LeaseTerms, Operation, PolicySettings, PreparedPolicy};
use sluicegate_fallback::{FallbackOperation, FallbackPolicy};

use crate::script::Plan;

/// A policy with its plan and its identity in the caches, which the store attaches to a [`PreparedPolicy`].
#[derive(Clone, Debug)]
pub(crate) struct PlannedPolicy(Arc<PolicyData>);

#[derive(Debug)]
pub(crate) struct PolicyData {
    fallback: FallbackPolicy,
    pub(crate) plan: Plan,
    /// How its limits forget units of leases.
    pub(crate) terms: LeaseTerms,
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

impl<'a> From<PlannedOperation<'a>> for FallbackOperation<'a> {
    fn from(PlannedOperation { key, policy, operation }: PlannedOperation<'a>) -> Self {
        Self { key, policy, operation }
    }
}

impl PlannedPolicy {
    pub(crate) fn new(prepared: &PreparedPolicy) -> Self {
        Self(Arc::new(PolicyData {
            fallback: FallbackPolicy::new(prepared),
            plan: Plan::new(prepared.policy()),
            terms: LeaseTerms::new(prepared.policy(), prepared.settings().lease),
        }))
    }
}

impl Deref for PlannedPolicy {
    type Target = PolicyData;

    fn deref(&self) -> &PolicyData {
        &self.0
    }
}

impl Deref for PolicyData {
    type Target = FallbackPolicy;

    fn deref(&self) -> &FallbackPolicy {
        &self.fallback
    }
}
