//! Calls of Envoy's rate limit service, and what their rules decide: written from `docs/rules.md`, not from the code that
//! evaluates rules.

use std::{collections::BTreeMap, fmt};

use anyhow::{Result, bail, ensure};
use sluicegate_conformance::OracleSubject;
use sluicegate_core::{Decision, Operation, Policy, PreparedPolicy, Retry, Timestamp};
use sluicegate_server::simulation::{DescriptorDecision, SimulatedServer};

use crate::{
    oracle::{decide, decide_denied},
    redis_model::ScriptCall,
    words::{Words, parse},
};

/// The domain of all calls.
const DOMAIN: &str = "shop";
/// The names of the entries that descriptors may have.
const ENTRIES: [&str; 2] = ["user", "plan"];

/// A rule that counts descriptors by one of their entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RulePlan {
    /// The entry: its place among [`ENTRIES`].
    pub(crate) entry: usize,
    pub(crate) cost: u32,
    pub(crate) is_shadow: bool,
    pub(crate) policy: String,
}

/// The values of the entries of a descriptor.
pub(crate) type DescriptorPlan = [Option<u8>; ENTRIES.len()];

impl RulePlan {
    /// Reads the rest of the line `rule`.
    pub(crate) fn read(words: &mut Words<'_>) -> Result<Self> {
        let (entry, cost) = (words.number()?, words.number()?);
        ensure!(entry < ENTRIES.len(), "a rule has one of {} entries", ENTRIES.len());
        let is_shadow = match words.word()? {
            "shadow" => true,
            "enforced" => false,
            other => bail!("invalid `{other}`: expected `shadow` or `enforced`"),
        };
        Ok(Self { entry, cost, is_shadow, policy: words.word()?.to_owned() })
    }
}

impl fmt::Display for RulePlan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entry, cost, is_shadow, policy } = self;
        let word = if *is_shadow { "shadow" } else { "enforced" };
        write!(formatter, "rule {entry} {cost} {word} {policy}")
    }
}

/// Writes descriptors: the values of their entries, or `-`.
pub(crate) fn write(
    formatter: &mut fmt::Formatter<'_>,
    descriptors: &[DescriptorPlan],
) -> fmt::Result {
    descriptors.iter().flatten().try_for_each(|value| match value {
        Some(value) => write!(formatter, " {value}"),
        None => write!(formatter, " -"),
    })
}

/// Reads descriptors up to the end of the line.
pub(crate) fn read(words: &mut Words<'_>) -> Result<Vec<DescriptorPlan>> {
    let mut descriptors = Vec::new();
    while let Some(first) = words.next() {
        let value = |word| if word == "-" { Ok(None) } else { parse(word).map(Some) };
        let descriptor = [value(first)?, value(words.word()?)?];
        ensure!(descriptor != [None, None], "a descriptor has an entry");
        descriptors.push(descriptor);
    }
    ensure!(!descriptors.is_empty(), "a call has a descriptor");
    Ok(descriptors)
}

/// The text of the rules.
pub(super) fn rules_text(rules: &[RulePlan]) -> String {
    let rule = |(index, it): (usize, &RulePlan)| {
        let RulePlan { entry, cost, is_shadow, policy } = it;
        let entry = ENTRIES[*entry];
        format!(
            "  - {{name: rule{index}, match: {{domain: {DOMAIN}}}, key: descriptor.{entry}, policy: '{policy}', cost: {cost}, \
             shadow: {is_shadow}}}\n"
        )
    };
    let rules: String = rules.iter().enumerate().map(rule).collect();
    if rules.is_empty() { rules } else { format!("rules:\n{rules}") }
}

/// Rules, and the states of their keys.
#[derive(Debug)]
pub(super) struct RuleStates {
    rules: Vec<(RulePlan, PreparedPolicy)>,
    states: BTreeMap<(usize, u8), OracleSubject>,
}

impl RuleStates {
    pub(super) fn new(rules: &[RulePlan]) -> Result<Self> {
        let prepared = rules.iter().map(|it| Ok((it.clone(), it.policy.parse()?)));
        Ok(Self { rules: prepared.collect::<Result<_>>()?, states: BTreeMap::new() })
    }

    /// Calls the server, and returns what is wrong with the response.
    pub(super) fn call(
        &mut self,
        server: &SimulatedServer,
        descriptors: &[DescriptorPlan],
        hits: i64,
        now: Timestamp,
    ) -> Option<String> {
        let entries = |descriptor: &DescriptorPlan| {
            let values = ENTRIES.iter().zip(descriptor);
            values.filter_map(|(name, value)| Some((*name, value.as_ref()?.to_string()))).collect()
        };
        let named: Vec<Vec<_>> = descriptors.iter().map(entries).collect();
        let found = server.should_rate_limit(DOMAIN, &named, hits);
        let expected: Result<Vec<_>, String> =
            descriptors.iter().map(|it| self.decide(it, hits, now)).collect();
        let expected = expected.map(|each| (each.iter().any(|it| it.is_over), each));
        let is_right = match (&found, &expected) {
            (Some(Ok(found)), Ok(expected)) => found == expected,
            (Some(Err(_)), Err(_)) => true,
            _ => false,
        };
        (!is_right).then(|| format!("{hits} hits of {named:?}: {found:?}, not {expected:?}"))
    }

    /// The decision on a descriptor.
    fn decide(
        &mut self,
        descriptor: &DescriptorPlan,
        hits: i64,
        now: Timestamp,
    ) -> Result<DescriptorDecision, String> {
        let Self { rules, states } = self;
        // No hits ask for one.
        let count = u32::try_from(hits.unsigned_abs()).unwrap_or(u32::MAX).max(1);
        let matches = rules.iter().enumerate().filter_map(|(index, (rule, policy))| {
            let key = (index, descriptor[rule.entry]?);
            Some((key, rule, policy.policy(), rule.cost * count))
        });
        let matches: Vec<_> = matches.collect();
        let mut apply = |key, policy, operation: Operation, decides: Decide| {
            let call = ScriptCall { policy, operation: operation.into() };
            decides(states.entry(key).or_default(), call, now)
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
            limits.push((rule.is_shadow, apply(key, policy, operation, decides)?));
        }
        Ok(represented(&limits))
    }
}

type Decide = fn(&mut OracleSubject, ScriptCall<'_>, Timestamp) -> Result<Decision, String>;

/// The limit that represents a descriptor: an enforced one that denies, or else the one with the least remaining; of equals the
/// first.
fn represented(limits: &[(bool, Decision)]) -> DescriptorDecision {
    let is_over = |(is_shadow, decision): &(bool, Decision)| !is_shadow && !decision.allowed();
    let limit = limits.iter().min_by_key(|it| (!is_over(it), it.1.remaining));
    let Some(limit) = limit else {
        return DescriptorDecision { is_over: false, remaining: 0, reset: None };
    };
    // The time until the same request passes, if it does.
    let reset = match limit.1.retry() {
        Some(Retry::After(wait)) => wait,
        Some(Retry::Never) | None => limit.1.reset_after,
    };
    let seconds = reset.as_micros().div_ceil(1_000_000);
    let (remaining, reset) = (limit.1.remaining, i64::try_from(seconds).ok());
    DescriptorDecision { is_over: is_over(limit), remaining, reset }
}
