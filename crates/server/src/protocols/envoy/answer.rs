//! The response: the outcome of each descriptor, and of the request.

use std::time::Duration;

use prost_types::{ListValue, Struct, Value, value::Kind};
use sluicegate_proto::{
    HeaderValue,
    descriptor::RateLimitDescriptor,
    rls::{
        RateLimitRequest, RateLimitResponse,
        rate_limit_response::{Code, DescriptorStatus, RateLimit},
    },
};
use sluicegate_rules::Metadata;

use crate::{EnvoyConfig, EnvoyHeaders};

/// What was decided about a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// No rule matches.
    Free,
    /// A rule exempts it.
    Unlimited,
    Limited(Limited),
}

/// The outcome of a limited descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Limited {
    pub(super) allowed: bool,
    pub(super) mode: Mode,
    pub(super) limit: RateLimit,
    pub(super) remaining: u32,
    pub(super) reset: Duration,
    /// Metadata of the rule for the response.
    pub(super) metadata: Option<Struct>,
}

impl Verdict {
    /// The outcome of two rules for one descriptor: the stricter one.
    pub(super) fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Limited(one), Self::Limited(other)) => Self::Limited(one.or(other)),
            (Self::Free, other) => other,
            (one, Self::Free | Self::Unlimited) => one,
            (Self::Unlimited, limited) => limited,
        }
    }
}

impl Limited {
    /// A limit of zero requests.
    pub(super) const fn blocked(mode: Mode, limit: RateLimit) -> Self {
        Self { allowed: false, mode, limit, remaining: 0, reset: Duration::ZERO, metadata: None }
    }

    /// The stricter of two limits on one descriptor: the one that denies, or has fewer
    /// remaining.
    fn or(self, other: Self) -> Self {
        if other.order() < self.order() { other } else { self }
    }

    const fn denies(&self) -> bool {
        !self.allowed && !matches!(self.mode, Mode::Shadow)
    }

    const fn order(&self) -> (bool, u32) {
        (!self.denies(), self.remaining)
    }
}

/// The effect of a denial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The request is rejected.
    Enforced,
    /// It is only counted.
    Shadow,
    /// The request is rejected if all limits of this mode deny; otherwise the metadata lists those
    /// that do.
    Quota,
}

/// The response to `request`, with the outcomes of its descriptors.
pub(super) fn answer(
    request: &RateLimitRequest,
    verdicts: Vec<Verdict>,
    config: &EnvoyConfig,
) -> RateLimitResponse {
    let over = |it: &Limited| !it.allowed;
    let of = |mode: Mode| limited(&verdicts).filter(move |it| it.mode == mode);
    let quota = of(Mode::Quota).next().is_some() && of(Mode::Quota).all(over);
    let code = if quota || of(Mode::Enforced).any(over) { Code::OverLimit } else { Code::Ok };
    RateLimitResponse {
        overall_code: code.into(),
        response_headers_to_add: headers(&verdicts, config.headers),
        dynamic_metadata: config.metadata.then(|| metadata(request, &verdicts)),
        statuses: verdicts.into_iter().map(status).collect(),
        ..RateLimitResponse::default()
    }
}

fn limited(verdicts: &[Verdict]) -> impl Iterator<Item = &Limited> {
    verdicts.iter().filter_map(|verdict| match verdict {
        Verdict::Limited(limited) => Some(limited),
        Verdict::Free | Verdict::Unlimited => None,
    })
}

fn status(verdict: Verdict) -> DescriptorStatus {
    let mut status = DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() };
    match verdict {
        Verdict::Free => {}
        Verdict::Unlimited => status.limit_remaining = u32::MAX,
        Verdict::Limited(limited) => {
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

/// Whole seconds, rounded up, so that a client that waits is not denied.
fn seconds(span: Duration) -> u64 {
    span.as_secs() + u64::from(span.subsec_nanos() > 0)
}

/// The headers of the first descriptor that is denied, or of the one with the fewest remaining.
fn headers(verdicts: &[Verdict], names: EnvoyHeaders) -> Vec<HeaderValue> {
    let prefix = match names {
        EnvoyHeaders::None => return Vec::new(),
        EnvoyHeaders::RateLimit => "RateLimit",
        EnvoyHeaders::XRateLimit => "X-RateLimit",
    };
    let Some(told) = limited(verdicts).min_by_key(|it| it.order()) else {
        return Vec::new();
    };
    let header = |name: &str, value: u64| HeaderValue {
        key: format!("{prefix}-{name}"),
        value: value.to_string(),
        raw_value: Vec::new(),
    };
    vec![
        header("Limit", told.limit.requests_per_unit.into()),
        header("Remaining", told.remaining.into()),
        header("Reset", seconds(told.reset)),
    ]
}

/// The request, and the limits of the quota mode that deny, in the format of
/// envoyproxy/ratelimit.
fn metadata(request: &RateLimitRequest, verdicts: &[Verdict]) -> Struct {
    let mut fields = vec![
        ("domain", text(&request.domain)),
        ("descriptors", list(request.descriptors.iter().zip(verdicts).map(described))),
    ];
    if request.hits_addend != 0 {
        fields.push(("hitsAddend", number(request.hits_addend)));
    }
    let quota =
        |verdict: &Verdict| matches!(verdict, Verdict::Limited(it) if it.mode == Mode::Quota);
    let enabled = verdicts.iter().any(quota);
    fields.push(("quotaModeEnabled", value(Kind::BoolValue(enabled))));
    let over = |verdict: &Verdict| matches!(verdict, Verdict::Limited(it) if !it.allowed);
    let violations = (0_u32..).zip(verdicts).filter(|(_, it)| quota(it) && over(it));
    let violations: Vec<_> = violations.map(|(index, _)| number(index)).collect();
    if !violations.is_empty() {
        fields.push(("quotaModeViolations", list(violations)));
    }
    map(fields)
}

fn described((descriptor, verdict): (&RateLimitDescriptor, &Verdict)) -> Value {
    let entries = descriptor.entries.iter().map(|it| text(&format!("{}={}", it.key, it.value)));
    let mut fields = vec![("entries", list(entries))];
    if let Verdict::Limited(Limited { metadata: Some(metadata), .. }) = verdict {
        fields.push(("metadata", value(Kind::StructValue(metadata.clone()))));
    }
    value(Kind::StructValue(map(fields)))
}

/// The metadata of a rule, if it is a map.
pub(super) fn with_answer(metadata: &Metadata) -> Option<Struct> {
    match said(metadata).kind {
        Some(Kind::StructValue(fields)) => Some(fields),
        _ => None,
    }
}

fn said(metadata: &Metadata) -> Value {
    match metadata {
        Metadata::Null => value(Kind::NullValue(0)),
        Metadata::Truth(truth) => value(Kind::BoolValue(*truth)),
        Metadata::Number(number) => match number.parse() {
            Ok(number) => value(Kind::NumberValue(number)),
            Err(_) => text(number),
        },
        Metadata::Text(words) => text(words),
        Metadata::List(items) => list(items.iter().map(said)),
        Metadata::Map(fields) => {
            let fields = fields.iter().map(|(name, it)| (&**name, said(it)));
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
