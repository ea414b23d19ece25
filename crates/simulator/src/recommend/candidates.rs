//! The candidate policies: a fixed ladder of limits per minute and per hour.

use std::time::Duration;

use sluicegate_core::{Gcra, GcraName, Limit, Policy, as_micros};

const MINUTE: Duration = Duration::from_secs(60);
pub(crate) const HOUR: Duration = Duration::from_secs(3600);
/// Units per period, in steps of 1.5 to 2.
const LIMITS: [u32; 21] = [
    5, 10, 20, 30, 60, 100, 200, 300, 600, 1000, 2000, 3000, 6000, 10_000, 20_000, 30_000, 60_000,
    100_000, 200_000, 300_000, 600_000,
];

/// The least burst of a candidate.
pub(crate) const MIN_BURST: u32 = LIMITS[0];
/// The longest emission interval of a candidate, in microseconds.
pub(crate) const MAX_INTERVAL: u64 = HOUR.as_secs() * 1_000_000 / 5;

/// A candidate, of one limit of the algorithm `gcra`.
#[derive(Clone, Debug)]
pub(crate) struct Candidate {
    /// The policy.
    pub(crate) policy: Policy,
    /// The same as its only limit.
    pub(crate) gcra: Gcra,
    /// The candidates that it is one of.
    pub(crate) family: Family,
}

/// Candidates that differ by their size alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// `gcra:N/1m`.
    Minute,
    /// `gcra:N/1m:burst=5N`: pages of many requests, and a low rate.
    LargeBurst,
    /// `gcra:N/1h`.
    Hour,
}

impl Family {
    const ALL: [Self; 3] = [Self::Minute, Self::LargeBurst, Self::Hour];

    /// The policies, with `N` for their size.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Minute => "gcra:N/1m",
            Self::LargeBurst => "gcra:N/1m:burst=5N",
            Self::Hour => "gcra:N/1h",
        }
    }

    /// The traffic that shows what a candidate does: twice as long as an unused key takes to spend its quota.
    pub(crate) const fn needs(self) -> Duration {
        match self {
            Self::Minute | Self::LargeBurst => Duration::ZERO,
            Self::Hour => HOUR.saturating_mul(2),
        }
    }
}

impl Candidate {
    /// All candidates, those of a family one after the other in ascending order.
    pub(crate) fn all() -> Vec<Self> {
        let of = |family| LIMITS.map(|limit| Self::new(limit, family));
        Family::ALL.into_iter().flat_map(of).collect()
    }

    fn new(limit: u32, family: Family) -> Self {
        let (period, burst) = match family {
            Family::Minute => (MINUTE, limit),
            Family::LargeBurst => (MINUTE, 5 * limit),
            Family::Hour => (HOUR, limit),
        };
        let gcra = Gcra::new(GcraName::Gcra, limit, period, Some(burst), false)
            .expect("the ladder has valid limits");
        let policy = Policy::try_from(vec![Limit::Gcra(gcra)]).expect("one limit is a policy");
        Self { policy, gcra, family }
    }

    /// The emission interval in microseconds, which is also that in ticks.
    pub(crate) fn interval(&self) -> u64 {
        as_micros(self.gcra.period()) / u64::from(self.gcra.limit())
    }

    /// Upper bound on the units that pass in any interval of that length, which is not zero.
    pub(crate) fn admits(&self, length: Duration) -> u64 {
        u64::from(self.gcra.burst()) + as_micros(length).div_ceil(self.interval()) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::{super::profile::LONG, *};

    #[test]
    fn candidates_have_intervals_of_whole_microseconds() {
        let all = Candidate::all();
        assert!(all.iter().all(|it| it.gcra.scale() == 1));
        assert_eq!(all.iter().map(Candidate::interval).max(), Some(MAX_INTERVAL));
        assert_eq!(all.iter().map(|it| it.gcra.burst()).min(), Some(MIN_BURST));
    }

    #[test]
    fn candidates_of_a_family_are_in_ascending_order() {
        let all = Candidate::all();
        assert_eq!(all.len(), LIMITS.len() * Family::ALL.len());
        for family in all.chunk_by(|one, next| one.family == next.family) {
            assert_eq!(family.len(), LIMITS.len());
            assert!(family.is_sorted_by_key(|it| it.admits(LONG)));
        }
        for (index, policy, ten_minutes, hour) in [
            (4, "gcra:60/1m", 659, 3659),
            (25, "gcra:60/1m:burst=300", 899, 3899),
            (46, "gcra:60/1h", 69, 119),
            (47, "gcra:100/1h", 116, 199),
        ] {
            let candidate = &all[index];
            assert_eq!(candidate.policy.to_string(), policy);
            assert_eq!([LONG, HOUR].map(|it| candidate.admits(it)), [ten_minutes, hour]);
        }
    }
}
