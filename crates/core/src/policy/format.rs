//! The canonical text of a limit: the largest unit that divides the period, defaults left out,
//! options in alphabetical order.

use std::{
    fmt::{self, Display},
    time::Duration,
};

use super::format_period;
use crate::{
    algorithm::{
        Align, FixedWindow, Gcra, GcraName, IntervalBucket, Limit, SlidingCounter, SlidingLog,
        Window,
    },
    calendar::Calendar,
    time::as_micros,
};

impl GcraName {
    /// The word for it in a policy.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::LeakyQueue => "leaky-queue",
        }
    }
}

impl Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gcra(limit) => limit.fmt(formatter),
            Self::IntervalBucket(limit) => limit.fmt(formatter),
            Self::FixedWindow(limit) => limit.fmt(formatter),
            Self::SlidingLog(limit) => limit.fmt(formatter),
            Self::SlidingCounter(limit) => limit.fmt(formatter),
        }
    }
}

impl Display for Gcra {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.name() {
            GcraName::Gcra | GcraName::TokenBucket => "burst",
            GcraName::LeakyBucket | GcraName::LeakyQueue => "capacity",
        };
        rate(formatter, self.name().word(), self.limit(), self.period())?;
        option(formatter, self.borrow(), "borrow")?;
        option(formatter, self.burst() != self.limit(), format_args!("{word}={}", self.burst()))
    }
}

impl Display for IntervalBucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        rate(formatter, "token-bucket", self.limit(), self.period())?;
        option(formatter, self.borrow(), "borrow")?;
        option(formatter, self.burst() != self.limit(), format_args!("burst={}", self.burst()))?;
        option(formatter, true, "refill=interval")
    }
}

impl Display for FixedWindow {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.window() {
            Window::Span { period, align } => {
                rate(formatter, "fixed-window", self.limit(), period)?;
                option(formatter, align == Align::Clock, "align=clock")?;
                option(formatter, self.count_all(), "count=all")
            }
            Window::Calendar { unit, zone } => {
                write!(formatter, "fixed-window:{}/{unit}", self.limit())?;
                option(formatter, self.count_all(), "count=all")?;
                option(formatter, zone != Calendar::UTC, format_args!("tz={zone}"))
            }
        }
    }
}

impl Display for SlidingLog {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        rate(formatter, "sliding-log", self.limit(), self.period())?;
        option(formatter, self.count_all(), "count=all")?;
        if let Some(keep) = self.keep() {
            option(formatter, true, format_args!("keep={}", format_period(as_micros(keep))))?;
        }
        if let Some(units) = self.keep_max() {
            option(formatter, true, format_args!("keep-max={units}"))?;
        }
        Ok(())
    }
}

impl Display for SlidingCounter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        rate(formatter, "sliding-counter", self.limit(), self.period())?;
        option(formatter, self.count_all(), "count=all")
    }
}

fn rate(
    formatter: &mut fmt::Formatter<'_>,
    word: &str,
    limit: u32,
    period: Duration,
) -> fmt::Result {
    write!(formatter, "{word}:{limit}/{}", format_period(as_micros(period)))
}

fn option(formatter: &mut fmt::Formatter<'_>, given: bool, text: impl Display) -> fmt::Result {
    if given { write!(formatter, ":{text}") } else { Ok(()) }
}
