//! Sliding log: every event is remembered for one period, and the limit holds in every interval.
//!
//! The exact limit, at the price of memory: what a third party's "30 calls in any minute" means.
//!
//! Each event keeps the running total up to and including itself, so the units in any stretch of
//! the log are a difference of two numbers, and a decision is a few binary searches however long
//! the log is.
//!
//! Invariants: at most `N` in any interval of `P` (without charges); an event exactly `P` old is
//! gone; times in the log never go down.

use std::{ops::ControlFlow, time::Duration};

use super::{
    Algorithm, LimitError, MAX_COUNT, check_period, check_units,
    events::{Entry, Events},
    not_after, units,
};
use crate::{decision::Retry, time::Timestamp};

/// The most units that `keep-max` may hold on to.
const MAX_KEEP: u32 = 1 << 20;
/// More than any log holds: its limit, what was carried over, and one charge.
const MAX_TOTAL: u64 = 1 << 53;

/// `N` units in any interval of `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    limit: u32,
    period: u64,
    count_all: bool,
    keep: Option<Keep>,
    /// How old an event is at least that does not count: the period, or less where this limit reads the log
    /// of another ([`reading`](Self::reading)).
    reach: u64,
}

/// Events that are kept for a later rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keep {
    period: u64,
    units: u32,
}

/// So many units at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event {
    /// Microseconds since the Unix epoch.
    pub(crate) time: u64,
    /// Units, at least 1.
    pub(crate) weight: u64,
}

/// What a key keeps: its events, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    /// The running total before the oldest event.
    base: u64,
    log: Events,
}

impl SlidingLog {
    /// `limit` units in any interval of `period` (1 ms ..= 366 days); with `count_all` denied
    /// requests are recorded too. `keep` holds events that long for a later rule, up to `keep_max`
    /// units (`limit * keep / period`, at most 2^20, if none is given).
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain, and for `keep_max` without `keep`.
    pub fn new(
        limit: u32,
        period: Duration,
        count_all: bool,
        keep: Option<Duration>,
        keep_max: Option<u32>,
    ) -> Result<Self, LimitError> {
        let limit = check_units("limit", limit)?;
        let period = check_period("period", period)?;
        let keep = match (keep, keep_max) {
            (None, None) => None,
            (None, Some(_)) => {
                return Err(LimitError::Combination(
                    "invalid option `keep-max`: expected `keep` with it, such as `keep=1h`",
                ));
            }
            (Some(keep), keep_max) => {
                let keep = check_period("keep", keep)?;
                let units = keep_max.unwrap_or_else(|| default_keep(limit, period, keep));
                if !(1..=MAX_KEEP).contains(&units) {
                    return Err(LimitError::Domain {
                        name: "keep-max",
                        value: units.to_string(),
                        domain: "1 to 1048576",
                    });
                }
                Some(Keep { period: keep, units })
            }
        };
        Ok(Self { limit, period, count_all, keep, reach: period })
    }

    /// `N`: units in any interval of the period.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// `P`: 1 ms ..= 366 days.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// Whether denied requests are recorded too.
    #[must_use]
    pub const fn count_all(&self) -> bool {
        self.count_all
    }

    /// How long events are kept for a later rule.
    #[must_use]
    pub fn keep(&self) -> Option<Duration> {
        self.keep.map(|keep| Duration::from_micros(keep.period))
    }

    /// How many units are kept for a later rule, where that is not the default.
    #[must_use]
    pub fn keep_max(&self) -> Option<u32> {
        let keep = self.keep?;
        (keep.units != default_keep(self.limit, self.period, keep.period)).then_some(keep.units)
    }

    /// How many units are kept for a later rule; 0 where none are.
    pub(crate) fn keep_units(&self) -> u32 {
        self.keep.map_or(0, |keep| keep.units)
    }

    /// What `state` becomes under this limit when it was written under `old`.
    pub(crate) fn carry(&self, old: &Self, mut state: State, now: Timestamp) -> Option<State> {
        old.drop_expired(&mut state, now);
        self.tidy(state, now, false)
    }

    /// This limit, for questions about a log that was written under `writer`: it answers what this limit
    /// would of the log after [`carry`](Self::carry), which drops what `writer` does not keep.
    pub(crate) fn reading(&self, writer: &Self) -> Self {
        Self { reach: self.period.min(writer.retention()), ..*self }
    }

