//! Limits in Envoy's units: per second, minute, hour, day, week, month or year.

use std::time::Duration;

use sluicegate_core::{CalendarUnit, Limit};
use sluicegate_proto::rls::rate_limit_response::rate_limit::Unit;
use sluicegate_rules::Unit as Named;

/// Units of Envoy, the same units of rules, and their seconds, the shortest first. A month is 30 days and a year 365.
const UNITS: [(Unit, Named, u32); 7] = [
    (Unit::Second, Named::Second, 1),
    (Unit::Minute, Named::Minute, 60),
    (Unit::Hour, Named::Hour, 3_600),
    (Unit::Day, Named::Day, 86_400),
    (Unit::Week, Named::Week, 604_800),
    (Unit::Month, Named::Month, 2_592_000),
    (Unit::Year, Named::Year, 31_536_000),
];

/// The unit of Envoy for one of rules.
pub(super) fn from_rules(named: Named) -> Unit {
    UNITS.iter().find(|(_, it, _)| *it == named).map_or(Unit::Unknown, |(unit, ..)| *unit)
}

/// The unit of rules for one of Envoy; `None` for an unknown one.
pub(super) fn to_rules(unit: Unit) -> Option<Named> {
    UNITS.iter().find(|(it, ..)| *it == unit).map(|(_, named, _)| *named)
}

/// The length of a unit; `None` for an unknown one.
pub(super) fn period(unit: Unit) -> Option<Duration> {
    let (.., seconds) = UNITS.iter().find(|(known, ..)| *known == unit)?;
    Some(Duration::from_secs((*seconds).into()))
}

/// A limit in Envoy's units: exact if its period is one of them, otherwise the same rate per
/// the shortest longer unit, rounded down, but at least 1.
pub(super) fn per_unit(limit: &Limit) -> (u32, Unit) {
    let (units, period) = limit.rate();
    if let Some(unit) = limit.calendar_unit() {
        let unit = match unit {
            CalendarUnit::Day => Unit::Day,
            CalendarUnit::Week => Unit::Week,
            CalendarUnit::Month => Unit::Month,
            CalendarUnit::Year => Unit::Year,
        };
        return (units, unit);
    }
    let longer =
        UNITS.iter().find(|(.., seconds)| Duration::from_secs((*seconds).into()) >= period);
    let (unit, _, seconds) = longer.copied().unwrap_or(UNITS[UNITS.len() - 1]);
    let scaled = u128::from(units) * u128::from(seconds) * 1_000_000 / period.as_micros();
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

#[cfg(test)]
mod tests;
