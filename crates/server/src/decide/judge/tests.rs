use std::sync::Arc;

use sluicegate_conformance::{
    ObservedMatch, ObservedOutcome, RuleRequest, RuleSubject, check_rules,
};
use sluicegate_core::{Clock as _, OnError, Timestamp};
use sluicegate_memory::{MemoryStore, SystemClock};
use sluicegate_rules::{Format, Request, RuleSet};

use super::*;
use crate::{budgets::buffers::BufferBudget, policies::ruleset::Live, store::home::Home};

/// A server's inside, by these rules, in memory.
fn decider(rules: &str) -> Decider {
    let rules = Arc::new(Live::of(RuleSet::parse(rules, Format::Yaml).unwrap()));
    let store = Arc::new(Home::Memory(MemoryStore::new()));
    let (clock, buffers) = (SystemClock::new(), Arc::new(BufferBudget::new(1 << 20)));
    Decider::new(store, rules, clock, buffers, OnError::Deny)
}

/// What is said to a request of `target` with the header `u`, and by which rule, level and limit.
fn ask(decider: &Decider, ask: Ask, target: &str, user: &str, now: Timestamp) -> String {
    let headers = [("u", user)];
    let version = decider.rules.now();
    let matches = version.rules().matches(&Request::http("GET", target, &headers));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let verdict = runtime.block_on(decide(decider, &version, &matches, ask, now)).unwrap();
    let word = if verdict.allowed { "allow" } else { "deny" };
    let Some(binding) = verdict.binding else { return word.to_owned() };
    let (found, told) = (&matches[binding], &verdict.told[binding]);
    let level = found.charges.get(told.charge).and_then(|charge| charge.level);
    let level = level.map(|level| format!("/{level}")).unwrap_or_default();
    let left = told.decision.map(|it| format!(" {} left", it.remaining)).unwrap_or_default();
    format!("{word} {}{level}{left}", found.rule.name())
}

/// What is counted of a rule.
fn counted(decider: &Decider, rule: &str) -> Vec<(&'static str, u64)> {
    let all = decider.rules.tallies.all();
    let found = all.iter().find(|(name, _)| **name == *rule);
    let counts = found.map(|(_, tally)| Event::ALL.map(|it| (it.word(), tally.count(it))));
    counts.into_iter().flatten().filter(|(_, count)| *count > 0).collect()
}

const TAKE: Ask = Ask::Take(1);

#[test]
fn a_denied_user_takes_nothing_from_what_all_share() {
    let decider = decider(
        "
rules:
  - name: api
    levels:
      - {name: user, key: header.u, policy: 'fixed-window:2/1h'}
      - {name: tenant, policy: 'fixed-window:3/1h'}
      - {name: all, policy: 'fixed-window:100/1h:count=all'}
",
    );
    let now = decider.clock.now();
    assert_eq!(ask(&decider, Ask::Peek(1), "/", "a", now), "allow api/user 2 left");
    assert_eq!(ask(&decider, TAKE, "/", "a", now), "allow api/user 1 left");
    assert_eq!(ask(&decider, TAKE, "/", "a", now), "allow api/user 0 left");
    for _ in 0..20 {
        assert_eq!(ask(&decider, TAKE, "/", "a", now), "deny api/user 0 left");
    }
    // One that the tenant denies takes nothing from the user.
    assert_eq!(ask(&decider, TAKE, "/", "b", now), "allow api/tenant 0 left");
    assert_eq!(ask(&decider, TAKE, "/", "b", now), "deny api/tenant 0 left");
    let key = b"{rule:api}:user|b";
    let policy = "fixed-window:2/1h".parse().unwrap();
    let store = decider.store.memory().unwrap();
    let left = store.apply(key, &policy, now, Operation::Peek(0)).unwrap().remaining;
    assert_eq!(left, 1);
    assert_eq!(counted(&decider, "api"), [("allowed", 3), ("near_limit", 2), ("denied", 21)]);
    // What is given back can be taken again.
    assert_eq!(ask(&decider, Ask::Refund(1), "/", "b", now), "allow api/tenant 1 left");
    assert_eq!(ask(&decider, TAKE, "/", "b", now), "allow api/tenant 0 left");
}

#[test]
fn rules_that_apply_together_are_all_or_nothing() {
    let decider = decider(
        "
rules:
  - {name: wide, policy: 'fixed-window:9/1h'}
  - {name: narrow, key: header.u, policy: 'fixed-window:1/1h', cost: 1}
",
    );
    let now = decider.clock.now();
    assert_eq!(ask(&decider, TAKE, "/", "a", now), "allow narrow 0 left");
    for _ in 0..5 {
        assert_eq!(ask(&decider, TAKE, "/", "a", now), "deny narrow 0 left");
    }
    assert_eq!(ask(&decider, Ask::Peek(8), "/", "b", now), "deny narrow 1 left");
    assert_eq!(ask(&decider, TAKE, "/", "b", now), "allow narrow 0 left");
    assert_eq!(counted(&decider, "narrow"), [("allowed", 2), ("near_limit", 2), ("denied", 5)]);
}

