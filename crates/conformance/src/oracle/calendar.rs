//! When calendar windows open: the local midnights that begin a day, week, month or year.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use super::exact::{Q, q};

/// Upper bound on the times in calendar computations, in microseconds (about the year 6500).
pub(super) const MAX_TIME_US: u64 = 1 << 57;

/// A calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OracleUnit {
    Day,
    Week,
    Month,
    Year,
}

/// A calendar period in a time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calendar {
    pub(super) word: OracleUnit,
    pub(super) zone: TimeZone,
}

impl Calendar {
    /// The latest boundary that is not after `time`, and not before the epoch.
    pub(super) fn start(&self, time: &Q) -> Q {
        let before = self.boundaries(time).into_iter().filter(|boundary| boundary <= time);
        before.max().expect("there are boundaries of two periods before").max(q(0))
    }

    /// The first boundary after `time`.
    pub(super) fn next(&self, time: &Q) -> Q {
        let after = self.boundaries(time).into_iter().filter(|boundary| boundary > time);
        after.min().expect("there are boundaries of two periods after")
    }

    /// Boundaries from two periods before `time` to two after. One is not enough, because a clock that is set back at
    /// midnight, or a day that a zone skips, moves the local date away from the boundary.
    fn boundaries(&self, time: &Q) -> Vec<Q> {
        let micros = time.floor().to_i64().expect("a time within the calendar");
        let time = Timestamp::from_microsecond(micros).expect("a time within the calendar");
        let first = self.word.first_day(time.to_zoned(self.zone.clone()).date());
        let first_days = (-2..=2)
            .map(|k| first.checked_add(self.word.periods(k)).expect("a date within the calendar"));
        first_days.map(|day| midnight(day, &self.zone)).collect()
    }
}

impl OracleUnit {
    /// The first day of the period that contains `date`.
    fn first_day(self, date: Date) -> Date {
        match self {
            Self::Day => date,
            Self::Week => {
                let days = date.weekday().to_monday_zero_offset();
                date.checked_sub(Span::new().days(days)).expect("a date within the calendar")
            }
            Self::Month => date.first_of_month(),
            Self::Year => date.first_of_year(),
        }
    }

    fn periods(self, k: i64) -> Span {
        match self {
            Self::Day => Span::new().days(k),
            Self::Week => Span::new().weeks(k),
            Self::Month => Span::new().months(k),
            Self::Year => Span::new().years(k),
        }
    }
}

/// Start of `day`: its midnight, the first of two midnights, or the first time after a skipped midnight.
fn midnight(day: Date, zone: &TimeZone) -> Q {
    let zoned = day.to_zoned(zone.clone()).expect("a date within the calendar");
    q(zoned.timestamp().as_microsecond())
}
