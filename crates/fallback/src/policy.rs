//! A policy as the denial cache and the fallback need it.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::{OnError, Operation, Policy, PolicySettings, PreparedPolicy, Share};

/// A policy with its identity in the caches, and with what decides in place of the store.
#[derive(Debug)]
pub struct FallbackPolicy {
    /// Identity: cached denials of another number do not apply.
    pub number: u64,
    /// The policy.
    pub policy: Policy,
    /// Its settings.
    pub settings: PolicySettings,
    /// The share of [`OnError::Local`] and its policy, if that is set: usage in replies is then recorded.
    pub local: Option<(Share, PreparedPolicy)>,
    /// Whether denials count as usage.
    pub records_denials: bool,
    /// Whether a denial applies until its retry time, if no units are returned.
    pub is_cached: bool,
}

impl FallbackPolicy {
    /// The policy with a new number.
    #[must_use]
    pub fn new(prepared: &PreparedPolicy) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let (policy, settings) = (prepared.policy(), prepared.settings());
        let local = match settings.on_error {
            OnError::Local(share) => Some((share, policy.share(share).into())),
            _ => None,
        };
        let records_denials = policy.records_denials();
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            policy: policy.clone(),
            settings,
            local,
            records_denials,
            is_cached: !records_denials && settings.on_error != OnError::Fail,
        }
    }
}

/// An operation on a key of the store.
#[derive(Clone, Copy, Debug)]
pub struct FallbackOperation<'a> {
    /// The key in the store.
    pub key: &'a [u8],
    /// The policy.
    pub policy: &'a FallbackPolicy,
    /// The operation.
    pub operation: Operation<'a>,
}