    /// Microseconds until nothing is kept any more.
    pub(crate) fn lifetime(&self, state: Option<&State>, now: Timestamp) -> u64 {
        let newest = state.and_then(|state| state.log.back());
        newest.map_or(0, |event| {
            let gone = not_after(event.time, now.as_micros()) + self.retention();
            gone.saturating_sub(now.as_micros())
        })
    }

    fn retention(&self) -> u64 {
        self.keep.map_or(self.period, |keep| keep.period.max(self.period))
    }

    /// The index of the first event that counts.
    fn first_live(&self, state: &State, now: Timestamp) -> usize {
        state.first_after(now.as_micros().checked_sub(self.reach))
    }

    fn drop_expired(&self, state: &mut State, now: Timestamp) {
        let expired = state.first_after(now.as_micros().checked_sub(self.retention()));
        state.drop_first(expired);
    }

    /// Brings `state` up to `now` and forgets what it need not hold: more of it where units were
    /// `added`. (An admitted request leaves at most the limit, so that nothing is forgotten then.)
    fn tidy(&self, mut state: State, now: Timestamp, added: bool) -> Option<State> {
        state.clamp_times(now.as_micros());
        self.drop_expired(&mut state, now);
        if let Some(keep) = self.keep {
            // Those that no longer count go while there are too many units.
            let surplus = state.total().saturating_sub(u64::from(keep.units));
            let spare = state.log.partition_point(|event| event.total - state.base < surplus);
            let spare = if surplus > 0 { spare + 1 } else { 0 };
            state.drop_first(spare.min(self.first_live(&state, now)));
        }
        if added {
            // The oldest whole events go while the rest still sums to the limit.
            let mut rest = state.total().saturating_sub(u64::from(self.limit));
            if let Some(keep) = self.keep {
                // With `keep`, only while there are too many: the first whose loss ends that is
                // the last to go.
                let surplus = state.total().saturating_sub(u64::from(keep.units));
                let needed = state.log.partition_point(|event| event.total - state.base < surplus);
                let through = state.log.get(needed).map_or(0, |event| event.total - state.base);
                rest = if surplus > 0 { rest.min(through) } else { 0 };
            }
            let dropped = state.log.partition_point(|event| event.total - state.base <= rest);
            state.drop_first(dropped);
        }
        (!state.log.is_empty()).then_some(state)
    }
}

/// `N * keep / P`, rounded up, at most 2^20 units.
fn default_keep(limit: u32, period: u64, keep: u64) -> u32 {
    let units = (u128::from(limit) * u128::from(keep)).div_ceil(u128::from(period));
    u32::try_from(units).map_or(MAX_KEEP, |units| units.min(MAX_KEEP))
}

impl State {
    /// A log of these events; `None` where their times go down, a weight is zero, or the sum is more
    /// than any log holds.
    pub(crate) fn from_events(events: impl Iterator<Item = Event>) -> Option<Self> {
        let mut state = Self::default();
        for Event { time, weight } in events {
            if weight == 0 || state.log.back().is_some_and(|last| last.time > time) {
                return None;
            }
            state.push(time, weight);
            if state.total() > MAX_TOTAL {
                return None;
            }
        }
        Some(state)
    }

    /// Drops events that are as old as `period` when the newest one comes: they are gone whatever the
    /// clock does.
    pub(crate) fn drop_gone(&mut self, period: u64) {
        let edge = self.log.back().and_then(|newest| newest.time.checked_sub(period));
        self.drop_first(self.first_after(edge));
    }

    /// A copy, which costs no more than one of a short log, whatever the length of this one.
    pub(crate) fn share(&mut self) -> Self {
        self.log.share();
        self.clone()
    }

    /// Where the oldest event is: copies that share it have it in one place.
    #[cfg(test)]
    pub(crate) fn oldest(&self) -> Option<*const ()> {
        self.log.front().map(|event| std::ptr::from_ref(event).cast())
    }

    /// How many events are kept.
    pub(crate) fn len(&self) -> usize {
        self.log.len()
    }

    /// All events that are kept, oldest first.
    pub(crate) fn events(&self) -> impl Iterator<Item = Event> {
        let mut before = self.base;
        self.log.iter().map(move |&Entry { time, total }| {
            let weight = total - before;
            before = total;
            Event { time, weight }
        })
    }

    /// Whether every event is of one unit.
    pub(crate) fn is_all_ones(&self) -> bool {
        self.total() == self.log.len() as u64
    }

