//! What happened over time: the numbers that pictures are drawn from.
//!
//! A [`Track`] counts requests in spans of equal length, few enough to draw however long the
//! traffic is, and follows one key: how much of its limit is left, and where more than the limit
//! passed inside one period. It decides nothing; what is left of the key that it follows is asked
//! of a copy of that key's state.

mod bins;
mod over;

use sluicegate_core::{Decision, Entry, Operation, Outcome, Policy, Timestamp, apply};

pub use self::over::Over;
use self::{bins::Bins, over::Overs};
use crate::event::{Event, Kind};

/// What happened in one span of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Requests that came.
    pub offered: u64,
    /// Those that passed, at once or later.
    pub admitted: u64,
    /// Those that did not.
    pub denied: u64,
    /// Those that passed and were told to wait.
    pub delayed: u64,
    /// Requests that went on their way: at their time and delay.
    pub departed: u64,
    /// What was left of the followed key as the span began, and the least that was left in it.
    pub left: Option<(u32, u32)>,
    /// The most units of the followed key in a period that ends here, if above the limit.
    pub over: u64,
}

impl Bin {
    /// Adds what happened in a span behind this one.
    fn join(&mut self, later: &Self) {
        self.offered += later.offered;
        self.admitted += later.admitted;
        self.denied += later.denied;
        self.delayed += later.delayed;
        self.departed += later.departed;
        self.over = self.over.max(later.over);
        self.left = match (self.left, later.left) {
            (Some((first, least)), Some((_, other))) => Some((first, least.min(other))),
            (one, other) => one.or(other),
        };
    }

    fn leave(&mut self, left: u32) {
        let (first, least) = self.left.unwrap_or((left, left));
        self.left = Some((first, least.min(left)));
    }
}

/// The followed key.
#[derive(Debug)]
struct Followed {
    key: Box<[u8]>,
    entry: Option<Entry>,
    policy: Option<Policy>,
    overs: Overs,
    /// Up to where it was asked what is left.
    asked: u64,
    /// Whether any event had it.
    is_met: bool,
}

/// Follows traffic as it is decided.
#[derive(Debug, Default)]
pub struct Track {
    bins: Bins,
    followed: Option<Followed>,
    worst: Option<Over>,
    /// Times of the first and the last event.
    first: Option<Timestamp>,
    last: u64,
}

/// A [`Track`] in spans that are to be drawn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// When the first one begins, in microseconds since the Unix epoch.
    pub start: u64,
    /// Their length in microseconds.
    pub width: u64,
    /// What happened in each.
    pub bins: Vec<Bin>,
}

impl Track {
    /// An empty one, which follows `key`.
    #[must_use]
    pub fn new(key: Option<&[u8]>) -> Self {
        let followed = key.map(|key| Followed {
            key: key.into(),
            entry: None,
            policy: None,
            overs: Overs::default(),
            asked: 0,
            is_met: false,
        });
        Self { followed, ..Self::default() }
    }

    /// Adds an event, not before the last one, and what was decided. `default` is the policy in
    /// force for events that name none.
    pub fn add(&mut self, event: &Event<'_>, decision: &Decision, default: Option<&Policy>) {
        let now = event.time.as_micros();
        self.last = now;
        self.first = self.first.or(Some(event.time));
        if event.kind == Kind::Take {
            let bin = self.bins.at(now);
            bin.offered += 1;
            match decision.outcome {
                Outcome::Deny { .. } => bin.denied += 1,
                Outcome::Allow { delay } => {
                    bin.admitted += 1;
                    bin.delayed += u64::from(!delay.is_zero());
                    self.bins.at((event.time + delay).as_micros()).departed += 1;
                }
            }
        }
        if self.followed.as_ref().is_some_and(|it| *it.key == *event.key) {
            self.follow(event, decision, default);
        }
    }

    /// From `now` on, `policy` is in force for events that name none.
    pub fn change(&mut self, now: Timestamp, policy: &Policy) {
        // What is left at that moment is a matter of the new one.
        self.ask_until(now.as_micros().saturating_sub(1));
        if let Some(followed) = &mut self.followed {
            followed.policy = Some(policy.clone());
            followed.overs.rule(policy);
        }
    }

    /// Ends it with the last event and departure, or at `until` if that is later.
    pub fn finish(&mut self, until: Option<Timestamp>) {
        if let Some(until) = until {
            // An end is no part of what it ends.
            self.bins.at(until.as_micros().saturating_sub(1).max(self.last));
        }
        if !self.bins.all().is_empty() {
            self.ask_until(self.bins.end() - 1);
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

    /// All in spans of `width` microseconds, which [`width_for`](Self::width_for) told of this or
    /// of another track.
    #[must_use]
    pub fn spans(&self, width: u64) -> Spans {
        let mut bins = self.bins.clone();
        bins.join_to_width(width);
        Spans { start: bins.start(), width: bins.width(), bins: bins.all().to_vec() }
    }

    /// The interval in which the followed key was furthest above its limit.
    #[must_use]
    pub const fn worst(&self) -> Option<&Over> {
        self.worst.as_ref()
    }

    fn follow(&mut self, event: &Event<'_>, decision: &Decision, default: Option<&Policy>) {
        let now = event.time.as_micros();
        self.ask_until(now);
        let Some(followed) = &mut self.followed else { return };
        followed.is_met = true;
        let named = str::from_utf8(event.policy).ok().filter(|text| !text.is_empty());
        let policy = named.and_then(|text| text.parse().ok()).or_else(|| default.cloned());
        let Some(policy) = policy else { return };
        if followed.policy.as_ref() != Some(&policy) {
            followed.overs.rule(&policy);
            followed.policy = Some(policy.clone());
        }
        // The first time, as it was before.
        if self.bins.at(now).left.is_none()
            && let Ok(before) = apply(&policy, &mut followed.entry, event.time, Operation::Peek(1))
        {
            self.bins.at(now).leave(before.remaining);
        }
        let applied = apply(&policy, &mut followed.entry, event.time, event.operation());
        debug_assert!(applied.is_ok(), "a trace has no operation that reserves");
        if let (Kind::Take, Outcome::Allow { delay }) = (event.kind, decision.outcome) {
            let time = (event.time + delay).as_micros();
            if let Some(over) = followed.overs.pass(time, event.cost.into()) {
                let bin = self.bins.at(time);
                bin.over = bin.over.max(over.units);
                if self.worst.as_ref().is_none_or(|worst| over.is_worse_than(worst)) {
                    self.worst = Some(over);
                }
            }
        }
        self.bins.at(now).leave(decision.remaining);
    }

    /// Asks what is left of the followed key wherever a span begins, up to `now`.
    fn ask_until(&mut self, now: u64) {
        let Some(followed) = &mut self.followed else { return };
        let Some(policy) = &followed.policy else { return };
        // Joins spans first, so that there are not too many to ask about.
        self.bins.at(now);
        let width = self.bins.width();
        let mut at = (followed.asked.max(self.bins.start()) / width + 1) * width;
        while at <= now {
            let time = Timestamp::saturating_from_micros(at);
            if let Ok(peeked) = apply(policy, &mut followed.entry, time, Operation::Peek(1)) {
                self.bins.at(at).leave(peeked.remaining);
            }
            at += width;
        }
        followed.asked = now;
    }
}

#[cfg(test)]
mod tests;
