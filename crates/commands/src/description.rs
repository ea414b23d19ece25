//! The state of a key, as `SG.INFO` describes it.

use std::time::Duration;

use sluicegate_core::{Entry, Timestamp};

/// The state of a key. Spans are whole microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeyDescription {
    /// The policy of its last write, in canonical form.
    pub policy: String,
    /// Time until the key is fully recovered.
    pub reset_after_us: i64,
    /// Time until the entry may be removed: longer than `reset_after_us` for a log with `keep`.
    pub lifetime_us: i64,
    /// Size of its encoding.
    pub bytes: i64,
    /// The limits of the policy, in order.
    pub limits: Vec<LimitDescription>,
}

/// The usage of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitDescription {
    /// The limit, in canonical form.
    pub limit: String,
    /// Units that an idle key admits at once.
    pub capacity: i64,
    /// Units in use, rounded up.
    pub used: i64,
    /// Requests of cost 1 that would pass now.
    pub remaining: i64,
    /// Time until nothing is in use.
    pub reset_after_us: i64,
}

impl KeyDescription {
    /// The state of `entry` at `now`; `None` if it has recovered, which equals no entry.
    #[must_use]
    pub fn of(entry: &Entry, now: Timestamp) -> Option<Self> {
        let lifetime = entry.lifetime(now);
        if lifetime.is_zero() {
            return None;
        }
        let usage = entry.usage(now).map(|(limit, usage)| LimitDescription {
            limit: limit.to_string(),
            capacity: limit.capacity().into(),
            used: i64::try_from(usage.used).unwrap_or(i64::MAX),
            remaining: usage.remaining.into(),
            reset_after_us: micros(usage.reset_after),
        });
        let limits: Vec<_> = usage.collect();
        Some(Self {
            policy: entry.policy().to_string(),
            reset_after_us: limits.iter().map(|limit| limit.reset_after_us).max().unwrap_or(0),
            lifetime_us: micros(lifetime),
            bytes: i64::try_from(entry.encoded_len()).unwrap_or(i64::MAX),
            limits,
        })
    }
}

fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use sluicegate_core::{Operation, Policy, apply};

    use super::*;

    #[test]
    fn description_of_two_limits_has_all_numbers() {
        let policy: Policy = "gcra:30/60s:burst=16,sliding-log:9/1m:keep=2m".parse().unwrap();
        let mut entry = None;
        assert!(
            apply(&policy, &mut entry, Timestamp::EPOCH, Operation::Take(3)).unwrap().allowed()
        );
        let entry = entry.unwrap();
        let description = KeyDescription::of(&entry, Timestamp::EPOCH).unwrap();
        assert_eq!(description.policy, policy.to_string());
        assert_eq!(description.reset_after_us, 60_000_000);
        assert_eq!(description.lifetime_us, 120_000_000);
        assert_eq!(description.bytes, i64::try_from(entry.encode().len()).unwrap());
        let numbers = description.limits.iter().map(|limit| {
            (&*limit.limit, limit.capacity, limit.used, limit.remaining, limit.reset_after_us)
        });
        assert_eq!(
            numbers.collect::<Vec<_>>(),
            [
                ("gcra:30/1m:burst=16", 16, 3, 13, 6_000_000),
                ("sliding-log:9/1m:keep=2m", 9, 3, 6, 60_000_000),
            ]
        );
        assert_eq!(KeyDescription::of(&entry, Timestamp::from_micros(120_000_000).unwrap()), None);
    }
}
