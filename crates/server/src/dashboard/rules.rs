//! The rules in force: their decisions, and their description.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use sluicegate_rules::RuleEvent;

use super::sources::Sources;
use crate::policies::rule_store::RuleCounters;

/// Maximum number of rules in a frame: those with most decisions since the first viewer came.
const MAX_RULES_IN_FRAME: usize = 20;
/// Maximum number of rules, and of named policies, in a listing.
const MAX_DESCRIBED: usize = 200;

/// The rules of a frame.
#[derive(Debug, Serialize)]
pub(super) struct RulesFrame {
    /// 1 for the first.
    version: u64,
    count: usize,
    /// When this version was read.
    at_us: Option<u64>,
    /// Reloads since the start, applied and failed.
    reloads: u64,
    failed: u64,
    /// Why the files are invalid now; the version in force is then an older one.
    problem: Option<String>,
    /// Decisions since the start.
    decisions: Vec<RuleDecisions>,
    /// The number of names with counters.
    names: usize,
}

/// The decisions of one rule, as in the metrics.
#[derive(Debug, Serialize)]
struct RuleDecisions {
    rule: Box<str>,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    unlimited: u64,
    blocked: u64,
    fallback: u64,
}

/// The description of the rules.
#[derive(Debug, Serialize)]
pub(super) struct RuleListing {
    version: u64,
    /// The number of rules, and the first of them.
    count: usize,
    rules: Vec<RuleEntry>,
    /// The number of named policies, and the first of them.
    named: usize,
    policies: Vec<PolicyEntry>,
}

/// A rule: its name and line, and its description.
#[derive(Debug, Serialize)]
struct RuleEntry {
    title: String,
    lines: Vec<(&'static str, String)>,
}

/// A named policy.
#[derive(Debug, Serialize)]
struct PolicyEntry {
    name: String,
    text: String,
}

/// Finds the rules with most decisions, frame by frame.
#[derive(Debug)]
pub(super) struct RulesReader {
    /// The decisions of each rule when the first viewer came.
    before: BTreeMap<Arc<str>, u64>,
}

impl RulesReader {
    pub(super) fn new(sources: &Sources) -> Self {
        let all = sources.decider.rules.counters.all();
        let all = all.iter().map(|(name, counters)| (Arc::clone(name), counters.requests()));
        Self { before: all.collect() }
    }

    /// The rules in force; `None` without rules files.
    pub(super) fn rules(&self, sources: &Sources) -> Option<RulesFrame> {
        let version = sources.decider.rules.current();
        if version.number == 0 {
            return None;
        }
        // Names are never removed, and both lists are sorted by name.
        let mut before = self.before.iter().peekable();
        let (top, names) =
            sources.decider.rules.counters.top(MAX_RULES_IN_FRAME, |name, counters| {
                let known = before.next_if(|(known, _)| ***known == *name);
                counters.requests().saturating_sub(known.map_or(0, |(_, count)| *count))
            });
        let status = sources.decider.rules.status();
        Some(RulesFrame {
            version: version.number,
            count: version.rules.rules().len(),
            at_us: status.at.map(|at| at.as_micros()),
            reloads: status.reloads,
            failed: status.failed,
            problem: status.problem,
            decisions: top.into_iter().map(|(rule, counters)| decided(&rule, &counters)).collect(),
            names,
        })
    }
}

fn decided(rule: &str, counters: &RuleCounters) -> RuleDecisions {
    RuleDecisions {
        rule: rule.into(),
        allowed: counters.count(RuleEvent::Allowed),
        denied: counters.count(RuleEvent::Denied),
        shadow_denied: counters.count(RuleEvent::ShadowDenied),
        unlimited: counters.count(RuleEvent::Unlimited),
        blocked: counters.count(RuleEvent::Blocked),
        fallback: counters.count(RuleEvent::Fallback),
    }
}

/// Describes the rules in force.
pub(super) fn listing(sources: &Sources) -> RuleListing {
    let version = sources.decider.rules.current();
    let rules = &version.rules;
    let names = rules.policy_names();
    let policies = names.iter().take(MAX_DESCRIBED).filter_map(|name| {
        let text = rules.policy(name)?.to_string();
        Some(PolicyEntry { name: (*name).to_owned(), text })
    });
    let described = rules.described().take(MAX_DESCRIBED);
    RuleListing {
        version: version.number,
        count: rules.rules().len(),
        rules: described
            .map(|it| RuleEntry {
                title: format!("{} (line {})", it.name, it.line),
                lines: it.lines,
            })
            .collect(),
        named: names.len(),
        policies: policies.collect(),
    }
}
