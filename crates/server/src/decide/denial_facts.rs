//! What is known of a denial, for the denial log and for spans.
//!
//! Invariants:
//! - without a denial log and spans, a decision that is sent to a client costs a branch;
//! - a query (peek), and the end of a hold, is no denial;
//! - a rule is noted where it is evaluated, and any other decision where its protocol counts it: each once.

use sluicegate_core::{
    Answer, Decision, Entry, KeyedOperation, OnError, Operation, Policy, Retry, Source, Timestamp,
    Usage,
};
use sluicegate_memory::TABLE_FULL_RETRY;
use sluicegate_rules::{Evaluation, Match, MatchOutcome, RuleEvent, RuleOperation};

use super::Decider;
use crate::{
    denial_log::{DecidedKey, Denial, DenyingRule, Waited, members},
    policies::rule_store::RuleSnapshot,
    stats::DenialFacts,
    telemetry::add_event,
};

impl Decider {
    /// Notes a decision on one key that is sent to a client, if it is a denial and there is a log.
    #[inline]
    pub(crate) fn note(
        &self,
        it: &KeyedOperation<'_>,
        source: Source,
        decision: &Decision,
        now: Timestamp,
        waited: Option<Waited>,
    ) {
        if (self.denial_log.is_some() || self.has_spans) && !decision.allowed() {
            self.note_denial(DecidedKey::new(it, source, decision, waited), now, 0);
        }
    }

