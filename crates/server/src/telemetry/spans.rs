//! The spans of requests, with the attributes of OpenTelemetry's semantic conventions and those of this server.

use hyper::{HeaderMap, Method};
use opentelemetry::{
    Context,
    trace::{SpanContext, TraceContextExt as _},
};
use parking_lot::Mutex;
use sluicegate_core::{Decision, Outcome, Policy, Retry, Source};
use tracing::{
    Span,
    field::{Empty, display},
};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{Telemetry, parent};
use crate::stats::{Cause, DenialFacts};

/// A span of the kind `server`. Its attributes for decisions are those of [`record_decision`].
macro_rules! server_span {
    ($name:expr, $($field:tt)*) => {
        tracing::trace_span!(
            parent: None,
            "request",
            otel.name = $name,
            otel.kind = "server",
            otel.status_code = Empty,
            error.type = Empty,
            sluicegate.policy = Empty,
            sluicegate.rule = Empty,
            sluicegate.source = Empty,
            sluicegate.cost = Empty,
            sluicegate.allowed = Empty,
            sluicegate.retry_after_us = Empty,
            sluicegate.rules_version = Empty,
            sluicegate.key_tag = Empty,
            sluicegate.limit = Empty,
            sluicegate.capacity = Empty,
            sluicegate.remaining = Empty,
            sluicegate.used = Empty,
            sluicegate.held = Empty,
            $($field)*
        )
    };
}

impl Telemetry {
    /// The span of a request of HTTP for `route`, if it is to be recorded.
    pub(crate) fn http(
        &self,
        route: &'static str,
        method: &Method,
        headers: &HeaderMap,
    ) -> Option<Span> {
        let parent = self.sample(headers)?;
        // Clients may send any text.
        let is_known = [Method::GET, Method::HEAD, Method::POST].contains(method);
        let method = if is_known { method.as_str() } else { "_OTHER" };
        let span = server_span!(
            format_args!("{method} {route}"),
            http.request.method = method,
            http.route = route,
            url.path = route,
            http.response.status_code = Empty,
        );
        Some(with_parent(span, parent))
    }

    /// The span of a call of Envoy's rate limit service, if it is to be recorded.
    pub(crate) fn envoy(&self, headers: &HeaderMap) -> Option<Span> {
        let parent = self.sample(headers)?;
        let span = server_span!(
            "envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
            rpc.system = "grpc",
            rpc.service = "envoy.service.ratelimit.v3.RateLimitService",
            rpc.method = "ShouldRateLimit",
            rpc.grpc.status_code = Empty,
        );
        Some(with_parent(span, parent))
    }

    /// The span of a batch of commands, if it is to be recorded. The protocol has no `traceparent`.
    pub(crate) fn resp(&self) -> Span {
        if !self.0.sampler.pick() {
            return Span::none();
        }
        server_span!(Empty, sluicegate.commands = Empty,)
    }

    /// The parent of a request that is to be recorded, if it has one.
    fn sample(&self, headers: &HeaderMap) -> Option<Option<SpanContext>> {
        match parent::read(headers) {
            Some(parent) => parent.is_sampled().then_some(Some(parent)),
            None => self.0.sampler.pick().then_some(None),
        }
    }
}

fn with_parent(span: Span, parent: Option<SpanContext>) -> Span {
    if let Some(parent) = parent {
        // An error means that no layer records spans.
        let _ = span.set_parent(Context::new().with_remote_span_context(parent));
    }
    span
}

/// A denial, for a span.
#[derive(Debug, Default)]
pub(crate) struct SpanDenial {
    pub(crate) facts: DenialFacts,
    /// The tag of the key, unless the server shows none.
    pub(crate) key_tag: Option<String>,
    /// The units that were asked for, unless the span has them.
    pub(crate) cost: Option<u32>,
}

