//! Maximum number of units that any interval admits beyond its rate.

use sluicegate_core::{Gcra, Timestamp, as_micros};

/// Units admitted under a rate: in any interval of length T, at most `rate * T` and this excess.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter {
    /// Virtual time, time by the clock that admitted them, and units.
    admitted: Vec<(u64, Timestamp, u64)>,
    /// Milliseconds within which the times of admissions are not known.
    unknown: u64,
}

impl Meter {
    /// Adds units that were admitted at a millisecond of virtual time, at `time` by the clock that admitted them.
    pub(crate) fn admit(&mut self, at: u64, time: Timestamp, units: u64) {
        self.admitted.push((at, time, units));
    }

    /// The same, but they were admitted at any time since `sent`.
    pub(crate) fn admit_since(&mut self, sent: u64, at: u64, time: Timestamp, units: u64) {
        self.unknown += at - sent;
        self.admit(at, time, units);
    }

    /// The units that the unknown times may add to an excess, under `part / whole` of the rate of `limit`.
    pub(crate) fn unknown_units(&self, limit: &Gcra, (part, whole): (u32, u32)) -> u64 {
        let rate = u128::from(limit.limit()) * u128::from(part);
        let period = u128::from(as_micros(limit.period())) * u128::from(whole);
        let units = (u128::from(self.unknown) * 1000 * rate).div_ceil(period.max(1));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// The clock was set, from one time to another, at a millisecond of virtual time.
    pub(crate) fn step(&mut self, at: u64, from: Timestamp, to: Timestamp) {
        self.admitted.extend([(at, from, 0), (at, to, 0)]);
    }

    /// All units.
    pub(crate) fn units(&self) -> u64 {
        self.admitted.iter().map(|it| it.2).sum()
    }

    /// The greatest excess in units, rounded up, under `part / whole` of the rate of `limit`.
    pub(crate) fn excess(&self, limit: &Gcra, share: (u32, u32)) -> u64 {
        self.excesses(limit, share).map(|it| it.1).max().unwrap_or_default()
    }

    /// The excess after each admission, in units, rounded up.
    pub(crate) fn excesses(
        &self,
        limit: &Gcra,
        share: (u32, u32),
    ) -> impl Iterator<Item = (u64, u64)> {
        let unit = u128::from(as_micros(limit.period())) * u128::from(share.1);
        let units = move |excess: u128| u64::try_from(excess.div_ceil(unit)).unwrap_or(u64::MAX);
        self.exact(limit, share).map(move |(at, excess)| (at, units(excess)))
    }

    /// An interval of virtual time that has more units than `most` says for its length: its milliseconds, and its units.
    pub(crate) fn overfull(&self, most: impl Fn(u64) -> u128) -> Option<(u64, u64)> {
        let mut sorted = self.admitted.clone();
        sorted.sort_by_key(|it| it.0);
        (0..sorted.len()).find_map(|first| {
            let mut sum = 0;
            sorted[first..].iter().find_map(|&(at, _, units)| {
                sum += units;
                let millis = at - sorted[first].0;
                (u128::from(sum) > most(millis)).then_some((millis, sum))
            })
        })
    }

    /// The excess in units times microseconds of the period, so that it is exact.
    fn exact(&self, limit: &Gcra, (part, whole): (u32, u32)) -> impl Iterator<Item = (u64, u128)> {
        let unit = u128::from(as_micros(limit.period())) * u128::from(whole);
        let rate = u128::from(limit.limit()) * u128::from(part);
        let mut sorted = self.admitted.clone();
        // Not by the clock, which may have been set back.
        sorted.sort_by_key(|it| it.0);
        let (mut excess, mut last) = (0_u128, None);
        sorted.into_iter().map(move |(at, time, units)| {
            let elapsed = last.map_or(0, |last| as_micros(time.since(last)));
            excess = excess.saturating_sub(u128::from(elapsed) * rate) + u128::from(units) * unit;
            last = Some(time);
            (at, excess)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_core::Policy;

    use super::*;

    #[test]
    fn excess_is_the_most_of_any_interval() {
        let policy: Policy = "gcra:10/1s:burst=5".parse().unwrap();
        let limit = policy.as_gcra().unwrap();
        let mut meter = Meter::default();
        let at = |millis| Timestamp::EPOCH + Duration::from_millis(millis);
        for (millis, units) in [(0, 5), (100, 1), (5000, 3), (5050, 4)] {
            meter.admit(millis, at(millis), units);
        }
        assert_eq!((meter.units(), meter.excess(limit, (1, 1))), (13, 7));
        assert_eq!(meter.excess(limit, (1, 2)), 7);
    }
}
