//! What a limit promises, in numbers: the most that passes in an interval of any length.
//!
//! Intervals are half-open, so two units exactly a period apart are not in the same interval of a
//! period. Charges are not counted: they are taken whether or not they fit.

use std::time::Duration;

use sluicegate_core::{CalendarUnit, FixedWindow, Gcra, GcraName, Limit, Window};

const HOUR: u64 = 3_600_000_000;
const DAY: u64 = 24 * HOUR;

/// The most units that `limit` lets pass in any interval of `micros`, whatever comes. With
/// `borrow`, the last request may take more than is there: what it borrows comes on top.
pub(crate) fn most_in(limit: &Limit, micros: u64) -> u128 {
    match limit {
        Limit::Gcra(limit) => u128::from(limit.burst()) + refilled(limit, micros),
        Limit::IntervalBucket(limit) => {
            let steps = u128::from(micros / as_micros(limit.period())) + 1;
            u128::from(limit.burst()) + u128::from(limit.limit()) * steps
        }
        Limit::FixedWindow(limit) => {
            // An interval that begins at the end of a window touches one more than it has room for.
            let windows = micros.div_ceil(shortest_window(limit)) + 1;
            u128::from(limit.limit()) * u128::from(windows)
        }
        Limit::SlidingLog(limit) => {
            let periods = micros.div_ceil(as_micros(limit.period()));
            u128::from(limit.limit()) * u128::from(periods)
        }
        Limit::SlidingCounter(limit) => {
            // At the worst a full window ends as the interval begins; from then on its weight
            // falls, and makes room, as fast as the interval grows.
            let (limit, period) = (u128::from(limit.limit()), as_micros(limit.period()));
            limit + limit * u128::from(micros) / u128::from(period)
        }
    }
}

/// The most units that depart from a queue in any interval of `micros`; `None` if it is none.
pub(crate) fn most_departed_in(limit: &Limit, micros: u64) -> Option<u128> {
    match limit {
        Limit::Gcra(limit) if limit.name() == GcraName::LeakyQueue => {
            Some(1 + refilled(limit, micros))
        }
        _ => None,
    }
}

/// Whole units that come back in `micros`.
fn refilled(limit: &Gcra, micros: u64) -> u128 {
    u128::from(micros) * u128::from(limit.limit()) / u128::from(as_micros(limit.period()))
}

/// The length of the shortest window. Where clocks are set forward, a day has fewer than 24 hours:
/// 22 at the least, at one station in Antarctica.
fn shortest_window(limit: &FixedWindow) -> u64 {
    let (unit, zone) = match limit.window() {
        Window::Span { period, .. } => return as_micros(period),
        Window::Calendar { unit, zone } => (unit, zone),
    };
    let days = match unit {
        CalendarUnit::Day => 1,
        CalendarUnit::Week => 7,
        CalendarUnit::Month => 28,
        CalendarUnit::Year => 365,
    };
    days * DAY - if zone == "UTC" { 0 } else { 2 * HOUR }
}

pub(crate) fn as_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Policy, Timestamp, apply};

    use super::*;

    #[test]
    fn the_formulas() {
        let most = |text: &str, micros| {
            let policy: Policy = text.parse().unwrap();
            most_in(&policy.limits()[0], micros)
        };
        const SECOND: u64 = 1_000_000;
        const MINUTE: u64 = 60 * SECOND;
        let table: [(_, u128, u128, u128); 10] = [
            ("gcra:30/60s:burst=16", 16, 46, 16 + 30 * 1440),
            ("token-bucket:1000/3s", 1333, 21000, 1000 + 28_800_000),
            ("token-bucket:10/1m:burst=20:refill=interval", 30, 40, 20 + 10 * 1441),
            ("fixed-window:100/60s", 200, 200, 100 * 1441),
            ("fixed-window:100/day", 200, 200, 200),
            ("fixed-window:100/day:tz=Europe/Paris", 200, 200, 300),
            ("fixed-window:100/month", 200, 200, 200),
            ("sliding-log:100/60s", 100, 100, 100 * 1440),
            ("sliding-counter:100/60s", 101, 200, 100 * 1441),
            (
                "gcra:4294967295/1ms",
                4_294_967_295 * 1001,
                4_294_967_295 * 60_001,
                4_294_967_295 * 86_400_001,
            ),
        ];
        for (text, second, minute, day) in table {
            assert_eq!(most(text, SECOND), second, "{text}");
            assert_eq!(most(text, MINUTE), minute, "{text}");
            assert_eq!(most(text, DAY), day, "{text}");
        }
    }

    /// Takes one unit whenever one passes, in steps that find the bad moments, and looks whether
    /// more than promised ever passed in an interval.
    #[test]
    fn no_greedy_client_gets_more() {
        for text in [
            "gcra:3/10ms:burst=4",
            "leaky-queue:3/10ms",
            "token-bucket:3/10ms:burst=7:refill=interval",
            "fixed-window:3/10ms",
            "fixed-window:3/10ms:align=clock",
            "sliding-log:3/10ms",
            "sliding-counter:5/10ms",
        ] {
            let policy: Policy = text.parse().unwrap();
            for idle in 0..24 {
                let (mut entry, mut passed) = (None, Vec::new());
                for tick in idle..160_u64 {
                    // Busy, then idle, then busy again.
                    if (40..50 + idle).contains(&tick) {
                        continue;
                    }
                    let now = Timestamp::from_micros(1000 * tick + 999 * (tick % 2)).unwrap();
                    while apply(&policy, &mut entry, now, Operation::Take(1)).unwrap().allowed() {
                        passed.push(now.as_micros());
                    }
                }
                for length in [1, 1000, 5000, 9999, 10_000, 10_001, 25_000, 40_000] {
                    let most = most_in(&policy.limits()[0], length);
                    for (index, from) in passed.iter().enumerate() {
                        let within = passed[index..].iter().take_while(|at| *at - from < length);
                        let within = u128::try_from(within.count()).unwrap();
                        assert!(within <= most, "{text}: {within} in {length}us, not {most}");
                    }
                }
            }
        }
    }
}
