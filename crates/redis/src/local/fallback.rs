//! What is decided here while the store is unavailable.
//!
//! Under `local`, a key has a state of its own in this process. It counts what was admitted here over all
//! outages, and no answer of the store lowers it: so a share `b + r T` is admitted in any time `T`, however
//! often the store fails in it. What the store reports as used raises it. The table is bounded, and drops no
//! key that is in use: a new key that has no room is denied.

use std::{sync::OnceLock, time::Duration};

use sluicegate_core::{Decision, Limit, Operation, Outcome, Retry, Timestamp};
use sluicegate_memory::{MemoryStore, Request, WhenFull};

use super::denial_cache::{DenialCache, ReportedUsage};
use crate::{
    Answer, OnError, PreparedPolicy, Share, Source, StoreError, counters::CounterValues,
    net::breaker::PROBE_EVERY,
};

/// What is decided here while the store is away.
#[derive(Debug)]
pub(crate) struct LocalFallback {
    /// Made when the store is away for the first time.
    store: OnceLock<MemoryStore>,
    max_bytes: usize,
}

impl LocalFallback {
    pub(crate) const fn new(max_bytes: usize) -> Self {
        Self { store: OnceLock::new(), max_bytes }
    }

    /// The key was reset: nothing of it is in use here either.
    pub(crate) fn reset(&self, key: &[u8], now: Timestamp) {
        if let Some(store) = self.store.get() {
            store.reset(key, now);
        }
    }

    /// What the rule says, because of `error`. What only changes a state (charge, refund, reset) is not
    /// made up: it fails.
    pub(crate) fn decide(
        &self,
        (key, prepared): (&[u8], &PreparedPolicy),
        operation: Operation,
        (denials, counts): (&DenialCache, &CounterValues),
        now: Timestamp,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        match operation {
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => return Err(error),
            Operation::Take(_) | Operation::Peek(_) | Operation::Reserve { .. } => {}
        }
        let outcome = match prepared.on_unavailable() {
            OnError::Local(share) => {
                counts.fallback_local.one();
                let store = self
                    .store
                    .get_or_init(|| MemoryStore::bounded(self.max_bytes, WhenFull::default()));
                let local =
                    store.prepare(prepared.local_policy().unwrap_or(prepared.policy()), now);
                denials.take_usage(key, now, |reported| {
                    raise_usage(store, key, &local, share, reported, now)
                });
                let decision =
                    store.apply_prepared(Request { key, policy: &local, operation }, now)?;
                return Ok(Answer { decision, source: Source::Fallback });
            }
            OnError::Deny => {
                counts.fallback_deny.one();
                // When it may be known more.
                Outcome::Deny { retry: Retry::After(PROBE_EVERY) }
            }
            OnError::Allow => {
                counts.fallback_allow.one();
                Outcome::Allow { delay: Duration::ZERO }
            }
        };
        let limit = prepared.policy().limits().iter().map(Limit::capacity).min();
        let decision = Decision {
            outcome,
            limit: limit.unwrap_or_default(),
            remaining: 0,
            reset_after: PROBE_EVERY,
            binding: 0,
        };
        Ok(Answer { decision, source: Source::Fallback })
    }
}

/// Raises the local usage of `key` to the share of what the store reported, where that is more.
///
/// What was admitted here stays counted, because the store does not know of it: without that, each
/// outage would admit the share once more.
fn raise_usage(
    store: &MemoryStore,
    key: &[u8],
    local: &sluicegate_memory::PreparedPolicy,
    share: Share,
    ReportedUsage { used, binding }: ReportedUsage,
    now: Timestamp,
) {
    let limits = local.policy().limits();
    // Under another policy more may have been in use than this one admits at all.
    let most = limits.iter().map(Limit::capacity).max().unwrap_or_default();
    let reported = share.used(used).min(most);
    let here = store.with_entry(key, |entry| {
        let mut usage = entry.usage(now).map(|(_, usage)| usage.used);
        // The limits of another policy have other indices: the least of them is counted.
        if entry.policy() == local.policy() { usage.nth(binding) } else { usage.min() }
    });
    let here = u32::try_from(here.flatten().unwrap_or_default()).unwrap_or(u32::MAX);
    let more = reported.saturating_sub(here);
    if more > 0 {
        // A charge cannot be denied. A table that is full does not keep it, and denies the key too.
        let operation = Operation::Charge(more);
        let _ = store.apply_prepared(Request { key, policy: local, operation }, now);
    }
}
