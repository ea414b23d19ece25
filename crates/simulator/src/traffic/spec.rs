//! Specifications of synthetic traffic.

use std::{str::FromStr, time::Duration};

use sluicegate_core::parse_period;

/// One source of requests. Times are microseconds from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TrafficSpec {
    /// `burst:200@59s`: all at one moment.
    Burst {
        /// Number of requests.
        count: u32,
        /// The moment.
        at: u64,
    },
    /// `even:50/s`, `even:50/s@10s..20s`: at equal distances.
    Even(Steady),
    /// `poisson:50/s`, `poisson:50/s@10s..20s`: a Poisson process.
    Poisson(Steady),
}

/// Requests at a rate that does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// Requests per period, for a Poisson process in the mean.
    pub count: u32,
    /// The period.
    pub period: u64,
    /// The start.
    pub from: u64,
    /// The end.
    pub to: u64,
}

/// Distribution of the keys: `100` equally frequent ones, or `zipf:100`, where the first is twice as frequent as the
/// second and three times as frequent as the third.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySpec {
    /// A number of equally frequent keys.
    Uniform(u32),
    /// A number of keys, each with the frequency of one divided by its rank.
    Zipf(u32),
}

/// An invalid specification.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrafficError {
    /// Of requests.
    #[error(
        "expected traffic such as `poisson:50/s`, `even:50/s`, `burst:200@59s` or `even:50/s@10s..20s`"
    )]
    Traffic(String),
    /// Of keys.
    #[error("expected a whole number from 1 to 1000000, or `zipf:N`")]
    Keys(String),
}

/// Maximum number of keys.
const MAX_KEYS: u32 = 1_000_000;
/// The longest span in microseconds, that of a policy's period.
const MAX_SPAN: u64 = 366 * 86_400 * 1_000_000;

impl TrafficSpec {
    /// The time from which on it has requests.
    #[must_use]
    pub const fn start(&self) -> Duration {
        match self {
            Self::Burst { at, .. } => Duration::from_micros(*at),
            Self::Even(steady) | Self::Poisson(steady) => Duration::from_micros(steady.from),
        }
    }
}

impl FromStr for TrafficSpec {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        parse(text).ok_or_else(|| TrafficError::Traffic(text.to_owned()))
    }
}

fn parse(text: &str) -> Option<TrafficSpec> {
    let (kind, rest) = text.split_once(':')?;
    if kind == "burst" {
        let (count, at) = rest.split_once('@').unwrap_or((rest, "0s"));
        return Some(TrafficSpec::Burst { count: positive(count)?, at: span(at)? });
    }
    let (rate, range) = match rest.split_once('@') {
        Some((rate, range)) => (rate, range.split_once("..")?),
        None => (rest, ("", "")),
    };
    let (count, period) = rate.split_once('/')?;
    let (count, period) = (positive(count)?, span(period)?);
    let from = if range.0.is_empty() { 0 } else { span(range.0)? };
    let to = if range.1.is_empty() { u64::MAX } else { span(range.1)? };
    if period == 0 || to <= from {
        return None;
    }
    let steady = Steady { count, period, from, to };
    match kind {
        "even" => Some(TrafficSpec::Even(steady)),
        "poisson" => Some(TrafficSpec::Poisson(steady)),
        _ => None,
    }
}

impl FromStr for KeySpec {
    type Err = TrafficError;

    fn from_str(text: &str) -> Result<Self, TrafficError> {
        let (spec, count): (fn(u32) -> Self, &str) = match text.strip_prefix("zipf:") {
            Some(count) => (Self::Zipf, count),
            None => (Self::Uniform, text),
        };
        let count = positive(count).filter(|count| *count <= MAX_KEYS);
        count.map(spec).ok_or_else(|| TrafficError::Keys(text.to_owned()))
    }
}

/// A count of at least one, without the sign that the standard library accepts.
fn positive(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| *count > 0 && !text.starts_with('+'))
}

/// A span in microseconds, written like the period of a policy, or zero.
fn span(text: &str) -> Option<u64> {
    if matches!(text, "0" | "0s" | "0ms") {
        return Some(0);
    }
    parse_period(text).filter(|period| (1_000..=MAX_SPAN).contains(period))
}
