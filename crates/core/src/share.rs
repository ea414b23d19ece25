//! A fraction of a policy: the part that one of several processes may admit by itself.

use std::{fmt, time::Duration};

use crate::parameters::LimitError;

/// A share of a policy, above 0 and at most 1, as a fraction of whole numbers. Displayed as `1/4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    part: u32,
    whole: u32,
}

impl fmt::Display for Share {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.part, self.whole)
    }
}

impl Share {
    /// The whole policy.
    pub const ALL: Self = Self { part: 1, whole: 1 };

    /// `part` of `whole`.
    ///
    /// # Errors
    /// [`LimitError`] unless `1 <= part <= whole`.
    pub fn of(part: u32, whole: u32) -> Result<Self, LimitError> {
        if (1..=whole).contains(&part) {
            return Ok(Self { part, whole });
        }
        let value = format!("{part}/{whole}");
        Err(LimitError::Domain { name: "share", value, domain: "a fraction above 0 and at most 1" })
    }

    /// Whether it is the whole policy.
    #[must_use]
    pub const fn is_all(self) -> bool {
        self.part == self.whole
    }

    /// That part of `units`, rounded down, and at least one.
    pub(crate) fn units(self, units: u32) -> u32 {
        let part = u64::from(units) * u64::from(self.part) / u64::from(self.whole);
        u32::try_from(part).expect("a share is at most 1").max(1)
    }

    /// That part of `units` in use, rounded up.
    #[must_use]
    pub fn used(self, units: u32) -> u32 {
        let part = (u64::from(units) * u64::from(self.part)).div_ceil(u64::from(self.whole));
        u32::try_from(part).expect("a share is at most 1")
    }

    /// A period longer by as much as the rate is to be less, rounded up.
    fn period(self, period: Duration) -> Duration {
        let micros = (period.as_micros() * u128::from(self.whole)).div_ceil(u128::from(self.part));
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// That part of a window's limit, and a longer window where it would be less than one unit.
    fn units_and_period(self, limit: u32, period: Duration) -> (u32, Duration) {
        if u64::from(limit) * u64::from(self.part) < u64::from(self.whole) {
            let micros = period.as_micros() * u128::from(self.whole);
            let micros = micros.div_ceil(u128::from(self.part) * u128::from(limit.max(1)));
            return (1, Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)));
        }
        (self.units(limit), period)
    }

    /// A bucket of that part: made with a longer period, or where that is too long, with fewer units.
    pub(crate) fn bucket<T>(
        self,
        limit: u32,
        period: Duration,
        make: impl Fn(u32, Duration) -> Result<T, LimitError>,
    ) -> Result<T, LimitError> {
        make(limit, self.period(period)).or_else(|_| make(self.units(limit), period))
    }

    /// That part of a window, or where its period would be too long, one unit in the period that it has.
    pub(crate) fn window<T>(
        self,
        limit: u32,
        period: Duration,
        make: impl Fn(u32, Duration) -> Result<T, LimitError>,
    ) -> Result<T, LimitError> {
        let (units, longer) = self.units_and_period(limit, period);
        make(units, longer).or_else(|_| make(self.units(limit), period))
    }
}

#[cfg(test)]
mod tests;
