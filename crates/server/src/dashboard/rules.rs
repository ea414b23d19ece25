//! The rules in force: what became of requests by each of them, and what they say.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;
use sluicegate_rules::RuleEvent;

use super::sources::Sources;
use crate::policies::rule_store::RuleCounters;

/// So many rules are told of with each frame: those that decided most since somebody began to look.
const TOLD: usize = 20;
/// So many rules, and so many named policies, are told in words.
const SAID: usize = 200;

/// What a frame tells of the rules.
#[derive(Debug, Serialize)]
pub(super) struct Rules {
    /// The first that was read is 1.
    version: u64,
    count: usize,
    /// When this version was read.
    at_us: Option<u64>,
    /// How often others were read since the start, and could be used or not.
    reloads: u64,
    failed: u64,
    /// What is wrong with the files as they stand: the version in force is an older one.
    problem: Option<String>,
    /// What became of requests, since the start.
    decisions: Vec<Decided>,
    /// How many names there are that something is counted of.
    names: usize,
}

/// What became of requests by one rule, as the metrics count it.
#[derive(Debug, Serialize)]
struct Decided {
    rule: Box<str>,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    unlimited: u64,
    blocked: u64,
    fallback: u64,
}

/// What the rules say, in words.
#[derive(Debug, Serialize)]
pub(super) struct Said {
    version: u64,
    /// How many there are, and the first of them.
    count: usize,
    rules: Vec<Rule>,
    /// How many policies have a name, and the first of them.
    named: usize,
    policies: Vec<Policy>,
}

#[derive(Debug, Serialize)]
struct Rule {
    title: String,
    lines: Vec<(&'static str, String)>,
}

#[derive(Debug, Serialize)]
struct Policy {
    name: String,
    text: String,
}

/// Tells frame after frame which rules decide most.
#[derive(Debug)]
pub(super) struct Reader {
    /// How many requests each had decided when somebody began to look.
    before: BTreeMap<Arc<str>, u64>,
}

impl Reader {
    pub(super) fn new(sources: &Sources) -> Self {
        let all = sources.decider.rules.counters.all();
        let all = all.iter().map(|(name, tally)| (Arc::clone(name), tally.requests()));
        Self { before: all.collect() }
    }

    /// What is in force; `None` where there are no files of rules.
    pub(super) fn rules(&self, sources: &Sources) -> Option<Rules> {
        let version = sources.decider.rules.current();
        if version.number() == 0 {
            return None;
        }
        // No name ever goes, and both are in the order of names.
        let mut before = self.before.iter().peekable();
        let (top, names) = sources.decider.rules.counters.top(TOLD, |name, tally| {
            let known = before.next_if(|(known, _)| ***known == *name);
            tally.requests().saturating_sub(known.map_or(0, |(_, count)| *count))
        });
        let told = sources.decider.rules.status();
        Some(Rules {
            version: version.number(),
            count: version.rules().rules().len(),
            at_us: told.at.map(|at| at.as_micros()),
            reloads: told.reloads,
            failed: told.failed,
            problem: told.problem,
            decisions: top.into_iter().map(|(rule, tally)| decided(&rule, &tally)).collect(),
            names,
        })
    }
}

fn decided(rule: &str, tally: &RuleCounters) -> Decided {
    Decided {
        rule: rule.into(),
        allowed: tally.count(RuleEvent::Allowed),
        denied: tally.count(RuleEvent::Denied),
        shadow_denied: tally.count(RuleEvent::ShadowDenied),
        unlimited: tally.count(RuleEvent::Unlimited),
        blocked: tally.count(RuleEvent::Blocked),
        fallback: tally.count(RuleEvent::Fallback),
    }
}

/// What the rules in force say.
pub(super) fn said(sources: &Sources) -> Said {
    let version = sources.decider.rules.current();
    let rules = version.rules();
    let names = rules.policy_names();
    let policies = names.iter().take(SAID).filter_map(|name| {
        let text = rules.policy(name)?.to_string();
        Some(Policy { name: (*name).to_owned(), text })
    });
    let described = rules.described().take(SAID);
    Said {
        version: version.number(),
        count: rules.rules().len(),
        rules: described
            .map(|it| Rule { title: format!("{} (line {})", it.name, it.line), lines: it.lines })
            .collect(),
        named: names.len(),
        policies: policies.collect(),
    }
}
