//! Upper bounds on the units that a limit admits in an interval.

use sluicegate_core::{Operation, Policy, Timestamp, apply};

#[test]
fn max_admitted_follows_the_formulas() {
    let most = |text: &str, micros| {
        let policy: Policy = text.parse().unwrap();
        policy.limits()[0].max_admitted(micros)
    };
    const SECOND: u64 = 1_000_000;
    const MINUTE: u64 = 60 * SECOND;
    const DAY: u64 = 1440 * MINUTE;
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

/// Takes one unit whenever one is allowed, in steps that find the worst moments.
#[test]
fn max_admitted_holds_for_a_greedy_client() {
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
                let most = policy.limits()[0].max_admitted(length);
                for (index, from) in passed.iter().enumerate() {
                    let within = passed[index..].iter().take_while(|at| *at - from < length);
                    let within = u128::try_from(within.count()).unwrap();
                    assert!(within <= most, "{text}: {within} in {length}us, not {most}");
                }
            }
        }
    }
}