/// Adds a decision to the span of the current request, if it has one. Only once for each span: a second one would
/// add each attribute again. `denial` is called for a denial.
pub(crate) fn record_decision(
    source: Source,
    decision: &Decision,
    cause: Cause<'_>,
    denial: impl FnOnce() -> SpanDenial,
) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    let denial = (!decision.allowed()).then(denial);
    let source = match &denial {
        Some(SpanDenial { facts, .. }) => facts.source(source),
        None => source.as_str(),
    };
    span.record("sluicegate.policy", display(cause.policy));
    if let Some(rule) = cause.rule {
        span.record("sluicegate.rule", rule);
    }
    if let Some(version) = cause.rules_version {
        span.record("sluicegate.rules_version", integer(version));
    }
    span.record("sluicegate.source", source);
    span.record("sluicegate.allowed", decision.allowed());
    if let Outcome::Deny { retry: Retry::After(wait) } = decision.outcome {
        let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        span.record("sluicegate.retry_after_us", micros);
    }
    let Some(SpanDenial { facts, key_tag, cost }) = denial else { return };
    if let Some(tag) = key_tag {
        span.record("sluicegate.key_tag", tag);
    }
    if let Some(cost) = cost {
        span.record("sluicegate.cost", i64::from(cost));
    }
    if let Some(limit) = cause.policy.limits().get(decision.binding).filter(|_| facts.is_by_limit())
    {
        span.record("sluicegate.limit", display(limit));
        span.record("sluicegate.capacity", i64::from(decision.limit));
        span.record("sluicegate.remaining", i64::from(decision.remaining));
    }
    if let Some(usage) = facts.usage {
        span.record("sluicegate.used", integer(usage.used));
        span.record("sluicegate.held", integer(usage.held));
    }
}

