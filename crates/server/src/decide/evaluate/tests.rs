use std::{borrow::Cow, collections::BTreeMap, sync::Arc, time::Duration};

use opentelemetry::{
    Context,
    trace::{Event, TracerProvider as _},
};
use opentelemetry_sdk::{
    error::OTelSdkResult,
    trace::{SdkTracerProvider, Span, SpanData, SpanProcessor},
};
use parking_lot::Mutex;
use sluicegate_conformance::{
    ObservedMatch, ObservedOutcome, RuleRequest, RuleSubject, check_rules,
};
use sluicegate_core::{Clock as _, PolicySettings, Timestamp};
use sluicegate_memory::MemoryStore;
use sluicegate_rules::{Format, Request, RuleEvent, RuleSet};
use tracing::subscriber::with_default;
use tracing_subscriber::{layer::SubscriberExt as _, registry};

use super::*;
use crate::{
    DashboardMode, clock::ServerClock, key_display::KeyDisplay, policies::rule_store::RuleStore,
    store::open::OpenStore,
};

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

/// Keeps the events of spans that have ended.
#[derive(Clone, Debug, Default)]
struct Ended(Arc<Mutex<Vec<Event>>>);

impl SpanProcessor for Ended {
    fn on_start(&self, _span: &mut Span, _context: &Context) {}

    fn on_end(&self, span: SpanData) {
        self.0.lock().extend(span.events.events);
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _timeout: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Of each rule that denies, of shadow rules too, and of a policy that the request names. Their keys are tags.
#[test]
fn span_has_an_event_for_each_denial() {
    let mut decider = decider(
        "rules: [{name: a, shadow: true, key: header.u, policy: 'gcra:1/1h', cost: 3}, \
         {name: b, match: {path: /b}, key: header.u, policy: 'fixed-window:1/1d', cost: 2}, {name: c, policy: 'gcra:9/1m'}]",
    );
    decider.display = Arc::new(KeyDisplay::new(DashboardMode::On));
    decider.has_spans = true;
    let (ended, now) = (Ended::default(), decider.now());
    let provider = SdkTracerProvider::builder().with_span_processor(ended.clone()).build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("test"));
    with_default(registry().with(layer), || {
        tracing::info_span!("request").in_scope(|| {
            for (path, is_allowed) in [("/a", true), ("/b", false)] {
                let request = (RuleOperation::Take(1), path, Some("x"));
                evaluate(&decider, request, now, |_, outcome| {
                    assert_eq!(outcome.unwrap().allowed, is_allowed);
                });
            }
            let policy = "sliding-log:4/1h".parse().unwrap();
            let operation = Operation::Take(5);
            let keyed = KeyedOperation { key: b"k", policy: &policy, operation };
            let answer = decider.decide(keyed.into(), now).now().unwrap().unwrap();
            decider.note(&keyed, answer.source, &answer.decision, now, None);
        });
        // A request without a span has no events.
        evaluate(&decider, (RuleOperation::Take(1), "/b", Some("x")), now, |_, _| ());
    });
    let events = ended.0.lock();
    let found: Vec<_> = events.iter().map(|it| (&*it.name, attributes(it))).collect();
    let tags = [&b"rule:a|x"[..], b"rule:b|x", b"k"].map(|key| decider.display.mask(key));
    let common = |tag: &str, policy: &str, cost: &str, capacity: &str| {
        [
            ("capacity", capacity),
            ("cost", cost),
            ("held", "0"),
            ("key_tag", tag),
            ("limit", policy),
            ("operation", "take"),
            ("policy", policy),
            ("remaining", capacity),
            ("reset_after_us", "0"),
            ("shadow", "false"),
            ("source", "store"),
            ("used", "0"),
            ("wait_us", "null"),
        ]
        .map(|(name, value)| (format!("sluicegate.{name}"), value.to_owned()))
    };
    let of_rule = |all: [(String, String); 13], rule: &str, shadow: &str| {
        let more = [("rule", rule), ("rules_version", "1"), ("shadow", shadow)];
        let more = more.map(|(name, value)| (format!("sluicegate.{name}"), value.to_owned()));
        all.into_iter().chain(more).collect::<BTreeMap<_, _>>()
    };
    let expected = [
        of_rule(common(&tags[0], "gcra:1/1h", "3", "1"), "a", "true"),
        of_rule(common(&tags[1], "fixed-window:1/1d", "2", "1"), "b", "false"),
        BTreeMap::from(common(&tags[2], "sliding-log:4/1h", "5", "4")),
    ];
    assert_eq!(found, expected.map(|it| ("denial", it)));
}

fn attributes(event: &Event) -> BTreeMap<String, String> {
    event.attributes.iter().map(|it| (it.key.to_string(), it.value.to_string())).collect()
}
