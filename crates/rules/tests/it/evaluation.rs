//! Evaluation of rules, on a store of the core's entries.

use std::collections::HashMap;

use sluicegate_conformance::{
    ObservedMatch, ObservedOutcome, RuleRequest, RuleSubject, check_rules,
};
use sluicegate_core::{
    Answer, Decision, Entry, EntryOperation, KeyLengthError, OnError, Operation, Outcome, Retry,
    Share, Source, Timestamp, apply, apply_all,
};
use sluicegate_rules::{
    ChargeSet, Descriptor, Evaluation, Request, RuleEvent, RuleOperation, RuleSet,
};

use super::rules;

/// Keys with their state, as a store that is always available.
#[derive(Default)]
struct Entries(HashMap<Vec<u8>, Option<Entry>>);

impl Entries {
    fn apply(&mut self, set: ChargeSet<'_, '_, '_>, now: Timestamp) -> Vec<Answer> {
        let requests: Vec<_> = set.requests().collect();
        let mut entries: Vec<_> =
            requests.iter().map(|it| self.0.remove(&it.charge.key).flatten()).collect();
        let mut parts: Vec<_> = requests
            .iter()
            .zip(&mut entries)
            .map(|(request, entry)| EntryOperation {
                policy: &request.charge.policy,
                entry,
                operation: set.operation(request),
            })
            .collect();
        let decisions = if set.is_all_or_none() {
            apply_all(&mut parts, now).unwrap().each().to_vec()
        } else {
            let apply = |it: EntryOperation<'_>| apply(it.policy, it.entry, now, it.operation);
            parts.into_iter().map(|it| apply(it).unwrap()).collect()
        };
        for (request, entry) in requests.iter().zip(entries) {
            self.0.insert(request.charge.key.clone(), entry);
        }
        decisions.into_iter().map(Answer::from).collect()
    }
}

/// The cases of `conformance`.
struct Subject {
    rules: RuleSet,
    entries: Entries,
    events: Vec<(String, RuleEvent)>,
}

impl RuleSubject for Subject {
    fn evaluate(&mut self, request: &RuleRequest<'_>) -> ObservedOutcome {
        let headers: Vec<_> = request.user.map(|user| ("u", user)).into_iter().collect();
        let matches = self.rules.matches(&Request::http("GET", request.path, &headers));
        let operation = match request.operation {
            "take" => RuleOperation::Take(request.hits),
            "peek" => RuleOperation::Peek(request.hits),
            _ => RuleOperation::Refund(request.hits),
        };
        let now = Timestamp::EPOCH + std::time::Duration::from_secs(86_400) + request.at;
        let mut evaluation = Evaluation::new(&matches, operation).unwrap();
        while let Some(set) = evaluation.next_charges() {
            let answers = self.entries.apply(set, now);
            evaluation.record(&answers);
        }
        for (found, events) in evaluation.events() {
            self.events.extend(events.map(|event| (found.metric.to_string(), event)));
        }
        let outcome = evaluation.into_outcome();
        let observed = matches.iter().zip(&outcome.matches).map(|(found, it)| ObservedMatch {
            rule: found.rule.name().to_owned(),
            level: found.charges.get(it.charge).and_then(|it| it.level).map(ToOwned::to_owned),
            allowed: it.allowed,
            decision: it.decision,
        });
        let matches = observed.collect();
        ObservedOutcome { allowed: outcome.allowed, binding: outcome.binding, matches }
    }

    fn events(&self, rule: &str) -> Vec<(&'static str, u64)> {
        let count = |event: RuleEvent| {
            let same = |it: &&(String, RuleEvent)| it.0 == rule && it.1 == event;
            (event.name(), self.events.iter().filter(same).count() as u64)
        };
        RuleEvent::ALL.map(count).into_iter().filter(|(_, count)| *count > 0).collect()
    }
}

