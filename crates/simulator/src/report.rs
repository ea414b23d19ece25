//! What a trace came to, in a few numbers.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    time::Duration,
};

use ahash::RandomState;
use hashbrown::HashMap;
use sluicegate_core::{CalendarUnit, Decision, FixedWindow, Limit, Outcome, Policy, Window};

use crate::{
    event::{Event, Kind},
    windows::{Most, Windows},
};

/// Most keys whose requests are counted at a time. With more, the counts are estimates.
pub const MAX_BUSY_KEYS: usize = 65_536;

/// Sums up the requests (`take`) of a trace; other operations are only counted.
#[derive(Debug)]
pub struct Report {
    requests: u64,
    allowed: u64,
    others: u64,
    longest_delay: Duration,
    last_delay: Option<Duration>,
    admitted: Windows,
    departed: Windows,
    /// Departures that are still to come, in microseconds. One that has come can be counted:
    /// none before it will be added.
    leaving: BinaryHeap<Reverse<u64>>,
    keys: HashMap<Box<[u8]>, Counts, RandomState>,
    /// Most requests by which a count of a key may be too low.
    missed: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    requests: u64,
    denied: u64,
}

/// A key with many requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyKey<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Its requests.
    pub requests: u64,
    /// Those of them that were denied.
    pub denied: u64,
}

impl Report {
    /// An empty one, with the most in any interval of each of `spans`.
    #[must_use]
    pub fn new(spans: &[Duration]) -> Self {
        Self {
            requests: 0,
            allowed: 0,
            others: 0,
            longest_delay: Duration::ZERO,
            last_delay: None,
            admitted: Windows::new(spans),
            departed: Windows::new(spans),
            leaving: BinaryHeap::new(),
            keys: HashMap::default(),
            missed: 0,
        }
    }

    /// Adds an event, not before the last one, and what was decided.
    pub fn add(&mut self, event: &Event<'_>, decision: &Decision) {
        if event.kind != Kind::Take {
            self.others += 1;
            return;
        }
        let now = event.time.as_micros();
        self.requests += 1;
        self.last_delay = match decision.outcome {
            Outcome::Allow { delay } => Some(delay),
            Outcome::Deny { .. } => None,
        };
        self.count_key(event.key, !decision.allowed());
        self.depart_before(now);
        if let Some(delay) = self.last_delay {
            self.allowed += 1;
            self.longest_delay = self.longest_delay.max(delay);
            self.admitted.count(now);
            self.leaving.push(Reverse((event.time + delay).as_micros()));
        }
    }

    /// Counts the departures that are still to come. Call it once, behind the last event.
    pub fn finish(&mut self) {
        self.depart_before(u64::MAX);
    }

    /// How many requests there were.
    #[must_use]
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// How many passed.
    #[must_use]
    pub const fn allowed(&self) -> u64 {
        self.allowed
    }

    /// How many did not.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.requests - self.allowed
    }

    /// How many events were no requests: peeks, charges, refunds, resets.
    #[must_use]
    pub const fn others(&self) -> u64 {
        self.others
    }

    /// The longest that a request was held back.
    #[must_use]
    pub const fn longest_delay(&self) -> Duration {
        self.longest_delay
    }

    /// How long the last request was held back; `None` if it was denied, or there was none.
    #[must_use]
    pub const fn last_delay(&self) -> Option<Duration> {
        self.last_delay
    }

    /// The most requests that arrived in any interval of each length, and passed.
    pub fn most_admitted(&self) -> impl Iterator<Item = Most> {
        self.admitted.most()
    }

    /// The most requests that departed in any interval of each length: at their time and delay.
    pub fn most_departed(&self) -> impl Iterator<Item = Most> {
        self.departed.most()
    }

    /// The keys with the most requests, the busiest first, and the most by which each count may be
    /// too low: 0 unless there were more than [`MAX_BUSY_KEYS`] keys.
    #[must_use]
    pub fn busiest(&self, most: usize) -> (Vec<BusyKey<'_>>, u64) {
        let order = |key: &BusyKey<'_>| Reverse(key.requests);
        let keys = self.keys.iter();
        let mut keys: Vec<_> = keys
            .map(|(key, &Counts { requests, denied })| BusyKey { key, requests, denied })
            .collect();
        keys.sort_unstable_by(|a, b| order(a).cmp(&order(b)).then_with(|| a.key.cmp(b.key)));
        keys.truncate(most);
        (keys, self.missed)
    }

    fn depart_before(&mut self, now: u64) {
        while let Some(&Reverse(time)) = self.leaving.peek()
            && time < now
        {
            self.leaving.pop();
            self.departed.count(time);
        }
    }

    fn count_key(&mut self, key: &[u8], denied: bool) {
        if self.keys.len() >= MAX_BUSY_KEYS && !self.keys.contains_key(key) {
            self.drop_idle_keys();
        }
        let counts = match self.keys.get_mut(key) {
            Some(counts) => counts,
            None => self.keys.entry(key.into()).or_default(),
        };
        counts.requests += 1;
        counts.denied += u64::from(denied);
    }

    /// Takes the median off every count and drops the keys that have none left, at least half of
    /// them. (After Misra and Gries, "Finding repeated elements", 1982.)
    #[cold]
    fn drop_idle_keys(&mut self) {
        let mut counts: Vec<u64> = self.keys.values().map(|counts| counts.requests).collect();
        let middle = counts.len() / 2;
        let (_, &mut median, _) = counts.select_nth_unstable(middle);
        self.missed += median;
        self.keys.retain(|_, counts| {
            counts.requests = counts.requests.saturating_sub(median);
            counts.denied = counts.denied.min(counts.requests);
            counts.requests > 0
        });
    }
}

/// The periods of the limits of a policy, each once, the shortest first. One of the calendar counts
/// as its longest: a month is 31 days, a year 366.
#[must_use]
pub fn periods(policy: &Policy) -> Vec<Duration> {
    let period = |limit: &Limit| match limit {
        Limit::Gcra(limit) => limit.period(),
        Limit::IntervalBucket(limit) => limit.period(),
        Limit::FixedWindow(limit) => window_length(limit),
        Limit::SlidingLog(limit) => limit.period(),
        Limit::SlidingCounter(limit) => limit.period(),
    };
    let periods: BTreeSet<_> = policy.limits().iter().map(period).collect();
    periods.into_iter().collect()
}

fn window_length(limit: &FixedWindow) -> Duration {
    let days = match limit.window() {
        Window::Span { period, .. } => return period,
        Window::Calendar { unit: CalendarUnit::Day, .. } => 1,
        Window::Calendar { unit: CalendarUnit::Week, .. } => 7,
        Window::Calendar { unit: CalendarUnit::Month, .. } => 31,
        Window::Calendar { unit: CalendarUnit::Year, .. } => 366,
    };
    Duration::from_secs(days * 86_400)
}

#[cfg(test)]
mod tests;
