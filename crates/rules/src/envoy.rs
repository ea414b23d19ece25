//! Limits in the form of envoyproxy/ratelimit: a tree of descriptors for each domain.

mod read;
mod tree;

use std::borrow::Cow;

pub(crate) use self::{read::read, tree::Domain};
use crate::MAX_METRIC_NAME;

/// A span of time as Envoy names it. On the clock, and all of the same length: a month has 30 days
/// and a year has 365.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// 1 s.
    Second,
    /// 60 s.
    Minute,
    /// 60 min.
    Hour,
    /// 24 h.
    Day,
    /// 7 d.
    Week,
    /// 30 d.
    Month,
    /// 365 d.
    Year,
}

impl Unit {
    /// All of them, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The period, as a policy says it.
    const fn period(self) -> &'static str {
        match self {
            Self::Second => "1s",
            Self::Minute => "1m",
            Self::Hour => "1h",
            Self::Day => "1d",
            Self::Week => "1w",
            Self::Month => "30d",
            Self::Year => "365d",
        }
    }

    /// How many seconds it has.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 604_800,
            Self::Month => 2_592_000,
            Self::Year => 31_536_000,
        }
    }
}

/// What a limit of envoyproxy's form says besides what every rule does.
#[derive(Clone, Debug, Default)]
pub struct EnvoyLimit {
    /// What Envoy is told: so many requests a unit. `None` for `unlimited`, and for a limit that has
    /// only a `policy` of ours.
    pub rate: Option<(u32, Unit)>,
    /// Whether `requests_per_unit` is missing, which means 0.
    pub lacks_requests: bool,
    /// Its name, which others may replace.
    pub name: Option<Box<str>>,
    /// The names of those that are not asked when this one is, in the same request.
    pub replaces: Vec<Box<str>>,
    /// Whether the request is over its limit only if all limits that say so are.
    pub quota_mode: bool,
    /// Whether metrics tell the values of all entries.
    pub detailed_metric: bool,
    /// What goes with the answer.
    pub metadata: Option<Metadata>,
}

/// What Envoy is told of a limit.
#[derive(Clone, Copy, Debug)]
pub struct Wire<'s> {
    /// So many requests a unit.
    pub rate: Option<(u32, Unit)>,
    /// Its name.
    pub name: Option<&'s str>,
}

/// A value of `metadata`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// Nothing.
    Null,
    /// A truth value.
    Truth(bool),
    /// A number, as written.
    Number(Box<str>),
    /// A text.
    Text(Box<str>),
    /// A list.
    List(Vec<Self>),
    /// A map, in the order written.
    Map(Vec<(Box<str>, Self)>),
}

/// A descriptor of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Descriptor<'r> {
    /// Its entries, in order.
    pub entries: &'r [(&'r str, &'r str)],
    /// A limit that came with it, in place of whatever the rules say: so many requests a unit.
    pub limit: Option<(u32, Unit)>,
}

/// The policy that so many requests a unit mean: windows on the clock, in which denied requests
/// count as well. `None` for no requests at all.
pub(crate) fn window(requests: u32, unit: Unit) -> Option<sluicegate_core::Policy> {
    let text = format!("fixed-window:{requests}/{}:align=clock:count=all", unit.period());
    text.parse().ok()
}

/// A part of a metric's name.
fn dotted<'a>(name: &mut String, key: &str, value: Option<Cow<'a, str>>) {
    // What is beyond is not told, and may be as long as strangers like.
    if name.len() > MAX_METRIC_NAME {
        return;
    }
    let cut = |text: &str| text.floor_char_boundary(MAX_METRIC_NAME);
    name.push('.');
    name.push_str(&key[..cut(key)]);
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        name.push('_');
        name.push_str(&value[..cut(&value)]);
    }
}
