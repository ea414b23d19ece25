//! Limits in the format of envoyproxy/ratelimit: a tree of descriptors for each domain.

mod read;
mod tree;

use std::time::Duration;

use sluicegate_core::{Align, FixedWindow, Limit, Policy, Window};

pub(crate) use self::{read::read, tree::DomainTree};
use crate::MAX_METRIC_NAME;

/// A period of Envoy's rate limits, aligned to the clock. All periods of a unit have the same length: a month is 30
/// days, a year 365.
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
    /// All units, shortest first.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// Its name, in lower case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name_and_seconds().0
    }

    /// Its length in seconds.
    #[must_use]
    pub const fn seconds(self) -> u32 {
        self.name_and_seconds().1
    }

    /// The policy of a number of requests in it: windows aligned to the clock that count denied requests as well.
    /// `None` for zero requests.
    #[must_use]
    pub fn policy(self, requests: u32) -> Option<Policy> {
        let period = Duration::from_secs(self.seconds().into());
        let window = Window::Span { period, align: Align::Clock };
        let limit = FixedWindow::new(requests, &window, true).ok()?;
        Policy::try_from(vec![Limit::FixedWindow(limit)]).ok()
    }

    const fn name_and_seconds(self) -> (&'static str, u32) {
        match self {
            Self::Second => ("second", 1),
            Self::Minute => ("minute", 60),
            Self::Hour => ("hour", 3_600),
            Self::Day => ("day", 86_400),
            Self::Week => ("week", 604_800),
            Self::Month => ("month", 2_592_000),
            Self::Year => ("year", 31_536_000),
        }
    }
}

/// Settings of a limit in the format of envoyproxy/ratelimit that other rules do not have.
#[derive(Clone, Debug, Default)]
pub struct EnvoyLimit {
    /// The entries of the descriptors to which it applies, in words.
    pub(crate) entries: Box<str>,
    /// Requests per unit, for the response. `None` for `unlimited`, and for a limit with only a `policy`.
    pub rate: Option<(u32, Unit)>,
    /// Whether `requests_per_unit` is missing, which means 0.
    pub lacks_requests: bool,
    /// Its name, by which other limits replace it.
    pub name: Option<Box<str>>,
    /// Names of the limits that do not apply to a request to which this one applies.
    pub replaces: Vec<Box<str>>,
    /// Whether it denies only together with all other limits in quota mode.
    pub quota_mode: bool,
    /// Whether its name in metrics contains the values of all entries.
    pub detailed_metric: bool,
    /// Metadata of the response.
    pub metadata: Option<Metadata>,
}

/// A limit in the response to Envoy.
#[derive(Clone, Copy, Debug)]
pub struct Wire<'s> {
    /// Requests per unit.
    pub rate: Option<(u32, Unit)>,
    /// Its name.
    pub name: Option<&'s str>,
}

/// A value of `metadata`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metadata {
    /// `null`.
    Null,
    /// `true` or `false`.
    Truth(bool),
    /// A number, as written.
    Number(Box<str>),
    /// A string.
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
    /// A limit that came with it, in requests per unit, and that replaces those of the rules.
    pub limit: Option<(u32, Unit)>,
}

/// Appends an entry to a name in metrics.
fn push_entry(name: &mut String, key: &str, value: Option<&str>) {
    // Clients choose values of any length, and metrics keep only the start.
    if name.len() > MAX_METRIC_NAME {
        return;
    }
    let cut = |text: &str| text.floor_char_boundary(MAX_METRIC_NAME);
    name.push('.');
    name.push_str(&key[..cut(key)]);
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        name.push('_');
        name.push_str(&value[..cut(value)]);
    }
}
