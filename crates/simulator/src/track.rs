//! Decisions over time: the numbers that charts are drawn from.
//!
//! A [`TimeSeries`] counts requests in spans of equal length, few enough to draw even for long traffic. It also tracks one
//! key: the units sent in the period that ends now, or held, the remaining units, and the periods in which more was sent
//! than the limit promises. It makes no decisions; the remaining units are read from a copy of the state of the key.

mod bins;
mod fixed;
mod held;
mod sliding;

use sluicegate_core::{Decision, Entry, Operation, Outcome, Policy, Timestamp, apply};

pub use self::bins::Bin;
use self::{bins::Bins, fixed::FixedWindows, held::HeldUnits, sliding::Sliding};
pub use self::{
    fixed::CountedWindow,
    sliding::{Excess, Level, Levels},
};
use crate::{bounds::Bound, event::Event};

/// Upper bound on the changes of bounds that are kept: each event of a trace may have another policy.
const MAX_CHANGES: usize = 64;

/// The tracked key.
#[derive(Debug)]
struct TrackedKey {
    key: Box<[u8]>,
    entry: Option<Entry>,
    policy: Option<Policy>,
    sliding: Sliding,
    held: HeldUnits,
    windows: FixedWindows,
    bounds: Vec<Bounds>,
    /// The time up to which the remaining units are known.
    requested_at: u64,
    /// Whether any event has this key.
    is_met: bool,
}

/// The bounds of a policy, from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The moment, in microseconds since the Unix epoch.
    pub from: u64,
    /// One for each limit of the policy.
    pub limits: Vec<Bound>,
}

impl TrackedKey {
    fn set_policy(&mut self, now: u64, policy: &Policy) {
        self.sliding.set_policy(now, policy);
        self.windows.set_policy(policy);
        let limits = Bound::of(policy);
        let is_new = self.bounds.last().is_none_or(|last| last.limits != limits);
        if is_new && self.bounds.len() < MAX_CHANGES {
            self.bounds.push(Bounds { from: now, limits });
        }
        self.policy = Some(policy.clone());
    }

    /// Ends the holds that have expired at `now`, and sends the next units; when they are sent.
    fn send_next(&mut self, now: u64) -> Option<u64> {
        while let Some((time, charged)) = self.held.expire_next(now) {
            if let Some(units) = charged {
                self.charge(time, units);
            }
        }
        self.sliding.send_next(now)
    }

    /// Counts units that are charged at `time`.
    fn charge(&mut self, time: u64, units: u32) {
        self.windows.count(time, units.into());
        self.sliding.send(time, units.into());
    }

    /// Units in the period of each limit, or held.
    fn levels(&self) -> Levels {
        let mut levels = self.sliding.levels();
        let limits = self.bounds.last().map_or(&[][..], |bounds| &bounds.limits);
        for (level, _) in levels.iter_mut().zip(limits).filter(|(_, bound)| bound.counts_holds) {
            *level = Level { units: self.held.units(), exceeds: false };
        }
        levels
    }
}

/// Counts of decided traffic over time.
#[derive(Debug, Default)]
pub struct TimeSeries {
    bins: Bins,
    followed: Option<TrackedKey>,
    has_other_keys: bool,
    /// Times of the first and the last event.
    first: Option<Timestamp>,
    last: u64,
}

/// A [`TimeSeries`] in spans to draw.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// Start of the first one, in microseconds since the Unix epoch.
    pub start: u64,
    /// Their length in microseconds.
    pub width: u64,
    /// The counts of each.
    pub bins: Vec<Bin>,
}

impl TimeSeries {
    /// An empty series that tracks `key`.
    #[must_use]
    pub fn new(key: Option<&[u8]>) -> Self {
        let followed = key.map(|key| TrackedKey {
            key: key.into(),
            entry: None,
            policy: None,
            sliding: Sliding::default(),
            held: HeldUnits::default(),
            windows: FixedWindows::default(),
            bounds: Vec::new(),
            requested_at: 0,
            is_met: false,
        });
        Self { followed, ..Self::default() }
    }

    /// Adds an event, not before the last one, and its decision. `default` is the policy for events that name none.
    pub fn add(&mut self, event: &Event<'_>, decision: &Decision, default: Option<&Policy>) {
        let now = event.time.as_micros();
        self.last = now;
        self.first = self.first.or(Some(event.time));
        if event.kind.is_request() {
            let bin = self.bins.at(now);
            bin.offered += 1;
            match decision.outcome {
                Outcome::Deny { .. } => bin.denied += 1,
                Outcome::Allow { delay } => {
                    bin.admitted += 1;
                    bin.delayed += u64::from(!delay.is_zero());
                    self.bins.at((event.time + delay).as_micros()).sent += 1;
                }
            }
        }
        if self.followed.as_ref().is_some_and(|it| *it.key == *event.key) {
            self.follow(event, decision, default);
        } else {
            self.has_other_keys = true;
        }
    }

    /// From `now` on, `policy` is in force for events that name none.
    pub fn change(&mut self, now: Timestamp, policy: &Policy) {
        // The units left at that moment are those of the new policy.
        self.sample_until(now.as_micros().saturating_sub(1));
        if let Some(followed) = &mut self.followed {
            followed.set_policy(now.as_micros(), policy);
        }
    }

