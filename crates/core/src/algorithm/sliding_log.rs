//! Sliding log: every event is stored for one period, and the limit holds in every interval.
//!
//! The exact limit, at the price of memory: the meaning of a third party's "30 calls in any minute".
//!
//! Invariants: at most `N` in any interval of `P` (without charges); an event exactly `P` old has expired; times in
//! the log never go down.

use std::{fmt, time::Duration};

use super::{
    api::{Algorithm, LimitSummary, Parameters, counting_denied, units},
    event_log::{EventLog, LogEvent},
};
use crate::{
    bytes::{COUNT_ALL, Head, KEEP, MAX_COUNT, Reader, StateError, Writer},
    decision::{Decision, Retry},
    human,
    ledger::Expiry,
    parameters::{LimitError, check_period, check_units},
    period, reached,
    share::Share,
    text::{LimitText, TextError, write_option, write_rate},
    time::Timestamp,
};

const NAME: &str = "sliding-log";
const CODE: u8 = 8;

/// Maximum value of `keep-max`, in units.
const MAX_KEEP: u32 = 1 << 20;

/// `N` units in any interval of `P`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    limit: u32,
    period: u64,
    count_all: bool,
    keep: Option<Keep>,
    /// Age from which an event does not count: the period, or less where this limit reads the log of another
    /// ([`reader`](Algorithm::reader)).
    reach: u64,
}

/// Events that are kept for a later policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Keep {
    period: u64,
    units: u32,
}

impl SlidingLog {
    /// `limit` units in any interval of `period` (1 ms ..= 366 days); with `count_all` denied
    /// requests are recorded too. `keep` holds events that long for a later policy, up to `keep_max`
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

    /// How long events are stored for a later policy.
    #[must_use]
    pub fn keep(&self) -> Option<Duration> {
        self.keep.map(|keep| Duration::from_micros(keep.period))
    }

    /// The number of units that are stored for a later policy, if that is not the default.
    fn keep_max(&self) -> Option<u32> {
        let keep = self.keep?;
        (keep.units != default_keep(self.limit, self.period, keep.period)).then_some(keep.units)
    }

    fn retention(&self) -> u64 {
        self.keep.map_or(self.period, |keep| keep.period.max(self.period))
    }

    /// The index of the first event that counts, for a limit that decides as at `at`.
    fn first_live(&self, state: &EventLog, at: Timestamp) -> usize {
        state.first_after(at.as_micros().checked_sub(self.reach))
    }

    fn drop_expired(&self, state: &mut EventLog, at: Timestamp) {
        let expired = state.first_after(at.as_micros().checked_sub(self.retention()));
        state.drop_first(expired);
    }

    /// Brings `state` up to `at`, the time as at which the limit decides, and drops events that it need not store: more of
    /// them if units were `added`. (An admitted request leaves at most the limit, therefore nothing is dropped then.)
    fn tidy(&self, mut state: EventLog, at: Timestamp, added: bool) -> Option<EventLog> {
        state.clamp_times(at.as_micros());
        self.drop_expired(&mut state, at);
        if let Some(keep) = self.keep {
            // Those that no longer count go while there are too many units.
            let surplus = state.total().saturating_sub(u64::from(keep.units));
            let spare = state.events_below(surplus);
            let spare = if surplus > 0 { spare + 1 } else { 0 };
            state.drop_first(spare.min(self.first_live(&state, at)));
        }
        if added {
            // The oldest whole events go while the rest still sums to the limit.
            let mut rest = state.total().saturating_sub(u64::from(self.limit));
            if let Some(keep) = self.keep {
                // With `keep`, only while there are too many: the first whose loss ends that is
                // the last to go.
                let surplus = state.total().saturating_sub(u64::from(keep.units));
                let needed = state.events_below(surplus);
                let through = state.before(needed + 1);
                rest = if surplus > 0 { rest.min(through) } else { 0 };
            }
            let dropped = state.events_within(rest);
            state.drop_first(dropped);
            debug_assert!(
                self.keep.is_some() || state.sum_from(1) < self.limit.into(),
                "the oldest event does not matter"
            );
        }
        debug_assert!(state.newest().is_none_or(|newest| newest <= at.as_micros()));
        (!state.is_empty()).then_some(state)
    }
}

/// `N * keep / P`, rounded up, at most 2^20 units.
fn default_keep(limit: u32, period: u64, keep: u64) -> u32 {
    let units = (u128::from(limit) * u128::from(keep)).div_ceil(u128::from(period));
    u32::try_from(units).map_or(MAX_KEEP, |units| units.min(MAX_KEEP))
}

impl Algorithm for SlidingLog {
    type State = EventLog;

