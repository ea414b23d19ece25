//! A rate is an exact fraction: over a year nothing is gained or lost.

use std::time::Duration;

use sluicegate_core::{Operation, Policy, Timestamp, apply};

/// A greedy client for a simulated year: at every moment, the units admitted equal the burst and the units refilled
/// since the start.
fn drift_of_a_year(text: &str, limit: u64, period: u64, burst: u64, step: u64) {
    let policy: Policy = text.parse().unwrap();
    let start = 1_700_000_040_000_000;
    let mut entry = None;
    let (mut passed, mut elapsed, mut jitter) = (0, 0, 1_u64);
    while elapsed < 365 * 86_400_000_000 {
        let now = Timestamp::from_micros(start + elapsed).unwrap();
        let free = apply(&policy, &mut entry, now, Operation::Peek(0)).unwrap().remaining;
        let decision = apply(&policy, &mut entry, now, Operation::Take(free)).unwrap();
        assert!(decision.allowed());
        passed += u64::from(free);
        let due = burst
            + u64::try_from(u128::from(elapsed) * u128::from(limit) / u128::from(period)).unwrap();
        assert_eq!(passed, due, "{text} after {:?}", Duration::from_micros(elapsed));
        jitter = jitter.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        elapsed += 1 + jitter % step;
    }
}

#[test]
fn gcra_7_per_minute_does_not_drift() {
    drift_of_a_year("gcra:7/60s:burst=100", 7, 60_000_000, 100, 800_000_000);
}

#[test]
fn token_bucket_3_per_second_does_not_drift() {
    drift_of_a_year("token-bucket:3/1s:burst=1000", 3, 1_000_000, 1000, 300_000_000);
}

#[test]
fn leaky_bucket_1000003_per_day_does_not_drift() {
    drift_of_a_year(
        "leaky-bucket:1000003/1d:capacity=5000",
        1_000_003,
        86_400_000_000,
        5000,
        400_000_000,
    );
}
