//! What is decided here while the store is away.

use std::{sync::OnceLock, time::Duration};

use sluicegate_core::{Decision, Operation, Outcome, Retry, Timestamp};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::known::Known;
use crate::{
    Answer, OnError, Rule, Source, StoreError, counters::Counting, net::breaker::PROBE_EVERY,
};

/// What is decided here while the store is away.
#[derive(Debug)]
pub(crate) struct Local {
    /// Made when the store is away for the first time.
    store: OnceLock<MemoryStore>,
    max_bytes: usize,
}

impl Local {
    pub(crate) const fn new(max_bytes: usize) -> Self {
        Self { store: OnceLock::new(), max_bytes }
    }

    /// What the rule says, because of `error`. What only changes a state (charge, refund, reset) is not
    /// made up: it fails.
    pub(crate) fn decide(
        &self,
        (key, rule): (&[u8], &Rule),
        operation: Operation,
        (known, counts): (&Known, &Counting),
        now: Timestamp,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        match operation {
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => return Err(error),
            Operation::Take(_) | Operation::Peek(_) | Operation::Reserve { .. } => {}
        }
        let outcome = match rule.when_away() {
            OnError::Local(share) => {
                counts.fallback_local.one();
                let store = self
                    .store
                    .get_or_init(|| MemoryStore::bounded(self.max_bytes, WhenFull::default()));
                let local = store.rule(rule.local_policy().unwrap_or(rule.policy()), now);
                if let Some(used) = known.take_used(key, rule, now) {
                    store.reset(key, now);
                    let _ = store.apply(
                        key,
                        local.policy(),
                        now,
                        Operation::Charge(share.used(used)),
                    )?;
                }
                let decision = store.apply(key, local.policy(), now, operation)?;
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
        let limit = rule.policy().limits().iter().map(sluicegate_core::Limit::capacity).min();
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
