//! Fixed window: a count that starts again with each window.
//!
//! The simplest limit, and what most plans are worded in. A window opens with its first request
//! (`align=first`), on the clock (`align=clock`), or at a local midnight (calendar periods). Up to
//! twice the limit passes in an interval of one period across an edge: that is the algorithm, not
//! an error.
//!
//! Invariants: at most `N` a window (without charges); a count of zero is the same as no state.

use std::{fmt, time::Duration};

use super::api::{Algorithm, LimitSummary, Parameters, units};
use crate::{
    bytes::{ALIGN_CLOCK, COUNT_ALL, Head, MAX_COUNT, Reader, StateError, Writer},
    calendar::{Calendar, CalendarUnit},
    decision::{Decision, Outcome, Retry},
    human,
    ledger::Expiry,
    parameters::{LimitError, check_period, check_units},
    reached,
    share::Share,
    text::{LimitText, TextError, write_option, write_rate},
    time::Timestamp,
};

const NAME: &str = "fixed-window";
const CODE_SPAN: u8 = 6;
const CODE_CALENDAR: u8 = 7;

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// Where windows begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Align {
    /// With the first request after the last window.
    First,
    /// At multiples of the period since the Unix epoch.
    Clock,
}

/// Length and start of windows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
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
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    limit: u32,
    kind: WindowKind,
    count_all: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum WindowKind {
    Span { period: u64, align: Align },
    Calendar(Calendar),
}

/// Result of a take in a window; see [`FixedWindow::try_take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTake {
    /// May it pass?
    pub allowed: bool,
    /// Units used in the window, once it is decided.
    pub used: u64,
    cost: u32,
}

/// State of a key: the start of its window, and the units used in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
        let kind = match window {
            Window::Span { period, align } => {
                WindowKind::Span { period: check_period("period", *period)?, align: *align }
            }
            Window::Calendar { unit, zone } => {
                let calendar = Calendar::new(*unit, zone);
                WindowKind::Calendar(calendar.ok_or_else(|| LimitError::Zone(zone.clone()))?)
            }
        };
        Ok(Self { limit, kind, count_all })
    }

    /// `N`: units a window.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// Length and start of its windows.
    #[must_use]
    pub fn window(&self) -> Window {
        match &self.kind {
            WindowKind::Span { period, align } => {
                Window::Span { period: Duration::from_micros(*period), align: *align }
            }
            WindowKind::Calendar(calendar) => {
                Window::Calendar { unit: calendar.unit(), zone: calendar.zone().to_owned() }
            }
        }
    }

    /// Start and end of the window of a key that is first used at `micros`; all in microseconds since the Unix epoch, also
    /// beyond [`Timestamp::MAX`].
    #[must_use]
    pub fn bounds(&self, micros: u64) -> (u64, u64) {
        let start = self.start(Timestamp::ahead(micros));
        (start, self.end(start))
    }

    /// Takes `cost` units (not 0) in a window in which `used` are used: what
    /// [`apply`](crate::apply) does under a policy of this one limit, for stores that keep windows in a
    /// form of their own. [`decision`](Self::decision) makes a [`Decision`] of it.
    #[inline]
    #[must_use]
    pub fn try_take(&self, used: u64, cost: u32) -> WindowTake {
        let after = used + u64::from(cost);
        let allowed = after <= u64::from(self.limit);
        let counts = allowed || self.count_all;
        WindowTake { allowed, used: if counts { after.min(MAX_COUNT) } else { used }, cost }
    }

    /// The decision on a take in a window that ends after `left` microseconds.
    #[inline]
    pub fn decision(&self, take: &WindowTake, left: u64) -> Decision {
        let WindowTake { allowed, used, cost } = *take;
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
    fn period_at(&self, now: Timestamp) -> u64 {
        match &self.kind {
            WindowKind::Span { period, .. } => *period,
            WindowKind::Calendar(calendar) => {
                let (start, end) = calendar.window(now.as_micros());
                end - start
            }
        }
    }

    /// When the window that began at `start` ends. A window of the calendar ends at the first
    /// boundary after its start, also if another policy opened it between two.
    fn end(&self, start: u64) -> u64 {
        match &self.kind {
            WindowKind::Span { period, .. } => start + period,
            WindowKind::Calendar(calendar) => calendar.window(start).1,
        }
    }

    /// The length of the longest window.
    fn period(&self) -> Duration {
        Duration::from_micros(match &self.kind {
            WindowKind::Span { period, .. } => *period,
            WindowKind::Calendar(calendar) => calendar.unit().days().1 * DAY,
        })
    }

    /// The length of the shortest window. Where clocks are set forward, a day has fewer than 24 hours: 22 at
    /// least, at one station in Antarctica.
    fn shortest(&self) -> u64 {
        match &self.kind {
            WindowKind::Span { period, .. } => *period,
            WindowKind::Calendar(calendar) => {
                let lost = if calendar.zone() == Calendar::UTC { 0 } else { 2 * HOUR };
                calendar.unit().days().0 * DAY - lost
            }
        }
    }

    /// The window of `state`, if it is still open at `now`. It may begin later than `now`.
    fn open(&self, state: Option<&State>, now: Timestamp) -> Option<State> {
        let State { start, used } = *state?;
        if used == 0 {
            return None;
        }
        reached!(RequestBeforeOpenWindow if now.as_micros() < start);
        if self.unless_set_back(start, now.as_micros()) != start {
            return Some(State { start: self.start(now), used });
        }
        (now.as_micros() < self.end(start)).then_some(State { start, used })
    }

    /// The window that a request at `now` is counted in.
    fn current(&self, state: Option<&State>, now: Timestamp) -> State {
        self.open(state, now).unwrap_or_else(|| State { start: self.start(now), used: 0 })
    }

    /// The start of the window that a request at `now` opens.
    fn start(&self, now: Timestamp) -> u64 {
        let now = now.as_micros();
        match &self.kind {
            WindowKind::Span { align: Align::First, .. } => now,
            WindowKind::Span { period, align: Align::Clock } => now - now % period,
            WindowKind::Calendar(calendar) => calendar.window(now).0,
        }
    }
}

