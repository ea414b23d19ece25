//! Calendar windows: from one local midnight to the next, whatever their length.
//!
//! The rules of the IANA time zone database are compiled in (`jiff`'s bundled copy), so every
//! machine that runs the same version gives the same answer.

use std::{
    fmt,
    hash::{Hash, Hasher},
};

use jiff::{Span, Zoned, civil::Weekday, tz::TimeZone};

/// A period of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CalendarUnit {
    /// From midnight to midnight.
    Day,
    /// From Monday's midnight to the next.
    Week,
    /// From the first of a month to the first of the next.
    Month,
    /// From the first of January to the next.
    Year,
}

impl CalendarUnit {
    /// All units, shortest first.
    pub(crate) const ALL: [Self; 4] = [Self::Day, Self::Week, Self::Month, Self::Year];

    /// The word for it in a policy.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// Days of the shortest and of the longest one.
    pub(crate) const fn days(self) -> (u64, u64) {
        match self {
            Self::Day => (1, 1),
            Self::Week => (7, 7),
            Self::Month => (28, 31),
            Self::Year => (365, 366),
        }
    }

    fn span(self) -> Span {
        match self {
            Self::Day => Span::new().days(1),
            Self::Week => Span::new().weeks(1),
            Self::Month => Span::new().months(1),
            Self::Year => Span::new().years(1),
        }
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

/// A calendar unit in a time zone.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Calendar {
    unit: CalendarUnit,
    zone: TimeZone,
    name: Box<str>,
}

/// Zones of one name are equal: all are of the bundled database.
impl Hash for Calendar {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.unit, &self.name).hash(state);
    }
}

impl Calendar {
    /// The name of the zone that is meant where none is given.
    pub(crate) const UTC: &'static str = "UTC";

    /// `None` for a zone that is not in the bundled database.
    pub(crate) fn new(unit: CalendarUnit, zone: &str) -> Option<Self> {
        let zone = jiff::tz::TimeZoneDatabase::bundled().get(zone).ok()?;
        let name = zone.iana_name()?.into();
        Some(Self { unit, zone, name })
    }

    pub(crate) const fn unit(&self) -> CalendarUnit {
        self.unit
    }

    pub(crate) fn zone(&self) -> &str {
        &self.name
    }

    /// The window `(start, end)` that contains `micros`, in microseconds since the epoch.
    /// A start before the epoch is returned as the epoch: no state is older.
    pub(crate) fn window(&self, micros: u64) -> (u64, u64) {
        let time = jiff::Timestamp::from_microsecond(i64::try_from(micros).unwrap_or(i64::MAX))
            .unwrap_or(jiff::Timestamp::MAX);
        let date = time.to_zoned(self.zone.clone()).date();
        let first = match self.unit {
            CalendarUnit::Day => date,
            CalendarUnit::Week => {
                let back = date.weekday().since(Weekday::Monday);
                date.saturating_sub(Span::new().days(i64::from(back)))
            }
            CalendarUnit::Month => date.first_of_month(),
            CalendarUnit::Year => date.first_of_year(),
        };
        let midnight = |date: jiff::civil::Date| {
            date.to_zoned(self.zone.clone()).as_ref().map_or(micros, |zoned: &Zoned| {
                u64::try_from(zoned.timestamp().as_microsecond()).unwrap_or(0)
            })
        };
        let next = first.saturating_add(self.unit.span());
        let (start, end) = (midnight(first), midnight(next));
        if end > micros {
            return (start, end);
        }
        // Where clocks went back over midnight the local date is the old one once more.
        (end, midnight(next.saturating_add(self.unit.span())))
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Calendar({} in {})", self.unit, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(text: &str) -> u64 {
        u64::try_from(text.parse::<jiff::Timestamp>().unwrap().as_microsecond()).unwrap()
    }

    #[test]
    fn windows_run_from_one_local_midnight_to_the_next() {
        for (unit, zone, now, start, end) in [
            ("day", "UTC", "2026-03-29T12:00Z", "2026-03-29T00:00Z", "2026-03-30T00:00Z"),
            // Clocks went forward: a day of 23 hours.
            ("day", "Europe/Berlin", "2026-03-29T12:00Z", "2026-03-28T23:00Z", "2026-03-29T22:00Z"),
            ("week", "UTC", "2026-11-22T23:59Z", "2026-11-16T00:00Z", "2026-11-23T00:00Z"),
            ("week", "UTC", "2026-11-23T00:00Z", "2026-11-23T00:00Z", "2026-11-30T00:00Z"),
            (
                "month",
                "Asia/Shanghai",
                "2026-01-31T15:59Z",
                "2025-12-31T16:00Z",
                "2026-01-31T16:00Z",
            ),
            (
                "month",
                "Asia/Shanghai",
                "2026-01-31T16:00Z",
                "2026-01-31T16:00Z",
                "2026-02-28T16:00Z",
            ),
            ("year", "UTC", "2024-02-29T00:00Z", "2024-01-01T00:00Z", "2025-01-01T00:00Z"),
            // There was no midnight: clocks went from 00:00 to 01:00.
            (
                "day",
                "America/Asuncion",
                "2024-10-06T12:00Z",
                "2024-10-06T04:00Z",
                "2024-10-07T03:00Z",
            ),
        ] {
            let unit = CalendarUnit::ALL.into_iter().find(|known| known.as_str() == unit).unwrap();
            let calendar = Calendar::new(unit, zone).unwrap();
            assert_eq!(calendar.window(micros(now)), (micros(start), micros(end)), "{unit} {zone}");
        }
    }

    #[test]
    fn zones_are_found_by_any_case_and_named_as_the_database_does() {
        assert_eq!(
            Calendar::new(CalendarUnit::Day, "asia/shanghai").unwrap().zone(),
            "Asia/Shanghai"
        );
        assert!(Calendar::new(CalendarUnit::Day, "Mars/Base").is_none());
    }
}
