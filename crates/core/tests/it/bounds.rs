//! Bounds that a limit states: the units that it admits in an interval at most, and for ever.

use std::collections::VecDeque;

use sluicegate_core::{Operation, Policy, Timestamp, apply, as_micros};

/// The period of the policies below that are searched for their worst case, in microseconds.
const PERIOD: u64 = 1_000;

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

#[test]
fn max_admitted_follows_the_formulas() {
    let most = |text: &str, micros| policy(text).limits()[0].max_admitted(micros);
    const SECOND: u64 = 1_000_000;
    const MINUTE: u64 = 60 * SECOND;
    const DAY: u64 = 1440 * MINUTE;
    let table: [(_, u128, u128, u128); 14] = [
        ("gcra:30/60s:burst=16", 16, 45, 15 + 30 * 1440),
        ("gcra:1/1m", 1, 1, 1440),
        ("token-bucket:1000/3s", 1333, 20_999, 999 + 28_800_000),
        ("token-bucket:10/1m:burst=20:refill=interval", 29, 29, 19 + 10 * 1440),
        ("token-bucket:10/1m:burst=4:refill=interval", 7, 7, 3 + 4 * 1440),
        ("fixed-window:100/60s", 199, 199, 100 * 1441 - 1),
        ("fixed-window:1/60s", 1, 1, 1440),
        ("fixed-window:100/60s:align=clock", 200, 200, 100 * 1441),
        ("fixed-window:100/day", 200, 200, 200),
        ("fixed-window:100/day:tz=Europe/Paris", 200, 200, 300),
        ("fixed-window:100/month", 200, 200, 200),
        ("sliding-log:100/60s", 100, 100, 100 * 1440),
        ("sliding-counter:100/60s", 101, 199, 100 * 1441 - 1),
        (
            "gcra:4294967295/1ms",
            4_294_967_295 * 1001 - 1,
            4_294_967_295 * 60_001 - 1,
            4_294_967_295 * 86_400_001 - 1,
        ),
    ];
    for (text, second, minute, day) in table {
        assert_eq!(most(text, SECOND), second, "{text}");
        assert_eq!(most(text, MINUTE), minute, "{text}");
        assert_eq!(most(text, DAY), day, "{text}");
    }
}

/// The times of the units that pass for a client that takes `first` units at 0, and from `from` on takes one whenever it
/// is allowed, for `micros`; and the times at which they depart from a queue.
fn greedy(policy: &Policy, first: u32, from: u64, micros: u64) -> (Vec<u64>, Vec<u64>) {
    let (mut entry, mut passed, mut departed) = (None, Vec::new(), Vec::new());
    let at = |micros| Timestamp::from_micros(1000 * PERIOD + micros).unwrap();
    let _ = apply(policy, &mut entry, at(0), Operation::Take(first)).unwrap();
    for micros in from..from + micros {
        loop {
            let decision = apply(policy, &mut entry, at(micros), Operation::Take(1)).unwrap();
            if !decision.allowed() {
                break;
            }
            passed.push(micros);
            departed.push(micros + as_micros(decision.delay()));
        }
    }
    (passed, departed)
}

/// The most of these times, which never go down, that lie in a half-open interval of `length`.
fn most_within(times: &[u64], length: u64) -> u128 {
    let (mut window, mut most) = (VecDeque::new(), 0);
    for time in times {
        window.push_back(time);
        while window.front().is_some_and(|first| **first + length <= *time) {
            window.pop_front();
        }
        most = most.max(window.len());
    }
    u128::try_from(most).unwrap()
}

