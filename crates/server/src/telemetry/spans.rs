//! The spans of requests, with the attributes of OpenTelemetry's semantic conventions and those of this server; the span of the
//! caller, by the headers of W3C Trace Context (`traceparent`, `tracestate`).

use std::str::FromStr as _;

use hyper::{HeaderMap, Method, header::HeaderName};
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use sluicegate_core::{Decision, Outcome, Policy, Retry, Source};
use tracing::{
    Span,
    field::{Empty, display},
};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::Telemetry;
use crate::stats::Cause;

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
        match parent_of(headers) {
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

/// Adds a decision to the span of the current request, if it has one. Only once for each span: a second one would
/// add each attribute again.
pub(crate) fn record_decision(source: Source, decision: &Decision, cause: Cause<'_>) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    span.record("sluicegate.policy", display(cause.policy));
    if let Some(rule) = cause.rule {
        span.record("sluicegate.rule", rule);
    }
    span.record("sluicegate.source", source.as_str());
    span.record("sluicegate.allowed", decision.allowed());
    if let Outcome::Deny { retry: Retry::After(wait) } = decision.outcome {
        let micros = i64::try_from(wait.as_micros()).unwrap_or(i64::MAX);
        span.record("sluicegate.retry_after_us", micros);
    }
}

/// Adds an event to the span of the current request, if it has one. `attributes` are those behind `sluicegate.`.
pub(crate) fn add_event(name: &'static str, attributes: impl FnOnce() -> Map<String, Value>) {
    let span = Span::current();
    if span.is_disabled() {
        return;
    }
    let attribute = |(name, value): (String, Value)| {
        let name = format!("sluicegate.{name}");
        match value {
            Value::Bool(value) => KeyValue::new(name, value),
            Value::Number(value) => KeyValue::new(name, value.as_i64().unwrap_or(i64::MAX)),
            Value::String(value) => KeyValue::new(name, value),
            value => KeyValue::new(name, value.to_string()),
        }
    };
    span.add_event(name, attributes().into_iter().map(attribute).collect());
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
}

impl SpanDecision {
    /// Notes a decision of the current request.
    pub(crate) fn note(&self, source: Source, decision: &Decision, cause: Cause<'_>) {
        let mut noted = self.0.lock();
        if Span::current().is_disabled() || noted.as_ref().is_some_and(|it| !it.decision.allowed())
        {
            return;
        }
        let (policy, rule) = (cause.policy.clone(), cause.rule.map(str::to_owned));
        *noted = Some(NotedDecision { source, decision: *decision, policy, rule });
    }

    /// Adds the decision to the span of the current request.
    pub(crate) fn record(self) {
        if let Some(NotedDecision { source, decision, policy, rule }) = self.0.into_inner() {
            let cause = Cause { rule: rule.as_deref(), policy: &policy };
            record_decision(source, &decision, cause);
        }
    }
}

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Longest `tracestate` that is taken over, in bytes: the length that the standard requires.
const MAX_STATE: usize = 512;

/// The span of the caller. `None` without a valid `traceparent`, or with several: the request begins a trace.
fn parent_of(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all(&TRACEPARENT).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (trace, span, flags) = parse_parent(value.as_bytes())?;
    let context = SpanContext::new(trace, span, flags, true, parent_state(headers));
    context.is_valid().then_some(context)
}

/// `VERSION-TRACE-SPAN-FLAGS` in lower-case hexadecimal digits. A later version may have more after a dash.
fn parse_parent(value: &[u8]) -> Option<(TraceId, SpanId, TraceFlags)> {
    let (known, rest) = value.split_at_checked(55)?;
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    let is_well_formed = known.iter().enumerate().all(|(index, byte)| match index {
        2 | 35 | 52 => *byte == b'-',
        _ => is_digit(byte),
    });
    let text = str::from_utf8(known).ok().filter(|_| is_well_formed)?;
    let is_version = match &text[..2] {
        "ff" => false,
        "00" => rest.is_empty(),
        _ => matches!(rest, [] | [b'-', ..]),
    };
    if !is_version {
        return None;
    }
    let flags = TraceFlags::new(u8::from_str_radix(&text[53..], 16).ok()?) & TraceFlags::SAMPLED;
    Some((TraceId::from_hex(&text[3..35]).ok()?, SpanId::from_hex(&text[36..52]).ok()?, flags))
}

/// The `tracestate`, which may be in several headers. One that is invalid or too long is ignored.
fn parent_state(headers: &HeaderMap) -> TraceState {
    let mut all = String::new();
    for value in headers.get_all(&TRACESTATE) {
        let Ok(value) = value.to_str() else { return TraceState::default() };
        if all.len() + value.len() >= MAX_STATE {
            return TraceState::default();
        }
        if !all.is_empty() {
            all.push(',');
        }
        all.push_str(value);
    }
    TraceState::from_str(&all).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;
    use tracing::subscriber::with_default;
    use tracing_subscriber::{layer::SubscriberExt as _, registry};

    use super::*;

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

#[cfg(test)]
mod parent_tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| {
            (HeaderName::from_static(name), value.parse().unwrap())
        };
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn read_valid_traceparent_is_the_parent() {
        for (value, is_sampled) in [
            (format!("00-{TRACE}-00f067aa0ba902b7-01"), true),
            (format!("00-{TRACE}-00f067aa0ba902b7-00"), false),
            (format!("00-{TRACE}-00f067aa0ba902b7-0a"), false),
            (format!("00-{TRACE}-00f067aa0ba902b7-ff"), true),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01"), true),
            (format!("cc-{TRACE}-00f067aa0ba902b7-01-what-comes-later"), true),
        ] {
            let found = parent_of(&headers(&[("traceparent", &value)])).unwrap();
            assert_eq!(found.trace_id().to_string(), TRACE, "{value}");
            assert_eq!(found.span_id().to_string(), "00f067aa0ba902b7", "{value}");
            assert_eq!(found.is_sampled(), is_sampled, "{value}");
            assert!(found.is_remote());
        }
    }

    #[test]
    fn read_invalid_traceparent_is_none() {
        for value in [
            String::new(),
            "00".to_owned(),
            format!("00-{TRACE}-00f067aa0ba902b7"),
            format!("00-{TRACE}-00f067aa0ba902b7-"),
            format!("00-{TRACE}-00f067aa0ba902b7-1"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-"),
            format!("00-{TRACE}-00f067aa0ba902b7-01-more"),
            format!("00-{TRACE}-00f067aa0ba902b7-01.more"),
            format!("cc-{TRACE}-00f067aa0ba902b7-01.more"),
            format!("ff-{TRACE}-00f067aa0ba902b7-01"),
            format!("0-{TRACE}-00f067aa0ba902b7-001"),
            format!("00-{TRACE}-0000000000000000-01"),
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01".to_owned(),
            format!("00-{}-00f067aa0ba902b7-01", TRACE.to_uppercase()),
            format!("00-{TRACE}-00F067aa0ba902b7-01"),
            format!("00-{TRACE}-00f067aa0ba902bg-01"),
            format!("00_{TRACE}_00f067aa0ba902b7_01"),
            format!("+0-{TRACE}-00f067aa0ba902b7-01"),
            "é".repeat(28),
            "0".repeat(60_000),
        ] {
            assert_eq!(parent_of(&headers(&[("traceparent", &value)])), None, "{value}");
        }
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let twice = headers(&[("traceparent", &valid), ("traceparent", &valid)]);
        assert_eq!(parent_of(&twice), None);
        assert_eq!(parent_of(&HeaderMap::new()), None);
    }

    #[test]
    fn read_tracestate_is_taken_over_if_valid_and_short() {
        let valid = format!("00-{TRACE}-00f067aa0ba902b7-01");
        let long = format!("a={}", "x".repeat(600));
        for (states, expected) in [
            (&["a=1,b=2"][..], "a=1,b=2"),
            (&["a=1", "b=2"], "a=1,b=2"),
            (&["a"], ""),
            (&[&long], ""),
            (&["a=1", &long], ""),
        ] {
            let mut pairs = vec![("traceparent", valid.as_str())];
            pairs.extend(states.iter().map(|state| ("tracestate", *state)));
            let found = parent_of(&headers(&pairs)).unwrap();
            assert_eq!(found.trace_state().header(), expected, "{states:?}");
        }
    }
}