impl Algorithm for FixedWindow {
    type State = State;

    const NAMES: &'static [(&'static str, &'static [&'static str])] =
        &[(NAME, &["align", "count", "tz"])];
    const OTHER_WORDS: &'static [&'static str] = &["fixedwindowcounter"];
    const CODES: &'static [u8] = &[CODE_SPAN, CODE_CALENDAR];

    fn parameters(&self) -> Parameters {
        Parameters {
            count_all: self.count_all,
            begins_with_use: matches!(self.kind, WindowKind::Span { align: Align::First, .. }),
            ..Parameters::new(self.limit, self.period())
        }
    }

    fn calendar(&self) -> Option<&Calendar> {
        match &self.kind {
            WindowKind::Span { .. } => None,
            WindowKind::Calendar(calendar) => Some(calendar),
        }
    }

    fn has_period_of(&self, other: &Self, now: Timestamp) -> bool {
        let unit = self.calendar().map(Calendar::unit);
        (unit.is_some() && unit == other.calendar().map(Calendar::unit))
            || self.period_at(now) == other.period_at(now)
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        let words = [("first", Align::First), ("clock", Align::Clock)];
        let align = text.word_option("align", &words)?;
        let count_all = text.count_all()?;
        let is_unit = |unit: &CalendarUnit| text.is_period(unit.as_str());
        let window = match CalendarUnit::ALL.into_iter().find(is_unit) {
            Some(unit) if align == Some(Align::First) => {
                return Err(text.option_error(
                    "align",
                    format!(
                        "invalid align `first`: expected `align=clock` with the calendar period \
                         `{unit}`, or a duration such as `1d`"
                    ),
                ));
            }
            Some(unit) => {
                let zone = text.option("tz").unwrap_or(Calendar::UTC).to_owned();
                Window::Calendar { unit, zone }
            }
            None if text.option("tz").is_some() => {
                let message = format!(
                    "invalid period {} with `tz`: expected `day`, `week`, `month` or `year`",
                    text.quoted_period()
                );
                return Err(text.option_error("tz", message));
            }
            None => Window::Span { period: text.period()?, align: align.unwrap_or(Align::First) },
        };
        Ok(Some(Self::new(text.limit()?, &window, count_all)?))
    }

    fn flags(code: u8) -> u8 {
        if code == CODE_SPAN { COUNT_ALL | ALIGN_CLOCK } else { COUNT_ALL }
    }

    fn encode(&self, state: Option<&State>, out: &mut Writer) {
        let count_all = if self.count_all { COUNT_ALL } else { 0 };
        let State { start, used } = state.copied().unwrap_or_default();
        match &self.kind {
            WindowKind::Span { period, align } => {
                let clock = if *align == Align::Clock { ALIGN_CLOCK } else { 0 };
                out.head(CODE_SPAN, count_all | clock, self.limit);
                out.uint(*period, 6);
                out.uint(start, 7);
            }
            WindowKind::Calendar(calendar) => {
                let zone = calendar.zone();
                out.head(CODE_CALENDAR, count_all, self.limit);
                out.uint(calendar.unit() as u64, 1);
                out.uint(zone.len() as u64, 1);
                out.bytes(zone.as_bytes());
                out.uint(start, 7);
                // For readers without calendars.
                out.uint(if used > 0 { self.end(start) } else { 0 }, 7);
            }
        }
        out.uint(used, 7);
    }

    fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, Option<State>), StateError> {
        let window = if head.code == CODE_SPAN {
            let align = if head.has(ALIGN_CLOCK) { Align::Clock } else { Align::First };
            Window::Span { period: input.period()?, align }
        } else {
            let unit = CalendarUnit::ALL.get(usize::from(input.byte()?)).copied();
            let unit = unit.ok_or(StateError::Damaged("a calendar unit is unknown"))?;
            let length = usize::from(input.byte()?);
            let zone = std::str::from_utf8(input.take(length)?)
                .map_err(|_| StateError::Damaged("the name of a time zone is not UTF-8"))?;
            Window::Calendar { unit, zone: zone.to_owned() }
        };
        let limit = Self::new(head.limit, &window, head.has(COUNT_ALL))?;
        let start = input.time()?;
        if head.code == CODE_CALENDAR {
            let _end = input.time()?;
        }
        let used = input.count()?;
        Ok((limit, (used > 0).then_some(State { start, used })))
    }

    #[cfg(debug_assertions)]
    fn check(&self, state: &State) {
        assert!((1..=MAX_COUNT).contains(&state.used), "a window of {} units", state.used);
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

    fn latest(state: &State) -> u64 {
        state.start
    }

    fn period_from(&self, start: u64) -> u64 {
        self.end(start) - start
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        self.open(state, now).map_or(0, |window| window.used)
    }

    fn window_at(&self, state: Option<&State>, now: Timestamp) -> Option<(u64, u64)> {
        let State { start, .. } = self.current(state, now);
        Some((start, self.end(start)))
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let State { start, used } = self.current(state.as_ref(), now);
        *state = Some(State { start, used: (used + u64::from(cost)).min(MAX_COUNT) });
    }

    /// Asks for the end of each window once: that of a calendar takes long.
    fn charge_all(&self, state: &mut Option<State>, expiries: &[Expiry]) {
        let mut expiries = expiries.iter().peekable();
        while let Some(first) = expiries.next() {
            let State { start, used } = self.current(state.as_ref(), first.time());
            let (end, mut used) = (self.end(start), used + u64::from(first.units));
            debug_assert!(first.at < end, "a hold is charged to a window that is over");
            reached!(CalendarWindowEndsWithOpenHolds if self.calendar().is_some()
                && expiries.peek().is_some_and(|next| next.at >= end));
            while let Some(next) = expiries.next_if(|it| it.at < end) {
                used += u64::from(next.units);
            }
            *state = Some(State { start, used: used.min(MAX_COUNT) });
        }
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        *state = self.open(state.as_ref(), now).and_then(|State { start, used }| {
            let used = used.saturating_sub(u64::from(cost));
            (used > 0).then_some(State { start, used })
        });
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        (used > 0).then(|| State { start: self.start(now), used })
    }

    fn migrate(&self, old: &Self, state: State, now: Timestamp) -> Option<State> {
        let open = old.open(Some(&state), now)?;
        let stays = now.as_micros() < self.end(open.start);
        reached!(MigratedWindowStaysOpen if stays);
        reached!(MigratedWindowIsOver if !stays);
        stays.then_some(open)
    }

    fn max_admitted(&self, micros: u64) -> u128 {
        // An interval that begins at the end of a window touches one more than fit into it. Where windows begin with their
        // first request, that of the first one came before the interval.
        let windows = micros.div_ceil(self.shortest()) + 1;
        let first = u128::from(self.parameters().begins_with_use);
        u128::from(self.limit) * u128::from(windows) - first
    }

    fn quota(&self) -> (u32, Option<Duration>) {
        let unit = self.calendar().map(Calendar::unit);
        let varies = matches!(unit, Some(CalendarUnit::Month | CalendarUnit::Year));
        (self.limit, (!varies).then(|| self.period()))
    }

    /// A longer time than the shortest window may be that of an open hold, which begins the next window.
    fn more_after(&self, decision: &Decision) -> Option<Duration> {
        let is_known = decision.reset_after <= Duration::from_micros(self.shortest());
        is_known.then_some(decision.reset_after)
    }

    /// A denial waits for the end of the window.
    fn max_reset_after(&self, decision: &Decision) -> Duration {
        match decision.retry() {
            Some(Retry::After(wait)) => wait,
            Some(Retry::Never) | None => self.period(),
        }
    }

    fn describe(&self) -> LimitSummary {
        let (window, end) = match &self.kind {
            WindowKind::Span { period, align } => {
                let period = human::span(*period);
                let from = match align {
                    Align::First => "that its first request opens",
                    Align::Clock => "on the clock",
                };
                (format!("window of {period} {from}"), format!("{period} at most"))
            }
            WindowKind::Calendar(calendar) => {
                let (unit, zone) = (calendar.unit(), calendar.zone());
                (format!("{unit} of the calendar in {zone}"), format!("the next {unit}"))
            }
        };
        let counted = if self.count_all {
            "; denied requests count too: they use up the window, but do not extend it"
        } else {
            ""
        };
        let units = human::units(self.limit.into());
        LimitSummary {
            sustained: format!("{units} each {window}"),
            at_once: units,
            denied: format!("waits until the window ends, {end}{counted}"),
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        match self.window() {
            Window::Span { period, align } => share.window(self.limit, period, |units, period| {
                Self::new(units, &Window::Span { period, align }, self.count_all)
            }),
            window @ Window::Calendar { .. } => {
                Self::new(share.units(self.limit), &window, self.count_all)
            }
        }
    }
}

impl fmt::Display for FixedWindow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            WindowKind::Span { period, align } => {
                write_rate(formatter, NAME, self.limit, *period)?;
                write_option(formatter, *align == Align::Clock, "align=clock")?;
                write_option(formatter, self.count_all, "count=all")
            }
            WindowKind::Calendar(calendar) => {
                let zone = calendar.zone();
                write!(formatter, "{NAME}:{}/{}", self.limit, calendar.unit())?;
                write_option(formatter, self.count_all, "count=all")?;
                write_option(formatter, zone != Calendar::UTC, format_args!("tz={zone}"))
            }
        }
    }
}
