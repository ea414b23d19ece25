//! Where calendar windows open: the local midnights that begin a day, week, month or year.

use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};
use num_traits::ToPrimitive;

use super::exact::{Q, q};

/// The latest time, in microseconds, that the calendar is asked about (about the year 6500).
pub(super) const LATEST_US: u64 = 1 << 57;

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
    /// The latest boundary that is not after `time`; a state holds none before the epoch.
    pub(super) fn start(&self, time: &Q) -> Q {
        let before = self.boundaries(time).into_iter().filter(|boundary| boundary <= time);
        before.max().expect("boundaries of two periods before are at hand").max(q(0))
    }

    /// The first boundary after `time`.
    pub(super) fn next(&self, time: &Q) -> Q {
        let after = self.boundaries(time).into_iter().filter(|boundary| boundary > time);
        after.min().expect("boundaries of two periods after are at hand")
    }

    /// Boundaries from two periods before `time` to two after. Two, because a clock put back at
    /// midnight, or a day that a zone left out, moves the local date away from the boundary.
    fn boundaries(&self, time: &Q) -> Vec<Q> {
        let micros = time.floor().to_integer().to_i64().expect("a time that the calendar reaches");
        let time = Timestamp::from_microsecond(micros).expect("a time that the calendar reaches");
        let first = self.word.first_day(time.to_zoned(self.zone.clone()).date());
        let first_days = (-2..=2).map(|k| {
            first.checked_add(self.word.periods(k)).expect("a date that the calendar reaches")
        });
        first_days.map(|day| midnight(day, &self.zone)).collect()
    }
}

impl OracleUnit {
    /// The day that opens the period which `date` lies in.
    fn first_day(self, date: Date) -> Date {
        match self {
            Self::Day => date,
            Self::Week => {
                let days = date.weekday().to_monday_zero_offset();
                date.checked_sub(Span::new().days(days)).expect("a date that the calendar reaches")
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

/// When `day` begins: its midnight, the first of two, or what follows where clocks skip midnight.
fn midnight(day: Date, zone: &TimeZone) -> Q {
    let zoned = day.to_zoned(zone.clone()).expect("a date that the calendar reaches");
    q(zoned.timestamp().as_microsecond())
}
