//! The spans of requests, with the attributes of OpenTelemetry's semantic conventions and those of this server.

use hyper::{HeaderMap, Method};
use opentelemetry::{
    Context, KeyValue,
    trace::{SpanContext, TraceContextExt as _},
};
use parking_lot::Mutex;
use serde_json::{Map, Value};
use sluicegate_core::{Decision, Outcome, Policy, Retry, Source};
use tracing::{
    Span,
    field::{Empty, display},
};
use tracing_opentelemetry::OpenTelemetrySpanExt as _;

use super::{Telemetry, parent};
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
