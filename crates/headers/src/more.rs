//! After how long more would pass than now.

use std::time::Duration;

use sluicegate_core::{Decision, Gcra, IntervalBucket, Limit, Policy};

use crate::seconds;

/// Whole seconds, rounded up, after which there is more than remains now; `None` where all remains, and
/// where the decision does not tell.
pub(crate) fn more_after(policy: &Policy, decision: &Decision) -> Option<u64> {
    // Of several limits, `reset_after` is that of the slowest, and not of the one that binds.
    let [limit] = policy.limits() else { return None };
    if decision.reset_after.is_zero() {
        return None;
    }
    match limit {
        Limit::Gcra(gcra) => Some(of_gcra(gcra, decision)),
        Limit::IntervalBucket(bucket) => Some(seconds(of_bucket(bucket, decision))),
        Limit::FixedWindow(_) => Some(seconds(decision.reset_after)),
        // The oldest events go first, but the decision tells of the newest.
        Limit::SlidingLog(_) | Limit::SlidingCounter(_) => None,
    }
}

/// One more unit is there when the backlog is down to `burst - remaining - 1` of them.
fn of_gcra(gcra: &Gcra, decision: &Decision) -> u64 {
    let kept = u128::from(gcra.burst().saturating_sub(decision.remaining).saturating_sub(1));
    let limit = u128::from(gcra.limit());
    let backlog = decision.reset_after.as_micros() * limit;
    let left = backlog.saturating_sub(kept * gcra.period().as_micros());
    u64::try_from(left.div_ceil(limit * 1_000_000)).unwrap_or(u64::MAX)
}

/// Steps are whole intervals before the last, at which the bucket is full.
fn of_bucket(bucket: &IntervalBucket, decision: &Decision) -> Duration {
    let (reset, step) = (decision.reset_after.as_micros(), bucket.period().as_micros());
    let left = if decision.remaining > 0 {
        (reset - 1) % step + 1
    } else {
        // There may be a debt; with no less than one token in it, the bucket has so many steps to go.
        reset.saturating_sub(step * u128::from((bucket.burst() - 1) / bucket.limit()))
    };
    Duration::from_micros(u64::try_from(left).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Timestamp, apply};

    use super::*;

    /// What is told of a policy after takes at times.
    fn after(policy: &str, takes: &[(u64, Operation)]) -> Option<u64> {
        let policy: Policy = policy.parse().unwrap();
        let (mut entry, mut told) = (None, None);
        for &(millis, operation) in takes {
            let now = Timestamp::from_micros(1_000_000_000 + millis * 1000).unwrap();
            told = Some(apply(&policy, &mut entry, now, operation).unwrap());
        }
        more_after(&policy, &told.unwrap())
    }

    #[test]
    fn it_is_the_time_of_one_more_unit() {
        use Operation::{Charge, Peek, Take};
        let bucket = "token-bucket:10/10s:burst=25:refill=interval";
        for (policy, takes, expected) in [
            ("gcra:6/60s", vec![(0, Take(1))], Some(10)),
            ("gcra:6/60s", vec![(0, Take(6))], Some(10)),
            ("gcra:6/60s", vec![(0, Take(6)), (3500, Peek(0))], Some(7)),
            ("gcra:6/60s", vec![(0, Charge(8))], Some(30)),
            ("gcra:6/60s", vec![(0, Peek(0))], None),
            ("gcra:1000/1s", vec![(0, Take(1))], Some(1)),
            (bucket, vec![(0, Take(1))], Some(10)),
            (bucket, vec![(0, Take(24)), (2500, Take(1))], Some(8)),
            (bucket, vec![(0, Take(20)), (2500, Take(1))], Some(8)),
            (bucket, vec![(0, Charge(45))], Some(30)),
            ("fixed-window:6/60s", vec![(0, Take(1)), (9001, Take(1))], Some(51)),
            ("sliding-log:6/60s", vec![(0, Take(1))], None),
            ("gcra:6/60s,gcra:9/1h", vec![(0, Take(1))], None),
        ] {
            assert_eq!(after(policy, &takes), expected, "{policy} {takes:?}");
        }
    }

    #[test]
    fn who_waits_so_long_has_more_and_not_much_earlier() {
        for policy in [
            "gcra:7/60s",
            "gcra:7/60s:burst=20",
            "fixed-window:7/60s",
            "token-bucket:7/60s:burst=20:refill=interval",
        ] {
            let policy: Policy = policy.parse().unwrap();
            for taken in 1..=7 {
                let (mut entry, start) = (None, Timestamp::from_micros(1_000_000_000).unwrap());
                let first = apply(&policy, &mut entry, start, Operation::Take(taken)).unwrap();
                let wait = more_after(&policy, &first).unwrap();
                let mut at = |seconds| {
                    let now = start + Duration::from_secs(seconds);
                    apply(&policy, &mut entry, now, Operation::Peek(0)).unwrap().remaining
                };
                assert!(at(wait) > first.remaining, "{policy} {taken}");
                assert_eq!(at(wait - 1), first.remaining, "{policy} {taken}");
            }
        }
    }
}