    pub(crate) fn heap_size(&self) -> usize {
        self.log.heap_size()
    }

    /// The times of the oldest and the newest event.
    pub(crate) fn bounds(&self) -> Option<(u64, u64)> {
        Some((self.log.front()?.time, self.log.back()?.time))
    }

    /// Units in the whole log.
    fn total(&self) -> u64 {
        self.log.back().map_or(0, |last| last.total - self.base)
    }

    /// Units from the event at `first` on.
    fn sum_from(&self, first: usize) -> u64 {
        self.total() - self.before(first)
    }

    /// Units before the event at `index`.
    fn before(&self, index: usize) -> u64 {
        index.checked_sub(1).and_then(|last| self.log.get(last)).map_or(0, |e| e.total - self.base)
    }

    /// The index of the first event later than `edge`; none is too old where there is no edge.
    fn first_after(&self, edge: Option<u64>) -> usize {
        edge.map_or(0, |edge| self.log.partition_point(|event| event.time <= edge))
    }

    fn drop_first(&mut self, count: usize) {
        self.base += self.before(count);
        self.log.drop_first(count);
    }

    /// Takes `units`, of which there are as many, off the newest events.
    fn drop_newest(&mut self, units: u64) {
        let kept = self.total() - units;
        while !self.log.is_empty() && self.before(self.log.len() - 1) >= kept {
            self.log.pop();
        }
        let total = self.base + kept;
        if self.log.back().is_some_and(|last| last.total != total) {
            self.log.change_newest(|last| {
                last.total = total;
                ControlFlow::Break(())
            });
        }
    }

    fn push(&mut self, time: u64, weight: u64) {
        if self.base > MAX_TOTAL {
            let base = std::mem::take(&mut self.base);
            self.log.change_newest(|event| {
                event.total -= base;
                ControlFlow::Continue(())
            });
        }
        let total = self.base + self.total();
        self.log.push(Entry { time, total: total + weight.min(MAX_TOTAL) });
    }

    /// Takes times later than `now` as `now`.
    fn clamp_times(&mut self, now: u64) {
        if self.log.back().is_none_or(|newest| newest.time <= now) {
            return;
        }
        self.log.change_newest(|event| {
            if event.time <= now {
                return ControlFlow::Break(());
            }
            event.time = now;
            ControlFlow::Continue(())
        });
    }
}

/// Logs are equal when their events are, whatever the running totals start from.
impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.events().eq(other.events())
    }
}

impl Algorithm for SlidingLog {
    type State = State;

    fn capacity(&self) -> u32 {
        self.limit
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        let Some(left) = self.limit.checked_sub(cost) else { return Retry::Never };
        let Some(state) = state else { return Retry::NOW };
        let live = self.first_live(state, now);
        // So many of the oldest units must go first.
        let surplus = state.sum_from(live).saturating_sub(u64::from(left));
        if surplus == 0 {
            return Retry::NOW;
        }
        let target = state.before(live) + surplus;
        let last = state.log.partition_point(|event| event.total - state.base < target);
        let time = state.log.get(last).map_or(0, |event| event.time);
        let now = now.as_micros();
        Retry::after_micros(not_after(time, now) + self.period - now)
    }

    fn remaining(&self, state: Option<&State>, now: Timestamp) -> u32 {
        units(u64::from(self.limit).saturating_sub(self.used(state, now)))
    }

    fn reset_after(&self, state: Option<&State>, now: Timestamp) -> u64 {
        let edge = now.as_micros().checked_sub(self.reach);
        let newest = state.and_then(|state| state.log.back());
        newest.filter(|event| Some(event.time) > edge).map_or(0, |event| {
            let now = now.as_micros();
            (not_after(event.time, now) + self.period).saturating_sub(now)
        })
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        state.map_or(0, |state| state.sum_from(self.first_live(state, now))).min(MAX_COUNT)
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let mut log = state.take().unwrap_or_default();
        log.clamp_times(now.as_micros());
        log.push(now.as_micros(), u64::from(cost));
        *state = self.tidy(log, now, true);
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let Some(mut log) = state.take() else { return };
        let live = log.sum_from(self.first_live(&log, now));
        log.drop_newest(u64::from(cost).min(live));
        *state = self.tidy(log, now, false);
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        let event = Event { time: now.as_micros(), weight: used };
        State::from_events(std::iter::once(event))
    }
}
