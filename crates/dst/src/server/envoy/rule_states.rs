//! The decisions of rules, and their numbers: written from `docs/rules.md` and `docs/metrics.md`, not from the code that evaluates rules.

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use sluicegate_conformance::{Invocation, OracleSubject, Subject as _};
use sluicegate_core::{Decision, Operation, Policy, PreparedPolicy, Retry, Timestamp};

use super::{
    descriptors::{DescriptorPlan, RulePlan, rule_name},
    message::{Call, CallResponse, DescriptorStatus},
};
use crate::oracle::{decide_denied, on_key};

/// Allowed requests that left less than a fifth of the limit, which metrics count besides.
pub(super) const NEAR_LIMIT: &str = "near_limit";

/// Rules, the states of their keys, and the numbers of their decisions.
#[derive(Clone, Debug)]
pub(super) struct RuleStates {
    rules: Arc<[(RulePlan, PreparedPolicy)]>,
    states: BTreeMap<(usize, u8), OracleSubject>,
    /// By the name of the rule, and the outcome.
    counts: BTreeMap<(String, &'static str), u64>,
}

impl RuleStates {
    pub(super) fn new(rules: &[RulePlan]) -> Result<Self> {
        let prepared = rules.iter().map(|it| Ok((it.clone(), it.policy.parse()?)));
        let rules = prepared.collect::<Result<_>>()?;
        Ok(Self { rules, states: BTreeMap::new(), counts: BTreeMap::new() })
    }

    /// The response to a call that is decided `now`.
    pub(super) fn respond(&mut self, call: &Call, now: Timestamp) -> CallResponse {
        let each = call.descriptors.iter().map(|it| self.decide(it, call.hits, now));
        each.collect()
    }

    /// The names of the rules.
    pub(super) fn names(&self) -> impl Iterator<Item = String> + use<> {
        (0..self.rules.len()).map(rule_name)
    }

    /// Number of times that a rule has had an outcome, by its name in metrics.
    pub(super) fn count(&self, rule: &str, outcome: &'static str) -> u64 {
        self.counts.get(&(rule.to_owned(), outcome)).copied().unwrap_or_default()
    }

    /// The decision on a descriptor.
    fn decide(
        &mut self,
        descriptor: &DescriptorPlan,
        hits: i64,
        now: Timestamp,
    ) -> Result<DescriptorStatus, String> {
        let Self { rules, states, counts } = self;
        // A query is for one hit.
        let count = u32::try_from(hits.unsigned_abs()).unwrap_or(u32::MAX).max(1);
        let matches = rules.iter().enumerate().filter_map(|(index, (rule, policy))| {
            let key = (index, descriptor[rule.entry]?);
            Some((key, rule, policy.policy(), rule.cost * count))
        });
        let matches: Vec<_> = matches.collect();
        let decide: Decide = OracleSubject::apply;
        let mut apply = |key, policy, operation, decides: Decide| {
            decides(states.entry(key).or_default(), on_key(policy, operation, now))
        };
        let is_enforced = |it: &&((usize, u8), &RulePlan, &Policy, u32)| !it.1.is_shadow;
        // All enforced rules allow it, or none is charged.
        let mut allowed = true;
        for &(key, _, policy, cost) in matches.iter().filter(is_enforced).filter(|_| hits >= 0) {
            allowed &= apply(key, policy, Operation::Peek(cost), decide)?.allowed();
        }
        let is_alone = matches.iter().filter(is_enforced).count() == 1;
        let mut limits = Vec::new();
        for &(key, rule, policy, cost) in &matches {
            let (operation, decides): (_, Decide) = match hits {
                ..0 => (Operation::Refund(cost), decide),
                0 => (Operation::Peek(cost), decide),
                _ if allowed || is_alone && !rule.is_shadow => (Operation::Take(cost), decide),
                _ if rule.is_shadow => (Operation::Peek(cost), decide),
                _ => (Operation::Take(cost), decide_denied),
            };
            let decision = apply(key, policy, operation, decides)?;
            limits.push((rule.is_shadow, decision));
        }
        // A denied request has no other outcome than the denials that count.
        let is_denied = limits.iter().any(|it| !it.0 && !it.1.allowed());
        for ((key, ..), (is_shadow, decision)) in matches.iter().zip(&limits).filter(|_| hits > 0) {
            let outcome = match (decision.allowed(), is_shadow) {
                (true, _) if is_denied => continue,
                (true, _) => "allowed",
                (false, true) if is_denied => continue,
                (false, true) => "shadow_denied",
                (false, false) => "denied",
            };
            *counts.entry((rule_name(key.0), outcome)).or_default() += 1;
            let is_near = u64::from(decision.remaining) * 5 < u64::from(decision.limit);
            if outcome == "allowed" && is_near {
                *counts.entry((rule_name(key.0), NEAR_LIMIT)).or_default() += 1;
            }
        }
        Ok(represented(&limits))
    }
}

type Decide = fn(&mut OracleSubject, Invocation<'_>) -> Result<Decision, String>;

/// The limit that represents a descriptor: an enforced one that denies, or else the one with the least remaining; of equals the
/// first.
fn represented(limits: &[(bool, Decision)]) -> DescriptorStatus {
    let is_over = |(is_shadow, decision): &(bool, Decision)| !is_shadow && !decision.allowed();
    let limit = limits.iter().min_by_key(|it| (!is_over(it), it.1.remaining));
    let Some(limit) = limit else {
        return DescriptorStatus { is_over: false, remaining: 0, reset: None };
    };
    // The time until the same request passes, if it does.
    let reset = match limit.1.retry() {
        Some(Retry::After(wait)) => wait,
        Some(Retry::Never) | None => limit.1.reset_after,
    };
    let seconds = reset.as_micros().div_ceil(1_000_000);
    let (remaining, reset) = (limit.1.remaining, i64::try_from(seconds).ok());
    DescriptorStatus { is_over: is_over(limit), remaining, reset }
}