/// A client that waits for the worst moment, and then takes each unit in the microsecond in which it is free.
#[test]
fn max_admitted_is_what_the_worst_client_gets() {
    for (text, exact_up_to) in [
        ("gcra:4/1ms:burst=3", u64::MAX),
        ("gcra:4/1ms:burst=1", u64::MAX),
        ("token-bucket:4/1ms", u64::MAX),
        ("leaky-bucket:2/1ms:capacity=5", u64::MAX),
        ("leaky-queue:4/1ms:capacity=3", u64::MAX),
        ("token-bucket:3/1ms:burst=7:refill=interval", u64::MAX),
        ("token-bucket:3/1ms:refill=interval", u64::MAX),
        ("token-bucket:5/1ms:burst=2:refill=interval", u64::MAX),
        ("token-bucket:1/1ms:refill=interval", u64::MAX),
        ("fixed-window:3/1ms", u64::MAX),
        ("fixed-window:1/1ms", u64::MAX),
        ("fixed-window:3/1ms:align=clock", u64::MAX),
        ("fixed-window:1/1ms:align=clock", u64::MAX),
        ("sliding-log:3/1ms", u64::MAX),
        ("sliding-log:1/1ms", u64::MAX),
        // After a period, windows in which units were admitted weigh.
        ("sliding-counter:5/1ms", PERIOD),
        ("sliding-counter:1/1ms", PERIOD),
    ] {
        let policy = policy(text);
        let limit = &policy.limits()[0];
        let clients: Vec<_> = [0, 1]
            .into_iter()
            .flat_map(|first| [0, 500, 999, 1000, 1999, 2999].map(|from| (first, from)))
            .map(|(first, from)| greedy(&policy, first, from, 5 * PERIOD))
            .collect();
        for length in [1, 500, 1000, 2000, 2500] {
            let passed = clients.iter().map(|it| most_within(&it.0, length)).max().unwrap();
            let most = limit.max_admitted(length);
            assert!(passed <= most, "{text}: {passed} in {length}us, not {most}");
            let is_exact = length > 1 && length <= exact_up_to;
            assert!(passed == most || !is_exact, "{text}: {passed} in {length}us, not {most}");
            let departed = clients.iter().map(|it| most_within(&it.1, length)).max().unwrap();
            assert_eq!(limit.max_sent(length).unwrap_or(departed), departed, "{text}: {length}us");
        }
    }
}

/// In the long run, a client that takes each unit in the microsecond in which it is free gets what the description says.
#[test]
fn sustained_is_what_a_greedy_client_gets_for_ever() {
    for (text, sustained, units, span) in [
        ("gcra:4/1ms:burst=3", "4 units per 1ms", 4, PERIOD),
        ("gcra:3/1ms", "3 units per 1ms", 3, PERIOD),
        ("token-bucket:4/1ms", "4 units per 1ms", 4, PERIOD),
        ("leaky-bucket:2/1ms:capacity=5", "2 units per 1ms", 2, PERIOD),
        ("leaky-queue:4/1ms:capacity=3", "4 units per 1ms", 4, PERIOD),
        ("token-bucket:3/1ms:burst=7:refill=interval", "3 units per 1ms", 3, PERIOD),
        ("token-bucket:5/1ms:burst=2:refill=interval", "2 units per 1ms", 2, PERIOD),
        ("fixed-window:3/1ms", "3 units each window of 1ms", 3, PERIOD),
        ("fixed-window:3/1ms:align=clock", "3 units each window of 1ms", 3, PERIOD),
        ("sliding-log:3/1ms", "3 units per 1ms", 3, PERIOD),
        ("sliding-counter:1/1ms", "1 unit per 2ms", 1, 2 * PERIOD),
        ("sliding-counter:2/1ms", "1 unit per 1ms", 1, PERIOD),
        ("sliding-counter:3/1ms", "2 units per 1ms", 2, PERIOD),
        ("sliding-counter:10/1ms", "9 units per 1ms", 9, PERIOD),
        ("sliding-counter:2005/1ms", "2002 units per 1ms", 2002, PERIOD),
    ] {
        let policy = policy(text);
        let described = policy.limits()[0].describe().sustained;
        assert!(described.starts_with(sustained), "{text}: {described}");
        // Once it is steady, over a hundred periods.
        let (passed, _) = greedy(&policy, 0, 0, 140 * PERIOD);
        let steady = passed.iter().filter(|&&at| at >= 40 * PERIOD).count();
        let expected = usize::try_from(units * 100 * PERIOD / span).unwrap();
        assert!(steady.abs_diff(expected) <= 1, "{text}: {steady}, not {expected}");
    }
}
