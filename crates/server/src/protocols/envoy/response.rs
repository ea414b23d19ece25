//! The response to a request, from the outcomes of its descriptors.

use std::time::Duration;

use prost_types::{ListValue, Struct, Value, value::Kind};
use sluicegate_headers::seconds;
use sluicegate_proto::{
    HeaderValue,
    descriptor::RateLimitDescriptor,
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit},
    },
};
use sluicegate_rules::{EnvoyMode, Metadata, is_over_limit};

use crate::{EnvoyConfig, EnvoyHeaders};

/// The outcome of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DescriptorOutcome {
    /// No rule matches it.
    NoRule,
    /// A rule exempts it from limits.
    Unlimited,
    /// A limit or a block applies.
    Limited(LimitStatus),
}

/// The limit or block of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LimitStatus {
    pub(super) allowed: bool,
    pub(super) mode: EnvoyMode,
    pub(super) limit: RateLimit,
    pub(super) remaining: u32,
    pub(super) reset: Duration,
    /// Metadata of the rule.
    pub(super) metadata: Option<Struct>,
}

impl LimitStatus {
    /// A block: it denies every request.
    pub(super) const fn blocked(mode: EnvoyMode, limit: RateLimit) -> Self {
        Self { allowed: false, mode, limit, remaining: 0, reset: Duration::ZERO, metadata: None }
    }

    const fn denies(&self) -> bool {
        !self.allowed && !matches!(self.mode, EnvoyMode::Shadow)
    }

    /// As [`DescriptorLimit::rank`](sluicegate_rules::DescriptorLimit::rank).
    const fn rank(&self) -> (u8, u32) {
        (self.mode.rank(self.allowed), self.remaining)
    }
}

/// The response to `request`, with one outcome for each descriptor.
pub(super) fn response(
    request: &RateLimitRequest,
    outcomes: Vec<DescriptorOutcome>,
    config: &EnvoyConfig,
) -> RateLimitResponse {
    let over = is_over_limit(limited(&outcomes).map(|it| (it.mode, it.allowed)));
    let code = if over { Code::OverLimit } else { Code::Ok };
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: headers(&outcomes, config.headers),
        dynamic_metadata: config.metadata.then(|| metadata(request, &outcomes)),
        statuses: outcomes.into_iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

fn limited(outcomes: &[DescriptorOutcome]) -> impl Iterator<Item = &LimitStatus> {
    outcomes.iter().filter_map(|outcome| match outcome {
        DescriptorOutcome::Limited(limited) => Some(limited),
        DescriptorOutcome::NoRule | DescriptorOutcome::Unlimited => None,
    })
}

fn status(outcome: DescriptorOutcome) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    match outcome {
        DescriptorOutcome::NoRule => {}
        DescriptorOutcome::Unlimited => status.limit_remaining = u32::MAX,
        DescriptorOutcome::Limited(limited) => {
            if limited.denies() {
                status.code = Code::OverLimit.into();
            }
            status.limit_remaining = limited.remaining;
            status.duration_until_reset = Some(prost_types::Duration {
                seconds: i64::try_from(seconds(limited.reset)).unwrap_or(i64::MAX),
                nanos: 0,
            });
            status.current_limit = Some(limited.limit);
        }
    }
    status
}

/// The headers of the descriptor that is over its limit, or of the one with the least remaining.
fn headers(outcomes: &[DescriptorOutcome], names: EnvoyHeaders) -> Vec<HeaderValue> {
    let prefix = match names {
        EnvoyHeaders::None => return Vec::new(),
        EnvoyHeaders::RateLimit => "RateLimit",
        EnvoyHeaders::XRateLimit => "X-RateLimit",
    };
    let Some(first) = limited(outcomes).min_by_key(|it| it.rank()) else {
        return Vec::new();
    };
    let header = |name: &str, value: u64| HeaderValue {
        key: format!("{prefix}-{name}"),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    vec![
        header("Limit", first.limit.requests_per_unit.into()),
        header("Remaining", first.remaining.into()),
        header("Reset", seconds(first.reset)),
    ]
}

/// The request, and the descriptors that are over a limit in quota mode, with the names of envoyproxy/ratelimit.
fn metadata(request: &RateLimitRequest, outcomes: &[DescriptorOutcome]) -> Struct {
    let mut fields = vec![
        ("domain", text(&request.domain)),
        ("descriptors", list(request.descriptors.iter().zip(outcomes).map(described))),
    ];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend", number(request.hits_addend)));
    }
    let quota = |outcome: &DescriptorOutcome| matches!(outcome, DescriptorOutcome::Limited(it) if it.mode == EnvoyMode::Quota);
    let enabled = outcomes.iter().any(quota);
    fields.push(("quotaModeEnabled", value(Kind::BoolValue(enabled))));
    let over = |outcome: &DescriptorOutcome| matches!(outcome, DescriptorOutcome::Limited(it) if !it.allowed);
    let violations = (0_u32..).zip(outcomes).filter(|(_, it)| quota(it) && over(it));
    let violations: Vec<_> = violations.map(|(index, _)| number(index)).collect();
    if !violations.is_empty() {
        fields.push(("quotaModeViolations", list(violations)));
    }
    map(fields)
}

fn described((descriptor, outcome): (&RateLimitDescriptor, &DescriptorOutcome)) -> Value {
    let entries = descriptor.entries.iter().map(|it| text(&format!("{}={}", it.key, it.value)));
    let mut fields = vec![("entries", list(entries))];
    if let DescriptorOutcome::Limited(LimitStatus { metadata: Some(metadata), .. }) = outcome {
        fields.push(("metadata", value(Kind::StructValue(metadata.clone()))));
    }
    value(Kind::StructValue(map(fields)))
}

/// Metadata of a rule for the response, if it is a map.
pub(super) fn response_metadata(metadata: &Metadata) -> Option<Struct> {
    match converted(metadata).kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    }
}

fn converted(metadata: &Metadata) -> Value {
    match metadata {
        Metadata::Null => value(Kind::NullValue(0)),
        Metadata::Truth(truth) => value(Kind::BoolValue(*truth)),
        Metadata::Number(number) => match number.parse() {
            Ok(number) => value(Kind::NumberValue(number)),
            Err(_) => text(number),
        },
        Metadata::Text(string) => text(string),
        Metadata::List(items) => list(items.iter().map(converted)),
        Metadata::Map(fields) => {
            let fields = fields.iter().map(|(name, it)| (&**name, converted(it)));
            value(Kind::StructValue(map(fields.collect())))
        }
    }
}

fn map(fields: Vec<(&str, Value)>) -> Struct {
    Struct { fields: fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }
}

fn list(values: impl IntoIterator<Item = Value>) -> Value {
    value(Kind::ListValue(ListValue { values: values.into_iter().collect() }))
}

fn text(text: &str) -> Value {
    value(Kind::StringValue(text.to_owned()))
}

fn number(number: u32) -> Value {
    value(Kind::NumberValue(number.into()))
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests;