    const NAMES: &'static [(&'static str, &'static [&'static str])] =
        &[(NAME, &["count", "keep", "keep-max"])];
    const OTHER_WORDS: &'static [&'static str] =
        &["slidingwindow", "movingwindow", "slidingwindowlog"];
    const CODES: &'static [u8] = &[CODE];

    fn parameters(&self) -> Parameters {
        Parameters {
            count_all: self.count_all,
            keeps_log: true,
            ..Parameters::new(self.limit, self.period())
        }
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        let (keep, keep_max) = (text.period_option("keep")?, text.units_option("keep-max")?);
        let count_all = text.count_all()?;
        Ok(Some(Self::new(text.limit()?, text.period()?, count_all, keep, keep_max)?))
    }

    fn flags(_code: u8) -> u8 {
        COUNT_ALL | KEEP
    }

    fn encode(&self, state: Option<&EventLog>, out: &mut Writer) {
        let count_all = if self.count_all { COUNT_ALL } else { 0 };
        out.head(CODE, count_all | if self.keep.is_some() { KEEP } else { 0 }, self.limit);
        out.uint(self.period, 6);
        if let Some(keep) = self.keep {
            out.uint(keep.period, 6);
            out.uint(keep.units.into(), 4);
        }
        match state {
            Some(log) => log.encode(out),
            None => out.uint(0, 4),
        }
    }

    fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, Option<EventLog>), StateError> {
        let period = input.period()?;
        let (keep, keep_max) =
            if head.has(KEEP) { (Some(input.period()?), Some(input.u32()?)) } else { (None, None) };
        let limit = Self::new(head.limit, period, head.has(COUNT_ALL), keep, keep_max)?;
        let mut state = EventLog::decode(input)?;
        // Without `keep`, it may begin with events that have expired.
        if let (Some(state), None) = (&mut state, keep) {
            state.drop_gone(limit.period);
        }
        Ok((limit, state))
    }

    fn share_state(state: &mut EventLog) -> EventLog {
        state.share()
    }

    fn log_len(state: &EventLog) -> usize {
        state.encoded_len()
    }

    fn heap_size(state: &EventLog) -> usize {
        state.heap_size()
    }

    #[cfg(debug_assertions)]
    fn check(&self, state: &EventLog) {
        state.check();
        assert!(!state.is_empty(), "an empty log is no state");
        assert_eq!(self.reach, self.period, "a reader stores no log");
    }

    fn wait(&self, state: Option<&EventLog>, now: Timestamp, cost: u32) -> Retry {
        let Some(left) = self.limit.checked_sub(cost) else { return Retry::Never };
        let Some(state) = state else { return Retry::NOW };
        let at = self.decides_at(Some(state), now);
        let live = self.first_live(state, at);
        // So many of the oldest units must go first.
        let surplus = state.sum_from(live).saturating_sub(u64::from(left));
        if surplus == 0 {
            return Retry::NOW;
        }
        let target = state.before(live) + surplus;
        let last = state.events_below(target);
        debug_assert!(state.before(last) < target && target <= state.before(last + 1));
        let time = state.time(last).min(at.as_micros());
        Retry::after_micros(time + self.period - now.as_micros())
    }

    fn remaining(&self, state: Option<&EventLog>, now: Timestamp) -> u32 {
        units(u64::from(self.limit).saturating_sub(self.used(state, now)))
    }

    fn reset_after(&self, state: Option<&EventLog>, now: Timestamp) -> u64 {
        let at = self.decides_at(state, now).as_micros();
        let edge = at.checked_sub(self.reach);
        let newest = state.and_then(EventLog::newest);
        newest
            .filter(|&time| Some(time) > edge)
            .map_or(0, |time| (time.min(at) + self.period).saturating_sub(now.as_micros()))
    }

    fn latest(state: &EventLog) -> u64 {
        state.newest().unwrap_or(0)
    }

    fn lifetime(&self, state: Option<&EventLog>, now: Timestamp) -> u64 {
        let newest = state.and_then(EventLog::newest);
        newest.map_or(0, |time| (time + self.retention()).saturating_sub(now.as_micros()))
    }

    fn used(&self, state: Option<&EventLog>, now: Timestamp) -> u64 {
        let at = self.decides_at(state, now);
        let used = state.map_or(0, |state| state.sum_from(self.first_live(state, at)));
        #[cfg(debug_assertions)]
        if let Some(sum) =
            state.and_then(|state| state.sum_after(at.as_micros().checked_sub(self.reach)))
        {
            assert_eq!(used, sum, "the live units are those of the live events");
        }
        used.min(MAX_COUNT)
    }

    fn charge(&self, state: &mut Option<EventLog>, now: Timestamp, cost: u32) {
        let at = self.decides_at(state.as_ref(), now);
        let mut log = state.take().unwrap_or_default();
        log.clamp_times(at.as_micros());
        log.push(at.as_micros(), u64::from(cost));
        *state = self.tidy(log, at, true);
    }

    /// Events are dropped after the last charge: whatever an earlier one would drop, the last one would drop, too, because time
    /// and units only grow.
    fn charge_all(&self, state: &mut Option<EventLog>, expiries: &[Expiry]) {
        let (Some(first), Some(last)) = (expiries.first(), expiries.last()) else { return };
        let earliest = self.decides_at(state.as_ref(), first.time());
        let mut log = state.take().unwrap_or_default();
        log.clamp_times(earliest.as_micros());
        expiries.iter().for_each(|it| log.push(it.at.max(earliest.as_micros()), it.units.into()));
        *state = self.tidy(log, last.time().max(earliest), true);
    }

    /// Holds become the newest events: where they alone are too many, the oldest ones must become a period old. The log, which
    /// may be long, is not copied.
    fn wait_beside(
        &self,
        state: Option<&EventLog>,
        now: Timestamp,
        units: u32,
        expiries: &[Expiry],
    ) -> Retry {
        let mut held: u64 = expiries.iter().map(|it| u64::from(it.units)).sum();
        let left = u64::from(self.limit.saturating_sub(units));
        if let Ok(held) = u32::try_from(held)
            && u64::from(held) <= left
        {
            return self.wait(state, now, units + held);
        }
        let is_enough = |it: &&Expiry| {
            held -= u64::from(it.units);
            held <= left
        };
        let last = expiries.iter().find(is_enough);
        let earliest = self.decides_at(state, now).as_micros();
        last.map_or(Retry::Never, |it| {
            Retry::after_micros(it.at.max(earliest) + self.period - now.as_micros())
        })
    }

    fn reset_after_beside(
        &self,
        state: Option<&EventLog>,
        now: Timestamp,
        expiries: &[Expiry],
    ) -> u64 {
        let earliest = self.decides_at(state, now).as_micros();
        let newest = expiries.last().map_or(earliest, |it| it.at.max(earliest));
        newest + self.period - now.as_micros()
    }

    fn lifetime_beside(
        &self,
        state: Option<&EventLog>,
        now: Timestamp,
        expiries: &[Expiry],
    ) -> u64 {
        let first = expiries.first().map_or(now, |it| it.time());
        let earliest = self.decides_at(state, first).as_micros();
        let newest = expiries.last().map_or(earliest, |it| it.at.max(earliest));
        newest + self.retention() - now.as_micros()
    }

    fn refund(&self, state: &mut Option<EventLog>, now: Timestamp, cost: u32) {
        let at = self.decides_at(state.as_ref(), now);
        let Some(mut log) = state.take() else { return };
        let live = log.sum_from(self.first_live(&log, at));
        log.drop_newest(u64::from(cost).min(live));
        *state = self.tidy(log, at, false);
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<EventLog> {
        let event = LogEvent { time: now.as_micros(), weight: used };
        EventLog::from_events(std::iter::once(event))
    }

    fn migrate(&self, old: &Self, mut state: EventLog, now: Timestamp) -> Option<EventLog> {
        reached!(MigratedLog);
        let at = old.decides_at(Some(&state), now);
        state.clamp_times(at.as_micros());
        old.drop_expired(&mut state, at);
        let at = self.decides_at(Some(&state), now);
        self.tidy(state, at, false)
    }

    /// A log may be long, and is not copied to be read: what `old` does not keep does not count.
    fn reader(&self, old: &Self, state: &EventLog, now: Timestamp) -> Option<Self> {
        // Both limits may take an event that is later than `now` as one of another time.
        let is_in_order = Self::latest(state) <= now.as_micros();
        reached!(MigratedLogIsReadInPlace if is_in_order);
        is_in_order.then(|| Self { reach: self.period.min(old.retention()), ..*self })
    }

    fn max_admitted(&self, micros: u64) -> u128 {
        u128::from(self.limit) * u128::from(micros.div_ceil(self.period))
    }

    fn more_after(&self, _decision: &Decision) -> Option<Duration> {
        // The oldest events expire first, but the decision states when the newest do.
        None
    }

    fn describe(&self) -> LimitSummary {
        let period = human::span(self.period);
        let counted = counting_denied(self.count_all);
        LimitSummary {
            at_once: human::units(self.limit.into()),
            sustained: format!("{} per {period}", human::units(self.limit.into())),
            denied: format!("waits until enough of the units that count are {period} old{counted}"),
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        share.window(self.limit, self.period(), |units, period| {
            Self::new(units, period, self.count_all, None, None)
        })
    }
}

impl fmt::Display for SlidingLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(formatter, NAME, self.limit, self.period)?;
        write_option(formatter, self.count_all, "count=all")?;
        if let Some(keep) = self.keep {
            write_option(formatter, true, format_args!("keep={}", period::format(keep.period)))?;
        }
        if let Some(units) = self.keep_max() {
            write_option(formatter, true, format_args!("keep-max={units}"))?;
        }
        Ok(())
    }
}
