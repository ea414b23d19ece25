//! Bounds of a limit: the most units in any one period, or held at one time.

use std::time::Duration;

use sluicegate_core::Policy;

/// Upper bound on the units that a limit admits in any one period, half-open, or, for `concurrency`, that are held at one
/// time.
///
/// A bucket may send its burst and the units refilled in the period, the last of which comes as it ends. The other algorithms are meant
/// to keep to their limit; a fixed window does not, across the boundary of two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Units per period, or at one time.
    pub limit: u32,
    /// Units that an idle bucket sends at once; 0 without a burst.
    pub burst: u32,
    /// The period.
    pub period: Duration,
    /// Whether the last request may borrow more than is left, so that the bound can be exceeded.
    pub borrows: bool,
    /// Whether the limit bounds the units that are held at one time, and not those of a period.
    pub counts_holds: bool,
}

impl Bound {
    /// One for each limit of `policy`, in their order.
    #[must_use]
    pub fn of(policy: &Policy) -> Vec<Self> {
        let bounds = policy.limits().iter().map(|limit| {
            let (units, period) = limit.rate();
            Self {
                limit: units,
                burst: limit.bucket_size(),
                period,
                borrows: limit.borrow(),
                counts_holds: limit.counts_holds(),
            }
        });
        bounds.collect()
    }

    /// The bound in units: `N`, or `B + N - 1`.
    #[must_use]
    pub fn units(&self) -> u64 {
        u64::from(self.limit) + u64::from(self.burst.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests;
