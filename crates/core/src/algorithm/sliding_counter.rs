//! Sliding counter: two counts approximate the log.
//!
//! The window slides over two windows of the clock, and the units admitted in the previous one count as spread evenly
//! over it. It needs two numbers per key, and is inexact: up to `2N - 1` pass in an interval of `P` at the worst. The
//! estimate is never rounded down, therefore a client gets a little less than `N` a period in the long run. (Widely known
//! from the description of how a large proxy network counts requests, 2017.)
//!
//! The estimate is stored times `P`, in whole numbers: `W = prev*(P - e) + cur*P`, where `e` is the time from the
//! start of the current window to `now`.

use std::{fmt, time::Duration};

use super::api::{Algorithm, LimitSummary, Parameters, counting_denied, narrow, units};
use crate::{
    bytes::{COUNT_ALL, Head, MAX_COUNT, Reader, StateError, Writer},
    decision::{Decision, Retry},
    human,
    parameters::{LimitError, check_period, check_units},
    reached,
    share::Share,
    text::{LimitText, TextError, write_option, write_rate},
    time::Timestamp,
};

const NAME: &str = "sliding-counter";
const CODE: u8 = 9;

/// `N` units in a sliding window of `P`, by estimate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingCounter {
    limit: u32,
    period: u64,
    count_all: bool,
}

/// State of a key: the window in which it last counted, and the units in that one and the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    start: u64,
    prev: u64,
    cur: u64,
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

    /// The counts as of the window that contains `now`, or of the next one if that has begun already.
    fn current(&self, state: Option<&State>, now: Timestamp) -> State {
        let start = now.as_micros() - now.as_micros() % self.period;
        match state {
            Some(state) if state.start >= start => {
                let is_set_back = self.unless_set_back(state.start, now.as_micros()) != state.start;
                State { start: if is_set_back { start } else { state.start }, ..*state }
            }
            Some(state) if state.start + self.period == start => {
                State { start, prev: state.cur, cur: 0 }
            }
            _ => State { start, prev: 0, cur: 0 },
        }
    }

    /// Microseconds from `now` to the end of the current window.
    fn left(&self, state: &State, now: Timestamp) -> u64 {
        state.start + self.period - now.as_micros()
    }

    /// The estimate, times the period.
    fn estimate(&self, state: &State, now: Timestamp) -> u128 {
        let weight = self.left(state, now).min(self.period);
        product(state.prev, weight) + product(state.cur, self.period)
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

    const NAMES: &'static [(&'static str, &'static [&'static str])] = &[(NAME, &["count"])];
    const OTHER_WORDS: &'static [&'static str] =
        &["slidingwindow", "movingwindow", "slidingwindowcounter"];
    const CODES: &'static [u8] = &[CODE];

    fn parameters(&self) -> Parameters {
        let parameters = Parameters::new(self.limit, Duration::from_micros(self.period));
        Parameters { count_all: self.count_all, ..parameters }
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        Ok(Some(Self::new(text.limit()?, text.period()?, text.count_all()?)?))
    }

    fn flags(_code: u8) -> u8 {
        COUNT_ALL
    }

    fn encode(&self, state: Option<&State>, out: &mut Writer) {
        out.head(CODE, if self.count_all { COUNT_ALL } else { 0 }, self.limit);
        out.uint(self.period, 6);
        let State { start, prev, cur } = state.copied().unwrap_or_default();
        out.uint(start, 7);
        out.uint(prev, 7);
        out.uint(cur, 7);
    }

    fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, Option<State>), StateError> {
        let limit = Self::new(head.limit, input.period()?, head.has(COUNT_ALL))?;
        let state = State { start: input.time()?, prev: input.count()?, cur: input.count()? };
        Ok((limit, state.recorded()))
    }

    #[cfg(debug_assertions)]
    fn check(&self, state: &State) {
        assert_eq!(state.recorded(), Some(*state), "a counter of nothing is no state");
        assert!(state.prev.max(state.cur) <= MAX_COUNT, "a count is out of bounds");
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        let Some(free) = self.limit.checked_sub(cost).map(u64::from) else { return Retry::Never };
        let state = self.current(state, now);
        if self.estimate(&state, now) <= product(free, self.period) {
            return Retry::NOW;
        }
        debug_assert!(state.prev > 0 || state.cur > 0, "an unused counter passes what fits");
        let left = self.left(&state, now);
        // The part of a window that may still weigh: of the previous one during this one, else of this one during the
        // next.
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
            state @ State { cur: 1.., .. } => self.period + self.left(&state, now),
            state @ State { prev: 1.., .. } => self.left(&state, now),
            State { .. } => 0,
        }
    }

    fn latest(state: &State) -> u64 {
        state.start
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        let estimate = self.estimate(&self.current(state, now), now);
        narrow(estimate.div_ceil(u128::from(self.period))).min(MAX_COUNT)
    }

    fn window_counts(&self, state: Option<&State>, now: Timestamp) -> Option<(u64, u64)> {
        let State { prev, cur, .. } = self.current(state, now);
        Some((prev, cur))
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

    fn migrate(&self, old: &Self, state: State, now: Timestamp) -> Option<State> {
        if self.period == old.period {
            reached!(MigratedCounterSamePeriod);
            old.current(Some(&state), now).recorded()
        } else {
            reached!(MigratedCounterOtherPeriod);
            self.with_used(old.decides_at(Some(&state), now), old.used(Some(&state), now))
        }
    }

    fn max_admitted(&self, micros: u64) -> u128 {
        // In the worst case a full window ends as the interval begins; from then on its weight falls, and admits
        // more, as fast as the interval grows. The last of them is free when the interval has ended.
        let limit = u128::from(self.limit);
        limit - 1 + (limit * u128::from(micros)).div_ceil(u128::from(self.period))
    }

    fn more_after(&self, _decision: &Decision) -> Option<Duration> {
        // The previous window loses weight first, but the decision states when the current one has lost it.
        None
    }

    /// The current window counts until the end of the next one.
    fn max_reset_after(&self, _decision: &Decision) -> Duration {
        Duration::from_micros(self.period.saturating_mul(2))
    }

    fn describe(&self) -> LimitSummary {
        let period = human::span(self.period);
        let longest = human::span(2 * self.period);
        let counted = counting_denied(self.count_all);
        // The most that also fits in the next window, in whose last microsecond `1/P` of it still weighs.
        let micros = u128::from(self.period);
        let (sustained, span) = match u128::from(self.limit) * micros / (micros + 1) {
            0 => (1, &longest),
            units => (narrow(units), &period),
        };
        LimitSummary {
            at_once: human::units(self.limit.into()),
            sustained: format!(
                "{} per {span}, by an estimate from two windows",
                human::units(sustained)
            ),
            denied: format!("waits until the estimate has fallen, {longest} at most{counted}"),
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        share.window(self.limit, self.parameters().period, |units, period| {
            Self::new(units, period, self.count_all)
        })
    }
}

impl fmt::Display for SlidingCounter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(formatter, NAME, self.limit, self.period)?;
        write_option(formatter, self.count_all, "count=all")
    }
}