#[test]
fn evaluation_agrees_with_all_cases() {
    check_rules(|text| Subject {
        rules: rules(text),
        entries: Entries::default(),
        events: Vec::new(),
    });
}

#[test]
fn evaluation_returns_on_error_with_each_request() {
    let rules = rules(
        "
rules:
  - {name: first, state: same, policy: 'gcra:1/1s', on_error: allow}
  - {name: second, state: same, policy: 'gcra:1/1s', on_error: deny}
  - {name: third, policy: 'gcra:1/1s'}
  - {name: shadow, policy: 'gcra:1/1s', on_error: local=1/4, shadow: true}
",
    );
    let matches = rules.matches(&Request::http("GET", "/", &()));
    let mut evaluation = Evaluation::new(&matches, RuleOperation::Take(1)).unwrap();
    let mut on_error = Vec::new();
    let mut entries = Entries::default();
    while let Some(set) = evaluation.next_charges() {
        on_error.push(set.requests().map(|it| it.on_error).collect::<Vec<_>>());
        let answers = entries.apply(set, Timestamp::EPOCH);
        evaluation.record(&answers);
    }
    let local = OnError::Local(Share::of(1, 4).unwrap());
    assert_eq!(on_error, [vec![Some(OnError::Allow), None], vec![Some(local)]]);
}

#[test]
fn evaluation_fallback_answer_counts_for_its_match() {
    let rules = rules(
        "
rules:
  - {name: one, policy: 'gcra:1/1s'}
  - {name: two, levels: [{name: a, policy: 'gcra:5/1s'}, {name: b, policy: 'gcra:5/1s'}]}
",
    );
    let matches = rules.matches(&Request::http("GET", "/", &()));
    let decision = |outcome| Decision {
        outcome,
        limit: 5,
        remaining: 4,
        reset_after: std::time::Duration::ZERO,
        binding: 0,
    };
    let allow = decision(Outcome::Allow { delay: std::time::Duration::ZERO });
    let deny = decision(Outcome::Deny { retry: Retry::Never });
    for (sources, decisions, expected, events) in [
        (
            [Source::Cache, Source::Lease, Source::Store],
            [allow; 3],
            [Source::Cache, Source::Lease],
            "one Allowed, two Allowed",
        ),
        (
            [Source::Store, Source::Fallback, Source::Store],
            [allow; 3],
            [Source::Store, Source::Fallback],
            "one Allowed, two Fallback, two Allowed",
        ),
        (
            [Source::Store, Source::Store, Source::Fallback],
            [allow, allow, deny],
            [Source::Store, Source::Fallback],
            "two Fallback, two Denied",
        ),
    ] {
        let mut evaluation = Evaluation::new(&matches, RuleOperation::Take(1)).unwrap();
        assert!(evaluation.next_charges().is_some());
        let answers = decisions.iter().zip(sources);
        let answers = answers.map(|(&decision, source)| Answer::new(decision, source));
        evaluation.record(&answers.collect::<Vec<_>>());
        assert!(evaluation.next_charges().is_none());
        let found: Vec<_> = evaluation.outcome().matches.iter().map(|it| it.source).collect();
        assert_eq!(found, expected);
        let counted = evaluation.events().flat_map(|(found, events)| {
            events.map(move |event| format!("{} {event:?}", found.metric))
        });
        assert_eq!(counted.collect::<Vec<_>>().join(", "), events);
    }
}

