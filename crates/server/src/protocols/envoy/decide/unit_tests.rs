use sluicegate_core::Policy;

use super::*;

#[test]
fn per_unit_limit_has_the_same_rate() {
    for (text, expected) in [
        ("gcra:30/1m:burst=5", (30, Unit::Minute)),
        ("fixed-window:7/1h:align=clock:count=all", (7, Unit::Hour)),
        ("fixed-window:7/day:tz=Europe/Berlin", (7, Unit::Day)),
        ("fixed-window:7/month", (7, Unit::Month)),
        ("fixed-window:7/30d:align=clock", (7, Unit::Month)),
        ("fixed-window:7/365d:align=clock", (7, Unit::Year)),
        ("sliding-log:10/7d", (10, Unit::Week)),
        ("sliding-counter:10/90s", (400, Unit::Hour)),
        ("token-bucket:1/100ms", (10, Unit::Second)),
        ("token-bucket:1/7s:refill=interval", (8, Unit::Minute)),
        ("gcra:1/366d", (1, Unit::Year)),
        ("gcra:4294967295/1ms", (u32::MAX, Unit::Second)),
    ] {
        let policy: Policy = text.parse().unwrap();
        assert_eq!(per_unit(&policy.limits()[0]), expected, "{text}");
    }
}

#[test]
fn to_rules_each_unit_is_known_and_converts_back() {
    assert_eq!(to_rules(Unit::Hour).map(period), Some(Duration::from_secs(3_600)));
    for unit in RuleUnit::ALL {
        assert_eq!(to_rules(from_rules(unit)), Some(unit));
    }
    assert_eq!(to_rules(Unit::Unknown), None);
}
