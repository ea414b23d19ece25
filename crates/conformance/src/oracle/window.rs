//! `fixed-window`: windows start at their first request, or are aligned to the clock or the calendar.

use num_traits::Zero;

use super::calendar::Calendar;
use super::exact::{Q, at_least_zero, ceiling};
use super::machine::{Machine, State};

/// At most `n` a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) n: Q,
    pub(super) span: Span,
    pub(super) count_all: bool,
}

/// Start and length of windows, in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Span {
    First(Q),
    Clock(Q),
    Calendar(Calendar),
}

impl Span {
    /// Start of a window that a request at `now` opens.
    fn open(&self, now: &Q) -> Q {
        match self {
            Self::First(_) => now.clone(),
            Self::Clock(p) => (now / p).floor() * p,
            Self::Calendar(calendar) => calendar.start(now),
        }
    }

    /// End of a window that started at `start`, which may be any time.
    fn end(&self, start: &Q) -> Q {
        match self {
            Self::First(p) | Self::Clock(p) => start + p,
            Self::Calendar(calendar) => calendar.next(start),
        }
    }

    /// Whether the periods are equal as durations: a calendar period is as long as its window at `now`.
    pub(super) fn same_period(&self, other: &Self, now: &Q) -> bool {
        match (self, other) {
            (Self::Calendar(a), Self::Calendar(b)) if a.word == b.word => true,
            _ => self.length(now) == other.length(now),
        }
    }

    fn length(&self, now: &Q) -> Q {
        match self {
            Self::First(p) | Self::Clock(p) => p.clone(),
            Self::Calendar(calendar) => calendar.next(now) - calendar.start(now),
        }
    }
}

impl Parameters {
    /// Migrates the state from other parameters of this algorithm.
    pub(super) fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        let start = parts(state).0;
        // A calendar window has no fixed length: its `start + P` is its final boundary.
        if now < &old.span.end(start).min(self.span.end(start)) {
            return state.clone();
        }
        self.unused(now)
    }
}

fn parts(state: &State) -> (&Q, &Q) {
    let State::Window { start, used } = state else {
        unreachable!("a state is kept under its own machine")
    };
    (start, used)
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.n
    }

    fn unused(&self, now: &Q) -> State {
        State::Window { start: self.span.open(now), used: Q::zero() }
    }

    fn at(&self, state: &State, now: &Q) -> State {
        let (start, used) = parts(state);
        let start = start.min(now);
        if used.is_zero() || now >= &self.span.end(start) {
            return self.unused(now);
        }
        State::Window { start: start.clone(), used: used.clone() }
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        parts(state).1.is_zero()
    }

    fn passes(&self, state: &State, _now: &Q, units: &Q) -> bool {
        parts(state).1 + units <= self.n
    }

    fn retry_after(&self, state: &State, now: &Q, _units: &Q) -> Q {
        self.span.end(parts(state).0) - now
    }

    fn remaining(&self, state: &State, _now: &Q) -> Q {
        at_least_zero(&self.n - parts(state).1)
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        let (start, used) = parts(state);
        if used > &Q::zero() { self.span.end(start) - now } else { Q::zero() }
    }

    fn charge(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (start, used) = parts(state);
        State::Window { start: start.clone(), used: (used + cost).min(ceiling()) }
    }

    fn refund(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (start, used) = parts(state);
        State::Window { start: start.clone(), used: at_least_zero(used - cost) }
    }

    fn records_denials(&self) -> bool {
        self.count_all
    }

    fn used(&self, state: &State, _now: &Q) -> Q {
        parts(state).1.clone()
    }
}
