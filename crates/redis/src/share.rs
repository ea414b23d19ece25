//! One process's share of a policy.

use std::time::Duration;

use sluicegate_core::{
    FixedWindow, Gcra, IntervalBucket, Limit, Policy, SlidingCounter, SlidingLog, Window,
};

use crate::StoreError;

/// A share of a policy, above 0 and at most 1, as a fraction of whole numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    part: u32,
    whole: u32,
}

impl Share {
    /// The whole policy.
    pub const ALL: Self = Self { part: 1, whole: 1 };

    /// `part` of `whole`.
    ///
    /// # Errors
    /// [`StoreError::Settings`] unless `1 <= part <= whole`.
    pub fn of(part: u32, whole: u32) -> Result<Self, StoreError> {
        if (1..=whole).contains(&part) {
            return Ok(Self { part, whole });
        }
        Err(StoreError::Settings(format!("share `{part}/{whole}` is outside 0 < share <= 1")))
    }

    /// That part of so many units, rounded down, and at least one.
    fn units(self, units: u32) -> u32 {
        let part = u64::from(units) * u64::from(self.part) / u64::from(self.whole);
        u32::try_from(part).unwrap_or(u32::MAX).max(1)
    }

    /// That part of so many units in use, rounded up.
    pub(crate) fn used(self, units: u32) -> u32 {
        let part = (u64::from(units) * u64::from(self.part)).div_ceil(u64::from(self.whole));
        u32::try_from(part).unwrap_or(u32::MAX)
    }

    /// A period longer by as much as the rate is to be less, rounded up.
    fn period(self, period: Duration) -> Duration {
        let micros = (period.as_micros() * u128::from(self.whole)).div_ceil(u128::from(self.part));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// That part of a window's limit, and a longer window where it would be less than one unit.
    fn window(self, limit: u32, period: Duration) -> (u32, Duration) {
        if u64::from(limit) * u64::from(self.part) < u64::from(self.whole) {
            let micros = period.as_micros() * u128::from(self.whole);
            let micros = micros.div_ceil(u128::from(self.part) * u128::from(limit.max(1)));
            return (1, Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)));
        }
        (self.units(limit), period)
    }

    /// That part of every limit: never more, but for limits of which the part is less than one unit and
    /// whose period cannot be longer: these keep one unit.
    pub(crate) fn policy(self, policy: &Policy) -> Policy {
        let limits: Vec<_> = policy.limits().iter().map(|limit| self.limit(limit)).collect();
        Policy::try_from(limits).unwrap_or_else(|_| policy.clone())
    }

    fn limit(self, limit: &Limit) -> Limit {
        let part = match limit {
            Limit::Gcra(it) => {
                let part = |units, period| {
                    Gcra::new(it.name(), units, period, Some(self.units(it.burst())), it.borrow())
                };
                let longer = part(it.limit(), self.period(it.period()));
                longer.or_else(|_| part(self.units(it.limit()), it.period())).map(Limit::Gcra)
            }
            Limit::IntervalBucket(it) => {
                let part = |units, period| {
                    IntervalBucket::new(units, period, Some(self.units(it.burst())), it.borrow())
                };
                let longer = part(it.limit(), self.period(it.period()));
                let part = longer.or_else(|_| part(self.units(it.limit()), it.period()));
                part.map(Limit::IntervalBucket)
            }
            Limit::FixedWindow(it) => match it.window() {
                Window::Span { period, align } => self
                    .in_window(it.limit(), period, |units, period| {
                        FixedWindow::new(units, &Window::Span { period, align }, it.count_all())
                    })
                    .map(Limit::FixedWindow),
                window @ Window::Calendar { .. } => {
                    FixedWindow::new(self.units(it.limit()), &window, it.count_all())
                        .map(Limit::FixedWindow)
                }
            },
            Limit::SlidingLog(it) => self
                .in_window(it.limit(), it.period(), |units, period| {
                    SlidingLog::new(units, period, it.count_all(), None, None)
                })
                .map(Limit::SlidingLog),
            Limit::SlidingCounter(it) => self
                .in_window(it.limit(), it.period(), |units, period| {
                    SlidingCounter::new(units, period, it.count_all())
                })
                .map(Limit::SlidingCounter),
        };
        part.unwrap_or_else(|_| limit.clone())
    }

    /// That part of a window, or where its period would be too long, one unit in the period that it has.
    fn in_window<T, E>(
        self,
        limit: u32,
        period: Duration,
        make: impl Fn(u32, Duration) -> Result<T, E>,
    ) -> Result<T, E> {
        let (units, longer) = self.window(limit, period);
        make(units, longer).or_else(|_| make(self.units(limit), period))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_more() {
        for (policy, (part, whole), expected) in [
            ("gcra:1000/1s:burst=100", (1, 4), "gcra:1000/4s:burst=25"),
            ("gcra:1/1s", (1, 3), "gcra:1/3s"),
            ("leaky-queue:30/1m:capacity=7", (1, 2), "leaky-queue:30/2m:capacity=3"),
            ("fixed-window:10/1m", (1, 4), "fixed-window:2/1m"),
            ("fixed-window:2/1m", (1, 4), "fixed-window:1/2m"),
            ("fixed-window:10/day", (1, 4), "fixed-window:2/day"),
            ("gcra:1000/366d", (1, 4), "gcra:250/366d"),
            ("fixed-window:2/366d", (1, 4), "fixed-window:1/366d"),
            ("sliding-log:10/1m,gcra:5/1s", (1, 1), "sliding-log:10/1m,gcra:5/1s"),
            ("sliding-counter:3/1m", (1, 10), "sliding-counter:1/200s"),
            (
                "token-bucket:5/1s:burst=20:refill=interval",
                (2, 4),
                "token-bucket:5/2s:burst=10:refill=interval",
            ),
        ] {
            let share = Share::of(part, whole).unwrap();
            let part = share.policy(&policy.parse().unwrap());
            assert_eq!(part, expected.parse().unwrap(), "{policy} {share:?}: {part}");
        }
    }

    #[test]
    fn what_is_no_part_is_refused() {
        assert!(Share::of(0, 4).is_err() && Share::of(5, 4).is_err() && Share::of(0, 0).is_err());
        assert_eq!(Share::of(1, 4).unwrap().used(9), 3);
    }
}
