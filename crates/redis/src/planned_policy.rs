//! What the store needs for a policy.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use sluicegate_core::{Limit, OnError, Policy, PolicySettings, PreparedPolicy, Share};

use crate::script::Plan;

/// A policy with its plan and its identity in the caches, which the store attaches to a [`PreparedPolicy`].
#[derive(Clone, Debug)]
pub(crate) struct PlannedPolicy(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Identity: the same for all clones, and unique otherwise.
    number: u64,
    policy: Policy,
    plan: Plan,
    settings: PolicySettings,
    /// The share of [`OnError::Local`] and its policy.
    local: Option<(Share, PreparedPolicy)>,
    /// Whether denials may be cached until their retry time.
    cached: bool,
}

impl PlannedPolicy {
    pub(crate) fn new(prepared: &PreparedPolicy) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (policy, settings) = (prepared.policy(), prepared.settings());
        let local = match settings.on_error {
            OnError::Local(share) => Some((share, policy.share(share).into())),
            _ => None,
        };
        let records_denials = policy.limits().iter().any(Limit::count_all);
        Self(Arc::new(Inner {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            policy: policy.clone(),
            plan: Plan::new(policy),
            settings,
            local,
            cached: !records_denials && settings.on_error != OnError::Fail,
        }))
    }

    /// The policy.
    pub(crate) fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The share of [`OnError::Local`] and its policy, if that is set.
    pub(crate) fn local(&self) -> Option<&(Share, PreparedPolicy)> {
        self.0.local.as_ref()
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    pub(crate) fn on_error(&self) -> OnError {
        self.0.settings.on_error
    }

    /// Maximum units of a lease; 0 and 1 are no leases.
    pub(crate) fn lease(&self) -> u32 {
        self.0.settings.lease
    }

    /// Whether a denial applies until its retry time, if no units are returned.
    pub(crate) fn is_cached(&self) -> bool {
        self.0.cached
    }

    /// Whether usage in replies is recorded for the fallback.
    pub(crate) fn is_remembered(&self) -> bool {
        self.0.local.is_some()
    }
}