    /// Notes the denials of an answer about several keys that is sent to a client, if there is a log.
    #[inline]
    pub(crate) fn note_all(
        &self,
        operations: &[KeyedOperation<'_>],
        answer: &Answer,
        now: Timestamp,
        waited: Option<Waited>,
    ) {
        if (self.denial_log.is_some() || self.has_spans) && !answer.decision.allowed() {
            let denied = || operations.iter().zip(answer.each()).filter(|(_, it)| !it.allowed());
            let others = denied().count().saturating_sub(1);
            for (it, decision) in denied() {
                let denied = DecidedKey::new(it, answer.source, decision, waited);
                self.note_denial(denied, now, others);
            }
        }
    }

    #[inline(never)]
    fn note_denial(&self, denied: DecidedKey<'_>, now: Timestamp, also_denied: usize) {
        if denied.asks_for_units() {
            self.record(&Denial { time: now, rule: None, denied: Some(denied), also_denied });
        }
    }

    /// Adds a denial to the log, and to the span of the current request.
    fn record(&self, denial: &Denial<'_>) {
        let facts = || denial.denied.map(|it| self.facts(&it, denial.time)).unwrap_or_default();
        if let Some(log) = &self.denial_log {
            log.note(denial, facts);
        }
        if self.has_spans {
            add_event("denial", || members(denial, facts(), &self.display));
        }
    }

    /// Notes which rules denied or blocked a request, or would have.
    pub(super) fn note_rules(
        &self,
        rules: &RuleSnapshot,
        evaluation: &Evaluation<'_, '_>,
        operation: RuleOperation,
        now: Timestamp,
    ) {
        let outcomes = || evaluation.events().zip(&evaluation.outcome().matches);
        // A rule that blocks denies no key.
        let denials = |it: &MatchOutcome| it.denials.max(usize::from(!it.allowed));
        let enforced = outcomes().filter(|((found, _), _)| !found.shadow);
        let all: usize = enforced.map(|(_, outcome)| denials(outcome)).sum();
        for ((found, mut events), outcome) in outcomes() {
            if events.any(RuleEvent::is_denial) {
                let all = if found.shadow { denials(outcome) } else { all };
                let matched = (found, outcome, all.saturating_sub(1));
                self.note_rule(rules, matched, operation, now);
            }
        }
    }

    fn note_rule(
        &self,
        rules: &RuleSnapshot,
        (found, outcome, also_denied): (&Match<'_>, &MatchOutcome, usize),
        operation: RuleOperation,
        now: Timestamp,
    ) {
        let charge = found.charges.get(outcome.charge);
        let rule = DenyingRule {
            name: found.rule.name(),
            version: rules.number,
            level: charge.and_then(|it| it.level),
            shadow: found.shadow,
        };
        let cost = found.cost.saturating_mul(operation.hits());
        let operation = match found.hold_id.as_deref() {
            Some(id) => Operation::Hold { id, cost, ttl: None },
            None => Operation::Take(cost),
        };
        let denied = charge.zip(outcome.decision.as_ref());
        let denied = denied.map(|(charge, decision)| DecidedKey {
            key: &charge.key,
            policy: &charge.policy,
            operation,
            waited: None,
            source: outcome.source,
            decision,
            on_error: found.on_error.unwrap_or(self.defaults.on_error),
        });
        self.record(&Denial { time: now, rule: Some(rule), denied, also_denied });
    }

    /// What is known of a denial besides its decision.
    fn facts(&self, it: &DecidedKey<'_>, now: Timestamp) -> DenialFacts {
        let &DecidedKey { key, policy, decision, .. } = it;
        let facts = DenialFacts {
            is_blocked: self.blocks.remaining(key, now).is_some(),
            is_without_state: it.source == Source::Fallback && it.on_error == OnError::Deny,
            ..DenialFacts::default()
        };
        let Some(local) = self.local.as_ref().filter(|_| !facts.is_blocked) else { return facts };
        let store = local.store();
        let usage = store.with_entry(key, |entry| usage(entry, policy, decision, now));
        let usage = usage.unwrap_or_else(|| unused(decision));
        let is_table_full = usage.is_none()
            && decision.remaining == 0
            && decision.retry() == Some(Retry::After(TABLE_FULL_RETRY))
            && store.usage().table_full > 0;
        DenialFacts { usage, is_table_full, ..facts }
    }
}

/// The usage of the binding limit in `entry`; `None` if the key has changed since the decision: another worker may have
/// charged it.
fn usage(entry: &Entry, policy: &Policy, decision: &Decision, now: Timestamp) -> Option<Usage> {
    if entry.is_over(now) {
        return unused(decision);
    }
    if !entry.policy().decides_like(policy) {
        return None;
    }
    let all: Vec<Usage> = entry.usage(now).map(|(_, usage)| usage).collect();
    let remaining = all.iter().map(|it| it.remaining).min()?;
    let reset_after = all.iter().map(|it| it.reset_after).max()?;
    let is_same = remaining == decision.remaining && reset_after == decision.reset_after;
    all.get(decision.binding).copied().filter(|_| is_same)
}

/// The usage of a key without an entry, if the decision was made on one that is unused: its cost exceeds the capacity.
fn unused(decision: &Decision) -> Option<Usage> {
    let (remaining, reset_after) = (decision.remaining, decision.reset_after);
    let usage = Usage { used: 0, held: 0, remaining, reset_after, window_counts: None };
    reset_after.is_zero().then_some(usage)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::{Request, Timestamp};

    use super::*;
    use crate::decide::tests::decider;

    /// Applies operations to a key at one time, and returns the last decision.
    async fn apply(
        decider: &Decider,
        policy: &str,
        operations: &[Operation<'_>],
        now: Timestamp,
    ) -> Decision {
        let policy = decider.prepare(&policy.parse().unwrap(), 0);
        let mut last = None;
        for operation in operations {
            let request = Request::one(b"k", &policy, *operation);
            last = Some(decider.decide(request, now).await.unwrap().decision);
        }
        last.unwrap()
    }

    /// Units in use and held, if they are those of `decision`.
    fn usage(
        decider: &Decider,
        policy: &str,
        decision: &Decision,
        now: Timestamp,
    ) -> Option<(u64, u64)> {
        let policy = policy.parse().unwrap();
        let denied = DecidedKey {
            key: b"k",
            policy: &policy,
            operation: Operation::Take(1),
            waited: None,
            source: Source::Store,
            decision,
            on_error: OnError::Deny,
        };
        let facts = decider.facts(&denied, now);
        assert!(facts.is_by_limit());
        facts.usage.map(|it| (it.used, it.held))
    }

    /// It may change between the decision and the record, by another worker.
    #[tokio::test]
    async fn facts_of_a_key_that_has_changed_have_no_usage() {
        let ttl = Some(Duration::from_secs(60));
        let hold = Operation::Hold { id: b"h", cost: 3, ttl };
        for (policy, used) in [
            ("fixed-window:9/1h", [Operation::Take(6), hold, Operation::Take(1)]),
            ("gcra:9/1h", [Operation::Take(6), hold, Operation::Take(1)]),
            ("sliding-log:99/1h,gcra:9/1h", [Operation::Take(6), hold, Operation::Take(1)]),
        ] {
            let decider = decider();
            let now = decider.now();
            let denial = apply(&decider, policy, &used, now).await;
            assert!(!denial.allowed());
            assert_eq!(usage(&decider, policy, &denial, now), Some((9, 3)), "{policy}");
            let settle = Operation::Settle { id: b"h", used: Some(0) };
            let _ = apply(&decider, policy, &[settle], now).await;
            assert_eq!(usage(&decider, policy, &denial, now), None, "{policy}");
            assert_eq!(usage(&decider, "gcra:7/1m", &denial, now), None, "another policy");
            let reset = Operation::Reset;
            let _ = apply(&decider, policy, &[reset], now).await;
            assert_eq!(usage(&decider, policy, &denial, now), None, "{policy}");
        }
    }

    /// Also if the key has a state that has recovered, under another policy.
    #[tokio::test]
    async fn facts_of_an_unused_key_have_no_units_in_use() {
        let decider = decider();
        let now = decider.now();
        let policy = "fixed-window:9/1h";
        let denial = apply(&decider, policy, &[Operation::Take(10)], now).await;
        assert_eq!(usage(&decider, policy, &denial, now), Some((0, 0)));
        let _ = apply(&decider, "gcra:9/1s", &[Operation::Take(1)], now).await;
        let later = now + Duration::from_secs(5);
        let denial = apply(&decider, policy, &[Operation::Take(10)], later).await;
        assert_eq!(usage(&decider, policy, &denial, later), Some((0, 0)));
    }
}
