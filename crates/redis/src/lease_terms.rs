//! How long the limits of a policy count units that a lease took.

use std::time::Duration;

use sluicegate_core::{Forgets, Policy, Timestamp, as_micros};

/// How the limits of a policy forget units that were taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// The fastest rate of its limits of the gcra family: units, and the microseconds in which they drain.
    drain: Option<(u32, u64)>,
    /// How long after the take a refund may arrive at most, if it has a limit of another kind, windows aside.
    pub(crate) refund_within: Option<Duration>,
    /// The shortest of its fixed windows.
    pub(crate) window: Option<Duration>,
}

impl LeaseTerms {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut terms = Self { drain: None, refund_within: None, window: None };
        let shorter = |one: Option<Duration>, other| Some(one.map_or(other, |it| it.min(other)));
        for limit in policy.limits() {
            let (units, period) = limit.rate();
            match limit.forgets() {
                Forgets::AtRate => {
                    let rate = (units, as_micros(period));
                    if terms.drain.is_none_or(|other| is_faster(rate, other)) {
                        terms.drain = Some(rate);
                    }
                }
                Forgets::InSteps => {
                    terms.refund_within = shorter(terms.refund_within, Duration::MAX);
                }
                Forgets::AfterPeriod => {
                    terms.refund_within = shorter(terms.refund_within, period);
                }
                Forgets::ByWindow => terms.window = shorter(terms.window, period),
                Forgets::WhenSettled => {}
            }
        }
        terms
    }

    /// When the window of a chunk ends if that is not known.
    pub(crate) const fn unknown_end(&self) -> Timestamp {
        if self.window.is_some() { Timestamp::EPOCH } else { Timestamp::MAX }
    }

    /// Whether it has a limit of another kind than the gcra family.
    pub(crate) const fn counts_chunks(&self) -> bool {
        self.window.is_some() || self.refund_within.is_some()
    }

    /// Whether units that were taken under `self` are forgotten in the same way after a change to `other`: the store then
    /// carries the debt over as it is.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.drain, other.drain) else { return false };
        !self.counts_chunks()
            && !other.counts_chunks()
            && !is_faster(one, two)
            && !is_faster(two, one)
    }

    /// The time in which `units` drain, rounded down to microseconds.
    pub(crate) fn drain_time(&self, units: u64) -> Duration {
        let micros = self.drain.map_or(0, |(rate, period)| {
            u128::from(units) * u128::from(period) / u128::from(rate.max(1))
        });
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The units that drain in a time, rounded down; without a limit of the gcra family, all.
    pub(crate) fn drained_units(&self, micros: u64) -> u64 {
        self.drain.map_or(u64::MAX, |(rate, period)| {
            let units = u128::from(micros) * u128::from(rate) / u128::from(period.max(1));
            u64::try_from(units).unwrap_or(u64::MAX)
        })
    }
}

/// Whether the first rate, units per microseconds, is greater.
fn is_faster(one: (u32, u64), other: (u32, u64)) -> bool {
    u128::from(one.0) * u128::from(other.1) > u128::from(other.0) * u128::from(one.1)
}
