//! How long the limits of a policy count units that a lease took.

use std::time::Duration;

use sluicegate_core::{Forgets, Policy, Timestamp, as_micros};

/// How the limits of a policy forget units that were taken at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeaseTerms {
    /// The fastest rate of its limits of the gcra family: units, and the microseconds in which they drain.
    drain: Option<(u32, u64)>,
    /// Whether unspent units are forfeited, because a refund may take units off that others took later: a limit is of
    /// another kind, windows aside.
    pub(crate) forfeits: bool,
    /// The shortest of its fixed windows.
    pub(crate) window: Option<Duration>,
}

impl LeaseTerms {
    pub(crate) fn new(policy: &Policy) -> Self {
        let mut terms = Self { drain: None, forfeits: false, window: None };
        for limit in policy.limits() {
            let (units, period) = limit.rate();
            match limit.forgets() {
                Forgets::AtRate => {
                    let rate = (units, as_micros(period));
                    if terms.drain.is_none_or(|other| is_faster(rate, other)) {
                        terms.drain = Some(rate);
                    }
                }
                Forgets::InSteps | Forgets::AfterPeriod => terms.forfeits = true,
                Forgets::ByWindow => {
                    terms.window = Some(terms.window.map_or(period, |it| it.min(period)));
                }
                Forgets::WhenSettled => {}
            }
        }
        terms
    }

    /// When the window of a chunk ends if that is not known.
    pub(crate) const fn unknown_end(&self) -> Timestamp {
        if self.window.is_some() { Timestamp::EPOCH } else { Timestamp::MAX }
    }

    /// Whether units that were taken under `self` are forgotten in the same way after a change to `other`: the store then
    /// carries the debt over as it is.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.drain, other.drain) else { return false };
        let is_plain = |it: &Self| !it.forfeits && it.window.is_none();
        is_plain(self) && is_plain(other) && !is_faster(one, two) && !is_faster(two, one)
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
