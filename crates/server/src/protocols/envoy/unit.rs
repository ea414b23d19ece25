//! Limits in Envoy's units: per second, minute, hour, day, week, month or year.

use std::time::Duration;

use sluicegate_core::{CalendarUnit, Limit};
use sluicegate_proto::rls::rate_limit_response::rate_limit::Unit;
use sluicegate_rules::Unit as RuleUnit;

/// Units of Envoy, and the same units of rules, the shortest first.
const UNITS: [(Unit, RuleUnit); 7] = [
    (Unit::Second, RuleUnit::Second),
    (Unit::Minute, RuleUnit::Minute),
    (Unit::Hour, RuleUnit::Hour),
    (Unit::Day, RuleUnit::Day),
    (Unit::Week, RuleUnit::Week),
    (Unit::Month, RuleUnit::Month),
    (Unit::Year, RuleUnit::Year),
];

/// The unit of Envoy for one of rules.
pub(super) fn from_rules(unit: RuleUnit) -> Unit {
    UNITS.iter().find(|(_, it)| *it == unit).map_or(Unit::Unknown, |(unit, _)| *unit)
}

/// The unit of rules for one of Envoy; `None` for an unknown one.
pub(super) fn to_rules(unit: Unit) -> Option<RuleUnit> {
    UNITS.iter().find(|(it, _)| *it == unit).map(|(_, unit)| *unit)
}

/// The length of a unit. A month is 30 days and a year 365.
fn period(unit: RuleUnit) -> Duration {
    Duration::from_secs(unit.seconds().into())
}

/// A limit in Envoy's units: exact if its period is one of them, otherwise the same rate per
/// the shortest longer unit, rounded down, but at least 1.
pub(super) fn per_unit(limit: &Limit) -> (u32, Unit) {
    let (units, period) = limit.rate();
    if let Some((unit, _)) = limit.calendar() {
        let unit = match unit {
            CalendarUnit::Day => Unit::Day,
            CalendarUnit::Week => Unit::Week,
            CalendarUnit::Month => Unit::Month,
            CalendarUnit::Year => Unit::Year,
        };
        return (units, unit);
    }
    let longer = UNITS.into_iter().find(|(_, unit)| self::period(*unit) >= period);
    let (unit, rule_unit) = longer.unwrap_or((Unit::Year, RuleUnit::Year));
    let scaled = u128::from(units) * self::period(rule_unit).as_micros() / period.as_micros();
    (u32::try_from(scaled).unwrap_or(u32::MAX).max(1), unit)
}

#[cfg(test)]
mod tests;
