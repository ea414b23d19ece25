//! Sliding counter: two counts stand in for the log.
//!
//! The window slides over two windows of the clock, and what was admitted in the previous one is
//! taken as spread evenly over it. It needs two numbers a key, and errs a little: up to `2N` pass
//! in an interval of `P` at the worst. (Widely known from the description of how a large proxy
//! network counts requests, 2017.)
//!
//! The estimate is kept times `P`, in whole numbers: `W = prev*(P - e) + cur*P`, where `e` is how
//! far `now` is into the current window.

use std::time::Duration;

use super::{Algorithm, LimitError, MAX_COUNT, check_period, check_units, narrow, units};
use crate::{decision::Retry, time::Timestamp};

/// `N` units in a sliding window of `P`, by estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingCounter {
    limit: u32,
    period: u64,
    count_all: bool,
}

/// What a key keeps: the window it last counted in, and the units in that one and the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) start: u64,
    pub(crate) prev: u64,
    pub(crate) cur: u64,
}

impl SlidingCounter {
    /// `limit` units a sliding window of `period` (1 ms ..= 366 days); with `count_all` denied
    /// requests count too.
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain.
    pub fn new(limit: u32, period: Duration, count_all: bool) -> Result<Self, LimitError> {
        let limit = check_units("limit", limit)?;
        let period = check_period("period", period)?;
        Ok(Self { limit, period, count_all })
    }

    /// `N`: units a window.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// `P`: 1 ms ..= 366 days.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// Whether denied requests count too.
    #[must_use]
    pub const fn count_all(&self) -> bool {
        self.count_all
    }

    /// What `state` becomes under this limit when it was written under `old`.
    pub(crate) fn carry(&self, old: &Self, state: Option<&State>, now: Timestamp) -> Option<State> {
        if self.period == old.period {
            old.current(state, now).recorded()
        } else {
            self.with_used(now, old.used(state, now))
        }
    }

    /// The counts as of the window that contains `now`.
    fn current(&self, state: Option<&State>, now: Timestamp) -> State {
        let start = now.as_micros() - now.as_micros() % self.period;
        match state {
            // A window that begins later than now is taken as the one that contains now.
            Some(state) if state.start >= start => State { start, ..*state },
            Some(state) if state.start + self.period == start => {
                State { start, prev: state.cur, cur: 0 }
            }
            _ => State { start, prev: 0, cur: 0 },
        }
    }

    /// Microseconds from `now` to the end of its window.
    fn left(&self, now: Timestamp) -> u64 {
        self.period - now.as_micros() % self.period
    }

    /// The estimate, times the period.
    fn estimate(&self, state: &State, now: Timestamp) -> u128 {
        product(state.prev, self.left(now)) + product(state.cur, self.period)
    }
}

impl State {
    /// `None` where nothing is counted.
    fn recorded(self) -> Option<Self> {
        (self.prev > 0 || self.cur > 0).then_some(self)
    }
}

fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

impl Algorithm for SlidingCounter {
    type State = State;

    fn capacity(&self) -> u32 {
        self.limit
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        let Some(free) = self.limit.checked_sub(cost).map(u64::from) else { return Retry::Never };
        let state = self.current(state, now);
        if self.estimate(&state, now) <= product(free, self.period) {
            return Retry::NOW;
        }
        let left = self.left(now);
        // How much of a window may still weigh: of the previous one while this one lasts, else of
        // this one in the next.
        let wait = if state.cur <= free {
            left - narrow(product(free - state.cur, self.period) / u128::from(state.prev))
        } else {
            left + (self.period - narrow(product(free, self.period) / u128::from(state.cur)))
        };
        Retry::after_micros(wait)
    }

    fn remaining(&self, state: Option<&State>, now: Timestamp) -> u32 {
        let estimate = self.estimate(&self.current(state, now), now);
        let free = product(u64::from(self.limit), self.period).saturating_sub(estimate);
        units(narrow(free / u128::from(self.period)))
    }

    fn reset_after(&self, state: Option<&State>, now: Timestamp) -> u64 {
        match self.current(state, now) {
            State { cur: 1.., .. } => self.period + self.left(now),
            State { prev: 1.., .. } => self.left(now),
            State { .. } => 0,
        }
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        let estimate = self.estimate(&self.current(state, now), now);
        narrow(estimate.div_ceil(u128::from(self.period))).min(MAX_COUNT)
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let current = self.current(state.as_ref(), now);
        let cur = (current.cur + u64::from(cost)).min(MAX_COUNT);
        *state = State { cur, ..current }.recorded();
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let current = self.current(state.as_ref(), now);
        let cur = current.cur.saturating_sub(u64::from(cost));
        *state = State { cur, ..current }.recorded();
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        State { cur: used, ..self.current(None, now) }.recorded()
    }
}