#[test]
fn what_only_counts_never_denies() {
    let decider = decider(
        "
rules:
  - {name: trial, key: header.u, policy: 'fixed-window:1/1h', shadow: true}
  - {name: banned, match: {header.u: evil}, block: true, shadow: true}
  - {name: all, policy: 'fixed-window:5/1h'}
",
    );
    let now = decider.clock.now();
    for left in (1..5).rev() {
        assert_eq!(ask(&decider, TAKE, "/", "a", now), format!("allow all {left} left"));
    }
    assert_eq!(ask(&decider, TAKE, "/", "evil", now), "allow all 0 left");
    // What is denied is not seen by what only counts.
    assert_eq!(ask(&decider, TAKE, "/", "c", now), "deny all 0 left");
    assert_eq!(
        counted(&decider, "trial"),
        [("allowed", 2), ("near_limit", 2), ("shadow_denied", 3)]
    );
    assert_eq!(counted(&decider, "banned"), [("shadow_denied", 1)]);
    assert_eq!(counted(&decider, "all"), [("allowed", 5), ("near_limit", 1), ("denied", 1)]);
}

#[test]
fn what_lets_through_or_blocks_is_named_and_counted() {
    let decider = decider(
        "
rules:
  - {name: health, match: {path: /healthz}, unlimited: true}
  - {name: banned, match: {header.u: evil}, block: true}
  - {name: all, match: {path: /api}, policy: 'fixed-window:5/1h'}
",
    );
    let now = decider.clock.now();
    assert_eq!(ask(&decider, TAKE, "/healthz", "evil", now), "allow health");
    assert_eq!(ask(&decider, TAKE, "/api", "evil", now), "deny banned");
    assert_eq!(ask(&decider, TAKE, "/", "a", now), "allow");
    assert_eq!(ask(&decider, Ask::Peek(5), "/api", "a", now), "allow all 5 left");
    assert_eq!(counted(&decider, "health"), [("unlimited", 1)]);
    assert_eq!(counted(&decider, "banned"), [("blocked", 1)]);
    assert_eq!(counted(&decider, "all"), []);
}

#[test]
fn a_key_that_is_too_long_is_refused() {
    let decider = decider("rules: [{name: all, key: header.u, policy: 'fixed-window:5/1h'}]");
    let user = "x".repeat(65_536);
    let headers = [("u", &*user)];
    let version = decider.rules.now();
    let matches = version.rules().matches(&Request::http("GET", "/", &headers));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decided = decide(&decider, &version, &matches, TAKE, decider.clock.now());
    let trouble = runtime.block_on(decided).unwrap_err();
    assert_eq!(trouble.to_string(), "ERR invalid key: expected 1 to 65536 bytes, found 65545");
}

/// The cases of `conformance`, through a server's store.
struct Judge {
    decider: Decider,
    start: Timestamp,
}

impl RuleSubject for Judge {
    fn evaluate(&mut self, request: &RuleRequest<'_>) -> ObservedOutcome {
        let headers: Vec<_> = request.user.map(|user| ("u", user)).into_iter().collect();
        let version = self.decider.rules.now();
        let matches = version.rules().matches(&Request::http("GET", request.path, &headers));
        let ask = match request.operation {
            "take" => Ask::Take(request.hits),
            "peek" => Ask::Peek(request.hits),
            _ => Ask::Refund(request.hits),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let now = self.start + request.at;
        let verdict =
            runtime.block_on(decide(&self.decider, &version, &matches, ask, now)).unwrap();
        let matches = matches.iter().zip(&verdict.told).map(|(found, told)| ObservedMatch {
            rule: found.rule.name().to_owned(),
            level: found.charges.get(told.charge).and_then(|it| it.level).map(ToOwned::to_owned),
            allowed: told.allowed,
            decision: told.decision,
        });
        let matches = matches.collect();
        ObservedOutcome { allowed: verdict.allowed, binding: verdict.binding, matches }
    }

    fn events(&self, rule: &str) -> Vec<(&'static str, u64)> {
        counted(&self.decider, rule)
    }
}

#[test]
fn decide_rules_agrees_with_all_cases() {
    check_rules(|rules| {
        let decider = decider(rules);
        let start = decider.clock.now();
        Judge { decider, start }
    });
}
