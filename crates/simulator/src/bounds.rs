//! What a limit promises: the most units in any one period.

use std::time::Duration;

use sluicegate_core::{GcraName, Limit, Policy};

use crate::report::limits_and_periods;

/// Upper bound on the units that a limit lets through in any one period.
///
/// A bucket may send its burst and what is refilled in the period. The other algorithms are meant
/// to keep to their limit; a fixed window does not, across the boundary of two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Units per period.
    pub limit: u32,
    /// Units that an idle bucket sends at once, on top of the limit; 0 for what has no burst.
    pub burst: u32,
    /// The period.
    pub period: Duration,
    /// Whether the last request may borrow more than is left, so that the bound can be exceeded.
    pub borrows: bool,
}

impl Bound {
    /// One for each limit of `policy`, in their order.
    #[must_use]
    pub fn of(policy: &Policy) -> Vec<Self> {
        let limits = policy.limits().iter().zip(limits_and_periods(policy));
        let bounds = limits.map(|(limit, (units, period))| {
            let (burst, borrows) = match limit {
                // A queue sends one by one, and so does a bucket of one.
                Limit::Gcra(gcra) if gcra.name() == GcraName::LeakyQueue || gcra.burst() == 1 => {
                    (0, gcra.borrow())
                }
                Limit::Gcra(gcra) => (gcra.burst(), gcra.borrow()),
                Limit::IntervalBucket(bucket) => (bucket.burst(), bucket.borrow()),
                Limit::FixedWindow(_) | Limit::SlidingLog(_) | Limit::SlidingCounter(_) => {
                    (0, false)
                }
            };
            Self { limit: units, burst, period, borrows }
        });
        bounds.collect()
    }

    /// The bound in units: `N`, or `B + N`.
    #[must_use]
    pub fn units(&self) -> u64 {
        u64::from(self.limit) + u64::from(self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bound_is_the_limit_and_of_a_bucket_the_burst_as_well() {
        for (policy, units) in [
            ("fixed-window:100/1m", 100),
            ("sliding-log:100/1m", 100),
            ("sliding-counter:100/1m", 100),
            ("gcra:60/1m:burst=20", 80),
            ("gcra:60/1m", 120),
            ("gcra:60/1m:burst=1", 60),
            ("token-bucket:10/1s:burst=20:refill=interval", 30),
            ("leaky-bucket:5/1s:capacity=20", 25),
            ("leaky-queue:5/1s:capacity=20", 5),
        ] {
            assert_eq!(Bound::of(&policy.parse().unwrap())[0].units(), units, "{policy}");
        }
    }
}
