//! Totals of decided traffic.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap},
    time::Duration,
};

use sluicegate_core::{Decision, Outcome, Policy};

use ahash::RandomState;
use hashbrown::HashSet;

use crate::{
    event::Event,
    heavy_hitters::HeavyHitters,
    kind::Kind,
    windows::{WindowPeak, Windows},
};

/// Sums up the requests of a trace (`take` and `hold`); other operations are only counted.
#[derive(Debug)]
pub struct Report {
    totals: Totals,
    admitted: Windows,
    /// Requests as they are sent, from the first one on that has to wait; until then they are those that arrive.
    sent: Option<Windows>,
    /// Times of requests that are still to be sent, in microseconds. One that has come can be counted:
    /// none before it will be added.
    unsent: BinaryHeap<Reverse<u64>>,
    keys: Option<HeavyHitters>,
    /// The lines of the requests in flight, of a log with durations.
    in_flight: HashSet<u64, RandomState>,
}

/// Totals of events.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Requests that were allowed.
    pub allowed: u64,
    /// Requests that were allowed with a delay.
    pub delayed: u64,
    /// Other events: peeks, charges, refunds, resets, settles, renews.
    pub others: u64,
    /// The longest delay.
    pub longest_delay: Duration,
    /// Delay of the last request; `None` if it was denied, or before the first one.
    pub last_delay: Option<Duration>,
    /// The most requests in flight at one time, of all keys; 0 without durations.
    pub max_in_flight: usize,
    /// Requests whose hold expired before they ended.
    pub expired: u64,
}

impl Totals {
    /// Requests that were denied.
    #[must_use]
    pub const fn denied(&self) -> u64 {
        self.requests - self.allowed
    }
}

impl Report {
    /// An empty report, with peaks in intervals of each of `spans`.
    #[must_use]
    pub fn new(spans: &[Duration]) -> Self {
        Self {
            totals: Totals::default(),
            admitted: Windows::new(spans),
            sent: None,
            unsent: BinaryHeap::new(),
            keys: Some(HeavyHitters::default()),
            in_flight: HashSet::default(),
        }
    }

    /// As [`new`](Self::new), without counting keys, which takes most of the time.
    #[must_use]
    pub fn without_keys(spans: &[Duration]) -> Self {
        Self { keys: None, ..Self::new(spans) }
    }

    /// Adds an event, not before the last one, and its decision.
    pub fn add(&mut self, event: &Event<'_>, decision: &Decision) {
        if event.kind == Kind::End {
            let has_expired = self.in_flight.remove(&event.line) && !decision.allowed();
            self.totals.expired += u64::from(has_expired);
            return;
        }
        if !event.kind.is_request() {
            self.totals.others += 1;
            return;
        }
        let now = event.time.as_micros();
        self.totals.requests += 1;
        self.totals.last_delay = match decision.outcome {
            Outcome::Allow { delay } => Some(delay),
            Outcome::Deny { .. } => None,
        };
        if let Some(keys) = &mut self.keys {
            keys.count(event.key, !decision.allowed());
        }
        self.count_sent_before(now);
        if let Some(delay) = self.totals.last_delay {
            self.totals.allowed += 1;
            if event.kind == Kind::Start {
                self.in_flight.insert(event.line);
                self.totals.max_in_flight = self.totals.max_in_flight.max(self.in_flight.len());
            }
            if !delay.is_zero() && self.sent.is_none() {
                self.sent = Some(self.admitted.clone());
            }
            self.totals.delayed += u64::from(!delay.is_zero());
            self.totals.longest_delay = self.totals.longest_delay.max(delay);
            self.admitted.count(now);
            if self.sent.is_some() {
                self.unsent.push(Reverse((event.time + delay).as_micros()));
            }
        }
    }

    /// Counts the requests that are sent after the last event. Call it once.
    pub fn finish(&mut self) {
        self.count_sent_before(u64::MAX);
    }

    /// The totals of all events so far.
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }

    /// The most requests that arrived in any interval of each length, and passed.
    pub fn peak_admitted(&self) -> impl Iterator<Item = WindowPeak> {
        self.admitted.peaks()
    }

    /// The most requests that were sent in any interval of each length: at their time and delay.
    pub fn peak_sent(&self) -> impl Iterator<Item = WindowPeak> {
        self.sent.as_ref().unwrap_or(&self.admitted).peaks()
    }

    /// The keys with the most requests, where they are counted.
    #[must_use]
    pub const fn keys(&self) -> Option<&HeavyHitters> {
        self.keys.as_ref()
    }

    fn count_sent_before(&mut self, now: u64) {
        let Some(sent) = &mut self.sent else { return };
        while let Some(&Reverse(time)) = self.unsent.peek()
            && time < now
        {
            self.unsent.pop();
            sent.count(time);
        }
    }
}

/// The periods of the limits of a policy, each once, the shortest first. One of the calendar counts
/// as its longest: a month is 31 days, a year 366.
#[must_use]
pub fn periods(policy: &Policy) -> Vec<Duration> {
    let periods: BTreeSet<_> = policy.limits().iter().map(|limit| limit.rate().1).collect();
    periods.into_iter().collect()
}

#[cfg(test)]
mod tests;
