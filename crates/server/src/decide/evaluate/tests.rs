use std::{borrow::Cow, sync::Arc};

use sluicegate_conformance::{
    ObservedMatch, ObservedOutcome, RuleRequest, RuleSubject, check_rules,
};
use sluicegate_core::{Clock as _, PolicySettings, Timestamp};
use sluicegate_memory::MemoryStore;
use sluicegate_rules::{Format, Request, RuleEvent, RuleSet};

use super::*;
use crate::{clock::ServerClock, policies::rule_store::RuleStore, store::open::OpenStore};

/// A decider with these rules and its state in memory.
fn decider(rules: &str) -> Decider {
    let rules = Arc::new(RuleStore::of(RuleSet::parse(rules, Format::Yaml).unwrap()));
    let store = OpenStore::from(MemoryStore::new());
    Decider::new(store, rules, ServerClock::system(), PolicySettings::default())
}

/// Evaluates the rules for a GET of `path` with the header `u`.
fn evaluate<R>(
    decider: &Decider,
    (operation, path, user): (RuleOperation, &str, Option<&str>),
    now: Timestamp,
    read: impl FnOnce(&[Match<'_>], Result<RuleOutcome, StoreError>) -> R,
) -> R {
    let headers: Vec<_> = user.map(|user| ("u", user)).into_iter().collect();
    let rules = decider.rules.current();
    let matches = rules.rules.matches(&Request::http("GET", path, &headers));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = runtime.block_on(decider.evaluate(&rules, &matches, operation, now));
    read(&matches, outcome)
}

/// A server under the cases of `conformance`.
struct Server {
    decider: Decider,
    start: Timestamp,
}

impl RuleSubject for Server {
    fn evaluate(&mut self, request: &RuleRequest<'_>) -> ObservedOutcome {
        let operation = match request.operation {
            "take" => RuleOperation::Take(request.hits),
            "peek" => RuleOperation::Peek(request.hits),
            _ => RuleOperation::Refund(request.hits),
        };
        let (now, request) = (self.start + request.at, (operation, request.path, request.user));
        evaluate(&self.decider, request, now, |matches, outcome| {
            let outcome = outcome.unwrap();
            let matches = matches.iter().zip(&outcome.matches).map(|(found, it)| ObservedMatch {
                rule: found.rule.name().to_owned(),
                level: found.charges.get(it.charge).and_then(|it| it.level).map(ToOwned::to_owned),
                allowed: it.allowed,
                decision: it.decision,
            });
            let matches = matches.collect();
            ObservedOutcome { allowed: outcome.allowed, binding: outcome.binding, matches }
        })
    }

    fn events(&self, rule: &str) -> Vec<(&'static str, u64)> {
        let all = self.decider.rules.counters.all();
        let found = all.iter().find(|(name, _)| **name == *rule);
        let counts =
            found.map(|(_, it)| RuleEvent::ALL.map(|event| (event.name(), it.count(event))));
        counts.into_iter().flatten().filter(|(_, count)| *count > 0).collect()
    }
}

#[test]
fn evaluate_agrees_with_all_cases() {
    check_rules(|rules| {
        let decider = decider(rules);
        let start = decider.clock.now();
        Server { decider, start }
    });
}

#[test]
fn evaluate_key_too_long_is_an_error() {
    let decider = decider("rules: [{name: all, key: header.u, policy: 'fixed-window:5/1h'}]");
    let user = "x".repeat(65_536);
    let request = (RuleOperation::Take(1), "/", Some(&*user));
    let error = evaluate(&decider, request, decider.clock.now(), |_, outcome| outcome.unwrap_err());
    assert_eq!(
        crate::store::error_reply(&error),
        "ERR invalid key: expected 1 to 65536 bytes, found 65545"
    );
}

#[test]
fn evaluate_shadow_rule_with_an_error_denies_nothing() {
    let decider = decider(
        "rules: [{name: a, policy: 'gcra:5/1m'}, {name: long, shadow: true, key: header.u, policy: 'gcra:5/1m'}, \
         {name: b, shadow: true, policy: 'gcra:5/1m'}, {name: c, shadow: true, policy: 'gcra:5/1m'}]",
    );
    let (now, rules, user) = (decider.clock.now(), decider.rules.current(), "x".repeat(65_536));
    let mut matches = rules.rules.matches(&Request::http("GET", "/", &[("u", user)]));
    let policy = "concurrency:5/1m".parse().unwrap();
    (matches[2].charges[0].policy, matches[2].charges[0].index) = (Cow::Owned(policy), None);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let outcome = decider.evaluate(&rules, &matches, RuleOperation::Take(1), now);
    let outcome = runtime.block_on(outcome).unwrap();
    let remaining = outcome.matches.iter().map(|it| it.decision.map(|it| it.remaining));
    assert_eq!(remaining.collect::<Vec<_>>(), [Some(4), None, None, Some(4)]);
    assert!(outcome.allowed && outcome.matches.iter().all(|it| it.allowed));
    let server = Server { decider, start: now };
    let events = ["a", "long", "b", "c"].map(|rule| server.events(rule).len());
    assert_eq!(events, [1, 0, 0, 1]);
}

/// Rules files cannot have such a policy. If a match has one nevertheless, nothing is taken.
#[test]
fn evaluate_policy_with_concurrency_is_an_error() {
    let rules = "rules: [{name: a, policy: 'gcra:5/1m'}, {name: b, policy: 'gcra:5/1m'}]";
    let decider = decider(rules);
    let (now, rules) = (decider.clock.now(), decider.rules.current());
    let mut matches = rules.rules.matches(&Request::http("GET", "/", &()));
    let policy = "concurrency:5/1m".parse().unwrap();
    (matches[1].charges[0].policy, matches[1].charges[0].index) = (Cow::Owned(policy), None);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    for operation in [RuleOperation::Take(1), RuleOperation::Refund(1)] {
        for matches in [&matches[1..], &matches[..]] {
            let outcome = runtime.block_on(decider.evaluate(&rules, matches, operation, now));
            let error = outcome.unwrap_err().to_string();
            assert!(error.ends_with("use hold"), "{error}");
        }
    }
    let outcome =
        runtime.block_on(decider.evaluate(&rules, &matches[..1], RuleOperation::Peek(1), now));
    assert_eq!(outcome.unwrap().matches[0].decision.unwrap().remaining, 5);
}