/// A count as attributes have it.
fn integer(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The decision for the span of a request that makes several: the first denial, otherwise the last one.
#[derive(Debug, Default)]
pub(crate) struct SpanDecision(Mutex<Option<NotedDecision>>);

/// A decision to be recorded, and its cause.
#[derive(Debug)]
struct NotedDecision {
    source: Source,
    decision: Decision,
    policy: Policy,
    rule: Option<String>,
    rules_version: Option<u64>,
    denial: Option<SpanDenial>,
}

impl SpanDecision {
    /// Notes a decision of the current request.
    pub(crate) fn note(
        &self,
        source: Source,
        decision: &Decision,
        cause: Cause<'_>,
        denial: impl FnOnce() -> SpanDenial,
    ) {
        let mut noted = self.0.lock();
        if Span::current().is_disabled() || noted.as_ref().is_some_and(|it| !it.decision.allowed())
        {
            return;
        }
        *noted = Some(NotedDecision {
            source,
            decision: *decision,
            policy: cause.policy.clone(),
            rule: cause.rule.map(str::to_owned),
            rules_version: cause.rules_version,
            denial: (!decision.allowed()).then(denial),
        });
    }

    /// Adds the decision to the span of the current request.
    pub(crate) fn record(self) {
        let Some(noted) = self.0.into_inner() else { return };
        let NotedDecision { source, decision, policy, rule, rules_version, denial } = noted;
        let cause = Cause { rule: rule.as_deref(), rules_version, policy: &policy };
        record_decision(source, &decision, cause, || denial.unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

    use hyper::header::HeaderName;
    use sluicegate_core::Usage;
    use tracing::{
        Subscriber,
        field::{Field, Visit},
        span::{Id, Record},
        subscriber::with_default,
    };
    use tracing_subscriber::{
        layer::{Context as LayerContext, Layer, SubscriberExt as _},
        registry,
    };

    use super::*;

    /// The attributes that spans record after they have begun.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<BTreeMap<&'static str, String>>>);

    impl<S: Subscriber> Layer<S> for Recorded {
        fn on_record(&self, _id: &Id, values: &Record<'_>, _context: LayerContext<'_, S>) {
            values.record(&mut self.clone());
        }
    }

    impl Visit for Recorded {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            let before = self.0.lock().insert(field.name(), format!("{value:?}"));
            assert_eq!(before, None, "{field} is recorded twice");
        }
    }

    /// The attributes of a decision with these facts.
    fn attributes(outcome: Outcome, facts: DenialFacts) -> Vec<(&'static str, String)> {
        let policy: Policy = "fixed-window:9/1h,gcra:2/1s".parse().unwrap();
        let (limit, reset_after) = (2, Duration::from_secs(1));
        let decision = Decision { outcome, limit, remaining: 1, reset_after, binding: 1 };
        let cause = Cause { rule: Some("login"), rules_version: Some(3), policy: &policy };
        let denial =
            || SpanDenial { facts, key_tag: Some("#0123456789".to_owned()), cost: Some(2) };
        let recorded = Recorded::default();
        let telemetry = Telemetry::new("http://127.0.0.1:9".parse().unwrap(), 1.0);
        with_default(registry().with(recorded.clone()), || {
            telemetry.resp().in_scope(|| {
                record_decision(Source::Store, &decision, cause, denial);
            });
            let several = SpanDecision::default();
            telemetry.resp().in_scope(|| {
                let alone = std::mem::take(&mut *recorded.0.lock());
                several.note(Source::Store, &decision, cause, denial);
                several.record();
                assert_eq!(*recorded.0.lock(), alone, "the same in a request with several");
            });
        });
        let recorded = std::mem::take(&mut *recorded.0.lock());
        recorded.into_iter().map(|(name, value)| (&name["sluicegate.".len()..], value)).collect()
    }

    #[test]
    fn span_of_a_denial_has_its_arithmetic() {
        let common = [
            ("policy", "fixed-window:9/1h,gcra:2/1s"),
            ("rule", "\"login\""),
            ("rules_version", "3"),
        ];
        let tag = ("key_tag", "\"#0123456789\"");
        let wait = ("retry_after_us", "1500000");
        let limit = [("limit", "gcra:2/1s"), ("capacity", "2"), ("remaining", "1")];
        let denied = Outcome::Deny { retry: Retry::After(Duration::from_micros(1_500_000)) };
        let allowed = Outcome::Allow { delay: Duration::ZERO };
        let usage = Usage {
            used: 5,
            held: 4,
            remaining: 1,
            reset_after: Duration::ZERO,
            window_counts: None,
        };
        let none = DenialFacts::default();
        let known = DenialFacts { usage: Some(usage), ..none };
        let blocked = DenialFacts { is_blocked: true, ..none };
        let full = DenialFacts { is_table_full: true, ..none };
        let cost = ("cost", "2");
        let [yes, no] = ["true", "false"].map(|it| ("allowed", it));
        for (outcome, facts, more) in
            [
                (allowed, known, vec![yes, ("source", "\"store\"")]),
                (
                    denied,
                    none,
                    [&[no, wait, cost, tag, ("source", "\"store\"")][..], &limit].concat(),
                ),
                (
                    denied,
                    known,
                    [
                        &[
                            no,
                            wait,
                            cost,
                            tag,
                            ("source", "\"store\""),
                            ("used", "5"),
                            ("held", "4"),
                        ][..],
                        &limit,
                    ]
                    .concat(),
                ),
                (denied, blocked, vec![no, wait, cost, tag, ("source", "\"block\"")]),
                (denied, full, vec![no, wait, cost, tag, ("source", "\"table_full\"")]),
            ]
        {
            let mut expected: Vec<_> =
                common.into_iter().chain(more).map(|(name, it)| (name, it.to_owned())).collect();
            expected.sort_unstable();
            assert_eq!(attributes(outcome, facts), expected);
        }
    }

    #[test]
    fn http_span_is_recorded_as_the_caller_or_the_ratio_says() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-";
        for (ratio, flags, is_recorded) in [
            (0.0, Some("01"), true),
            (1.0, Some("00"), false),
            (0.0, None, false),
            (1.0, None, true),
            (0.0, Some("1"), false),
            (1.0, Some("1"), true),
        ] {
            let telemetry = Telemetry::new("http://127.0.0.1:9".parse().unwrap(), ratio);
            let mut headers = HeaderMap::new();
            if let Some(flags) = flags {
                let value = format!("{parent}{flags}").parse().unwrap();
                headers.insert(HeaderName::from_static("traceparent"), value);
            }
            with_default(registry().with(telemetry.layer()), || {
                let span = telemetry.http("/v1/take", &Method::POST, &headers);
                assert_eq!(span.is_some(), is_recorded, "{ratio} {flags:?}");
                assert!(span.is_none_or(|it| !it.is_disabled()));
            });
        }
    }
}
