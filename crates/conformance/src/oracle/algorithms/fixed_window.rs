//! `fixed-window`: windows start at their first request, or are aligned to the clock or the calendar.

use jiff::tz::TimeZone;
use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::calendar::{Calendar, OracleUnit};
use crate::oracle::exact::{Q, at_least_zero, ceiling};
use crate::oracle::text::{LimitText, duration};

/// At most `n` a window.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    n: Q,
    span: Span,
    count_all: bool,
}

/// Start of the window, and units used in it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    start: Q,
    used: Q,
}

/// Start and length of windows, in microseconds.
#[derive(Clone, Debug, PartialEq)]
enum Span {
    First(Q),
    Clock(Q),
    Calendar(Calendar),
}

impl Span {
    fn parse(text: &mut LimitText<'_>) -> Result<Self, String> {
        let word = match text.period {
            "day" => OracleUnit::Day,
            "week" => OracleUnit::Week,
            "month" => OracleUnit::Month,
            "year" => OracleUnit::Year,
            _ => {
                let p = duration(text.period)?;
                let by_clock = text.one_of("align", "first", "clock")?;
                return Ok(if by_clock { Self::Clock(p) } else { Self::First(p) });
            }
        };
        let zone = text.value("tz")?.unwrap_or("UTC");
        let zone = TimeZone::get(zone).map_err(|_| format!("unknown time zone `{zone}`"))?;
        Ok(Self::Calendar(Calendar { word, zone }))
    }

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

    /// Length of a window that a request at `now` opens.
    fn length(&self, now: &Q) -> Q {
        self.end(&self.open(now)) - self.open(now)
    }
}

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["fixed-window"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        let (n, span) = (text.n.clone(), Span::parse(text)?);
        Ok(Some(Self { n, span, count_all: text.count_all()? }))
    }

    fn properties(&self) -> Properties<'_> {
        let period = match &self.span {
            Span::First(p) | Span::Clock(p) => Some(p),
            Span::Calendar(_) => None,
        };
        Properties { records_denials: self.count_all, ..Properties::of(&self.n, period) }
    }

    fn unused(&self, now: &Q) -> State {
        State { start: self.span.open(now), used: Q::zero() }
    }

    fn latest(&self, State { start, used }: &State) -> Option<Q> {
        (!used.is_zero()).then(|| start.clone())
    }

    fn period_from(&self, start: &Q) -> Q {
        self.span.end(start) - start
    }

    fn at(&self, State { start, used }: &State, now: &Q) -> State {
        if start > now {
            return State { start: self.span.open(now), used: used.clone() };
        }
        if used.is_zero() || now >= &self.span.end(start) {
            return self.unused(now);
        }
        State { start: start.clone(), used: used.clone() }
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        state.used.is_zero()
    }

    fn passes(&self, state: &State, _now: &Q, units: &Q) -> bool {
        &state.used + units <= self.n
    }

    fn retry_after(&self, state: &State, now: &Q, _units: &Q) -> Q {
        self.span.end(&state.start) - now
    }

    fn remaining(&self, state: &State, _now: &Q) -> Q {
        at_least_zero(&self.n - &state.used)
    }

    fn reset_after(&self, State { start, used }: &State, now: &Q) -> Q {
        if used > &Q::zero() { self.span.end(start) - now } else { Q::zero() }
    }

    fn charge(&self, State { start, used }: &State, _now: &Q, cost: &Q) -> State {
        State { start: start.clone(), used: (used + cost).min(ceiling()) }
    }

    fn refund(&self, State { start, used }: &State, _now: &Q, cost: &Q) -> State {
        State { start: start.clone(), used: at_least_zero(used - cost) }
    }

    /// A calendar period is as long as its window at `now`.
    fn same_period(&self, other: &Self, now: &Q) -> bool {
        match (&self.span, &other.span) {
            (Span::Calendar(a), Span::Calendar(b)) if a.word == b.word => true,
            (a, b) => a.length(now) == b.length(now),
        }
    }

    fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        let start = &state.start;
        // A calendar window has no fixed length: its `start + P` is its final boundary.
        if now < &old.span.end(start).min(self.span.end(start)) {
            return state.clone();
        }
        self.unused(now)
    }

    fn used(&self, state: &State, _now: &Q) -> Q {
        state.used.clone()
    }
}