    /// Ends it with the last event and the last request sent, or at `until` if that is later.
    pub fn finish(&mut self, until: Option<Timestamp>) {
        if let Some(until) = until {
            // The end of a span is not part of it.
            self.bins.at(until.as_micros().saturating_sub(1).max(self.last));
        }
        if !self.bins.all().is_empty() {
            self.sample_until(self.bins.end() - 1);
        }
    }

    /// Whether any event had the key that is followed.
    #[must_use]
    pub fn has_followed(&self) -> bool {
        self.followed.as_ref().is_some_and(|followed| followed.is_met)
    }

    /// When the first event was.
    #[must_use]
    pub const fn first(&self) -> Option<Timestamp> {
        self.first
    }

    /// Where the last span ends, in microseconds since the Unix epoch.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.bins.end()
    }

    /// The length of a span with which there are at most `most`.
    #[must_use]
    pub fn width_for(&self, most: usize) -> u64 {
        let mut bins = self.bins.clone();
        bins.join_to(most);
        bins.width()
    }

    /// All in spans of `width` microseconds, a result of [`width_for`](Self::width_for) of this or of another track.
    #[must_use]
    pub fn spans(&self, width: u64) -> Spans {
        let mut bins = self.bins.clone();
        bins.join_to_width(width);
        Spans { start: bins.start(), width: bins.width(), bins: bins.all().to_vec() }
    }

    /// The interval in which the followed key was furthest above the bound of a limit.
    #[must_use]
    pub fn worst(&self) -> Option<&Excess> {
        self.followed.as_ref().and_then(|followed| followed.sliding.worst())
    }

    /// The bounds of the policy of the followed key, at first and after each change.
    #[must_use]
    pub fn bounds(&self) -> &[Bounds] {
        self.followed.as_ref().map_or(&[], |followed| &followed.bounds)
    }

    /// The windows of the first fixed window of the policy, as the followed key used them; none if
    /// there are too many to mark.
    #[must_use]
    pub fn windows(&self) -> &[CountedWindow] {
        self.followed.as_ref().map_or(&[], |followed| followed.windows.counted())
    }

    /// The most units that the followed key sent in any one period of each limit.
    #[must_use]
    pub fn peaks(&self) -> Levels {
        let mut peak = Bin::default();
        self.bins.all().iter().for_each(|bin| peak.raise(&bin.levels));
        peak.levels
    }

    /// Whether there were keys other than the followed one.
    #[must_use]
    pub const fn has_other_keys(&self) -> bool {
        self.has_other_keys
    }

    fn follow(&mut self, event: &Event<'_>, decision: &Decision, default: Option<&Policy>) {
        let now = event.time.as_micros();
        self.sample_until(now);
        let Some(followed) = &mut self.followed else { return };
        followed.is_met = true;
        let named = str::from_utf8(event.policy).ok().filter(|text| !text.is_empty());
        let policy = named.and_then(|text| text.parse().ok()).or_else(|| default.cloned());
        let Some(policy) = policy else { return };
        if followed.policy.as_ref() != Some(&policy) {
            followed.set_policy(now, &policy);
        }
        // The first time, the state before the event.
        if self.bins.at(now).left.is_none()
            && let Ok(before) = apply(&policy, &mut followed.entry, event.time, Operation::Peek(1))
        {
            self.bins.at(now).leave(before.remaining);
        }
        let applied = event.apply(&policy, &mut followed.entry);
        debug_assert!(applied.is_ok(), "it was decided before");
        if let (Operation::Take(units), Outcome::Allow { delay }) =
            (event.operation(&policy), decision.outcome)
        {
            followed.windows.count(now, units.into());
            followed.sliding.send((event.time + delay).as_micros(), units.into());
        }
        if let Some(units) = followed.held.follow(event, decision, &policy) {
            followed.charge(now, units);
        }
        self.send_until(now);
        let Some(followed) = &mut self.followed else { return };
        followed.sliding.slide_to(now);
        let bin = self.bins.at(now);
        bin.raise(&followed.levels());
        bin.leave(decision.remaining);
    }

    /// Counts the units that the followed key sends up to `now`.
    fn send_until(&mut self, now: u64) {
        let Some(followed) = &mut self.followed else { return };
        while let Some(time) = followed.send_next(now) {
            self.bins.at(time).raise(&followed.levels());
        }
    }

    /// Samples the units left of the followed key, and those it sent, at each start of a span up to `now`.
    fn sample_until(&mut self, now: u64) {
        // Joins spans first, so that there are not too many decisions to make.
        self.bins.at(now);
        let width = self.bins.width();
        let Some(requested_at) = self.followed.as_ref().map(|followed| followed.requested_at)
        else {
            return;
        };
        let mut at = (requested_at.max(self.bins.start()) / width + 1) * width;
        while at <= now {
            self.send_until(at);
            let Some(followed) = &mut self.followed else { return };
            // Before its first request, the key has no state.
            let Some(policy) = &followed.policy else { break };
            followed.sliding.slide_to(at);
            let time = Timestamp::saturating_from_micros(at);
            let bin = self.bins.at(at);
            bin.raise(&followed.levels());
            if let Ok(peeked) = apply(policy, &mut followed.entry, time, Operation::Peek(1)) {
                bin.leave(peeked.remaining);
            }
            at += width;
        }
        self.send_until(now);
        if let Some(followed) = &mut self.followed {
            followed.requested_at = now;
        }
    }
}

#[cfg(test)]
mod tests;
