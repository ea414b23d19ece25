//! Fixed window: a count that starts again with each window.
//!
//! The simplest limit, and what most plans are worded in. A window opens with its first request
//! (`align=first`), on the clock (`align=clock`), or at a local midnight (calendar periods). Up to
//! twice the limit passes in an interval of one period across an edge: that is the algorithm, not
//! an error.
//!
//! Invariants: at most `N` a window (without charges); a count of zero is the same as no state.

use std::time::Duration;

use super::{Algorithm, LimitError, MAX_COUNT, check_period, check_units, not_after, units};
use crate::{
    calendar::{Calendar, CalendarUnit},
    decision::{Decision, Outcome, Retry},
    time::Timestamp,
};

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// With the first request after the last window.
    First,
    /// At multiples of the period since the Unix epoch.
    Clock,
}

/// How long a window is and where it begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Window {
    /// A period of always the same length.
    Span {
        /// 1 ms ..= 366 days.
        period: Duration,
        /// Where windows begin.
        align: Align,
    },
    /// From one local midnight to the next.
    Calendar {
        /// Which midnights.
        unit: CalendarUnit,
        /// A name of the IANA time zone database.
        zone: String,
    },
}

/// `N` units a window.
#[derive(Clone, Debug, PartialEq)]
pub struct FixedWindow {
    limit: u32,
    rule: Rule,
    count_all: bool,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Span { period: u64, align: Align },
    Calendar(Calendar),
}

/// What a take comes to in a window; see [`FixedWindow::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// May it pass?
    pub allowed: bool,
    /// Units used in the window, once it is decided.
    pub used: u64,
    cost: u32,
}

/// What a key keeps: when its window began, and the units used in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) used: u64,
}

impl FixedWindow {
    /// `limit` units a `window`; with `count_all` denied requests count too.
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain or an unknown time zone.
    pub fn new(limit: u32, window: &Window, count_all: bool) -> Result<Self, LimitError> {
        let limit = check_units("limit", limit)?;
        let rule = match window {
            Window::Span { period, align } => {
                Rule::Span { period: check_period("period", *period)?, align: *align }
            }
            Window::Calendar { unit, zone } => {
                let calendar = Calendar::new(*unit, zone);
                Rule::Calendar(calendar.ok_or_else(|| LimitError::Zone(zone.clone()))?)
            }
        };
        Ok(Self { limit, rule, count_all })
    }

    /// `N`: units a window.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// The window's rule.
    #[must_use]
    pub fn window(&self) -> Window {
        match &self.rule {
            Rule::Span { period, align } => {
                Window::Span { period: Duration::from_micros(*period), align: *align }
            }
            Rule::Calendar(calendar) => {
                Window::Calendar { unit: calendar.unit(), zone: calendar.zone().to_owned() }
            }
        }
    }

    /// Whether denied requests count too.
    #[must_use]
    pub const fn count_all(&self) -> bool {
        self.count_all
    }

    /// Judges a take of `cost` units (not 0) in a window in which `used` are used: what
    /// [`apply`](crate::apply) does under a policy of this one limit, for stores that keep windows in a
    /// form of their own. [`tell`](Self::tell) makes a [`Decision`] of it.
    #[inline]
    #[must_use]
    pub fn judge(&self, used: u64, cost: u32) -> Counted {
        let after = used + u64::from(cost);
        let allowed = after <= u64::from(self.limit);
        let counts = allowed || self.count_all;
        Counted { allowed, used: if counts { after.min(MAX_COUNT) } else { used }, cost }
    }

    /// What was judged in a window that ends after `left` microseconds, as a decision.
    #[inline]
    pub fn tell(&self, counted: &Counted, left: u64) -> Decision {
        let Counted { allowed, used, cost } = *counted;
        let outcome = if allowed {
            Outcome::Allow { delay: Duration::ZERO }
        } else if cost > self.limit {
            Outcome::Deny { retry: Retry::Never }
        } else {
            Outcome::Deny { retry: Retry::after_micros(left) }
        };
        let reset_after = Duration::from_micros(if used > 0 { left } else { 0 });
        let remaining = units(u64::from(self.limit).saturating_sub(used));
        Decision { outcome, limit: self.limit, remaining, reset_after, binding: 0 }
    }

    /// The length of the window that a request at `now` would open, in microseconds.
    pub(crate) fn period_at(&self, now: Timestamp) -> u64 {
        match &self.rule {
            Rule::Span { period, .. } => *period,
            Rule::Calendar(calendar) => {
                let (start, end) = calendar.window(now.as_micros());
                end - start
            }
        }
    }

    /// The calendar unit, if it has one.
    pub(crate) fn unit(&self) -> Option<CalendarUnit> {
        match &self.rule {
            Rule::Span { .. } => None,
            Rule::Calendar(calendar) => Some(calendar.unit()),
        }
    }

    /// When the window that began at `start` ends. A window of the calendar ends at the first
    /// boundary after its start, also one that another rule opened between two.
    pub(crate) fn end(&self, start: u64) -> u64 {
        match &self.rule {
            Rule::Span { period, .. } => start + period,
            Rule::Calendar(calendar) => calendar.window(start).1,
        }
    }

    /// What `state` becomes under this limit when it was written under `old`.
    pub(crate) fn carry(&self, old: &Self, state: Option<&State>, now: Timestamp) -> Option<State> {
        let open = old.open(state, now)?;
        (now.as_micros() < self.end(open.start)).then_some(open)
    }

    /// The window of `state`, if it is still open at `now`.
    fn open(&self, state: Option<&State>, now: Timestamp) -> Option<State> {
        let now = now.as_micros();
        let State { start, used } = *state?;
        let start = not_after(start, now);
        (used > 0 && now < self.end(start)).then_some(State { start, used })
    }

    /// The window that a request at `now` is counted in.
    fn current(&self, state: Option<&State>, now: Timestamp) -> State {
        self.open(state, now).unwrap_or_else(|| {
            let now = now.as_micros();
            let start = match &self.rule {
                Rule::Span { align: Align::First, .. } => now,
                Rule::Span { period, align: Align::Clock } => now - now % period,
                Rule::Calendar(calendar) => calendar.window(now).0,
            };
            State { start, used: 0 }
        })
    }
}

impl Algorithm for FixedWindow {
    type State = State;

    fn capacity(&self) -> u32 {
        self.limit
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        let Some(left) = self.limit.checked_sub(cost) else { return Retry::Never };
        match self.open(state, now) {
            Some(window) if window.used > u64::from(left) => {
                Retry::after_micros(self.end(window.start) - now.as_micros())
            }
            _ => Retry::NOW,
        }
    }

    fn remaining(&self, state: Option<&State>, now: Timestamp) -> u32 {
        units(u64::from(self.limit).saturating_sub(self.used(state, now)))
    }

    fn reset_after(&self, state: Option<&State>, now: Timestamp) -> u64 {
        self.open(state, now).map_or(0, |window| self.end(window.start) - now.as_micros())
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        self.open(state, now).map_or(0, |window| window.used)
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let State { start, used } = self.current(state.as_ref(), now);
        *state = Some(State { start, used: (used + u64::from(cost)).min(MAX_COUNT) });
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        *state = self.open(state.as_ref(), now).and_then(|State { start, used }| {
            let used = used.saturating_sub(u64::from(cost));
            (used > 0).then_some(State { start, used })
        });
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        (used > 0).then(|| State { used, ..self.current(None, now) })
    }
}