#[test]
fn evaluation_rules_that_hold_are_applied_first_and_settled_by_a_refund() {
    let rules = rules(
        "
rules:
  - {name: rate, match: {domain: d}, policy: 'gcra:1/1s'}
  - {name: flight, hold_id: descriptor.id, policy: 'concurrency:2/1s', cost: 3}
  - {name: jobs, hold_id: descriptor.id, policy: 'concurrency:5/1s'}
  - {name: watched, hold_id: descriptor.id, policy: 'concurrency:1/1s', shadow: true}
",
    );
    let hold = |cost| format!("{:?}", Operation::Hold { id: b"r1", cost, ttl: None });
    let (take, peek) = ("Take(1)".to_owned(), "Peek(1)".to_owned());
    let settle = format!("{:?}", Operation::Settle { id: b"r1", used: None });
    let applied = |operation, entries: &[(&str, &str)], denials: &[usize]| {
        let descriptors = [Descriptor { entries, limit: None }];
        let matches = rules.descriptors("d", &descriptors);
        let mut evaluation = Evaluation::new(&matches[0], operation).unwrap();
        let mut applied = Vec::new();
        while let Some(set) = evaluation.next_charges() {
            let requests: Vec<_> = set.requests().collect();
            let [request] = &requests[..] else { panic!("one key at a time") };
            let outcome = match denials.contains(&applied.len()) {
                true => Outcome::Deny { retry: Retry::Never },
                false => Outcome::Allow { delay: std::time::Duration::ZERO },
            };
            applied.push(format!("{:?}", set.operation(request)));
            let reset_after = std::time::Duration::ZERO;
            let decision = Decision { outcome, limit: 5, remaining: 4, reset_after, binding: 0 };
            evaluation.record(&[decision.into()]);
        }
        (applied, evaluation.outcome().allowed)
    };
    let request = [("id", "r1")];
    let all = vec![hold(3), hold(1), take.clone(), hold(1)];
    assert_eq!(applied(RuleOperation::Take(1), &request, &[]), (all, true));
    let denied = vec![hold(3), "Peek(1)".into(), peek.clone(), peek.clone()];
    assert_eq!(applied(RuleOperation::Take(1), &request, &[0]), (denied, false));
    let settled = vec![settle.clone(), settle.clone(), settle];
    assert_eq!(applied(RuleOperation::Refund(1), &request, &[]), (settled, true));
    let peeked = vec!["Peek(3)".into(), peek.clone(), peek.clone(), peek];
    assert_eq!(applied(RuleOperation::Peek(1), &request, &[]), (peeked, true));
    // Without the id of the request, only the rate applies.
    let other = [("other", "r1")];
    assert_eq!(applied(RuleOperation::Take(1), &other, &[]), (vec![take], true));
    let refund = vec!["Refund(1)".into()];
    assert_eq!(applied(RuleOperation::Refund(1), &other, &[]), (refund, true));
}

#[test]
fn evaluation_key_too_long_is_an_error() {
    let rules = rules(
        "
rules:
  - {name: banned, block: true, shadow: true}
  - {name: all, key: header.u, policy: 'fixed-window:5/1h'}
",
    );
    // The key is `rule:all|` and the value.
    for (length, expected) in [(65_527, None), (65_528, Some(KeyLengthError(65_537)))] {
        let headers = [("u", "x".repeat(length))];
        let matches = rules.matches(&Request::http("GET", "/", &headers));
        let error = Evaluation::new(&matches, RuleOperation::Take(1)).err();
        assert_eq!(error, expected, "{length}");
    }
    assert_eq!(
        KeyLengthError(65_537).to_string(),
        "invalid key: expected 1 to 65536 bytes, found 65537"
    );
}

#[test]
fn evaluation_without_keys_needs_no_store() {
    let rules = rules(
        "
rules:
  - {name: health, match: {path: /healthz}, unlimited: true}
  - {name: banned, block: true}
",
    );
    for (path, operation, allowed) in [
        ("/healthz", RuleOperation::Take(1), true),
        ("/", RuleOperation::Take(1), false),
        ("/", RuleOperation::Refund(1), false),
    ] {
        let matches = rules.matches(&Request::http("GET", path, &()));
        let mut evaluation = Evaluation::new(&matches, operation).unwrap();
        assert!(evaluation.next_charges().is_none());
        assert_eq!(
            (evaluation.outcome().allowed, evaluation.outcome().binding),
            (allowed, Some(0))
        );
    }
}
