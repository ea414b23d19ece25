//! Where more than the limit passed inside one real period.
//!
//! A period here is any half-open interval of that length, wherever it begins: what a reader of
//! "100 a minute" thinks of, and what windows on a clock do not keep.

use std::{collections::VecDeque, time::Duration};

use sluicegate_core::Policy;

use crate::report::limits_and_periods;

/// An interval in which more passed than the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// When the first of them passed, in microseconds since the Unix epoch.
    pub from: u64,
    /// When the last of them passed.
    pub to: u64,
    /// The units that passed, the first and the last among them.
    pub units: u64,
    /// The limit: units a period.
    pub limit: u32,
    /// The period.
    pub period: Duration,
}

impl Over {
    /// Whether it is further above its limit, in proportion.
    pub(super) fn is_worse_than(&self, other: &Self) -> bool {
        let (ours, theirs) = (u128::from(self.units), u128::from(other.units));
        ours * u128::from(other.limit) > theirs * u128::from(self.limit)
    }
}

/// What passed lately, of one key.
#[derive(Debug, Default)]
pub(super) struct Overs {
    /// Times in microseconds with the units that passed then, in order.
    passed: VecDeque<(u64, u64)>,
    windows: Vec<Window>,
}

#[derive(Debug)]
struct Window {
    limit: u32,
    /// In microseconds.
    span: u64,
    /// How many of `passed`, counted from the end, are in it, and their units.
    held: usize,
    units: u64,
}

impl Overs {
    /// The limits are those of `policy` from now on; what passed stays passed.
    pub(super) fn rule(&mut self, policy: &Policy) {
        let micros = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        let windows = limits_and_periods(policy).map(|(limit, period)| {
            let units = self.passed.iter().map(|(_, units)| units).sum();
            Window { limit, span: micros(period), held: self.passed.len(), units }
        });
        self.windows = windows.collect();
    }

    /// Counts `units` that pass at `time`, or at the last time if that is later; the worst interval
    /// that ends here and has more than its limit.
    pub(super) fn pass(&mut self, time: u64, units: u64) -> Option<Over> {
        let time = time.max(self.passed.back().map_or(0, |(last, _)| *last));
        match self.passed.back_mut() {
            Some((last, sum)) if *last == time => {
                *sum += units;
                self.windows.iter_mut().for_each(|window| window.units += units);
            }
            _ => {
                self.passed.push_back((time, units));
                for window in &mut self.windows {
                    window.held += 1;
                    window.units += units;
                }
            }
        }
        let mut worst: Option<Over> = None;
        for window in &mut self.windows {
            let from = loop {
                let (first, sum) = self.passed[self.passed.len() - window.held];
                if time - first < window.span {
                    break first;
                }
                window.held -= 1;
                window.units -= sum;
            };
            let Window { limit, span, units, .. } = *window;
            let over = Over { from, to: time, units, limit, period: Duration::from_micros(span) };
            let is_over = units > u64::from(limit);
            if is_over && worst.as_ref().is_none_or(|worst| over.is_worse_than(worst)) {
                worst = Some(over);
            }
        }
        let needed = self.windows.iter().map(|window| window.held).max().unwrap_or(0);
        self.passed.drain(..self.passed.len() - needed);
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn units_a_period_apart_are_not_in_the_same() {
        let mut overs = Overs::default();
        overs.rule(&"sliding-log:2/1s".parse().unwrap());
        assert_eq!(overs.pass(0, 2), None);
        assert_eq!(overs.pass(1_000_000, 2), None);
        let over = overs.pass(1_999_999, 1).unwrap();
        assert_eq!((over.from, over.to, over.units, over.limit), (1_000_000, 1_999_999, 3, 2));
    }

    proptest! {
        #[test]
        fn agrees_with_adding_up_every_interval(
            mut events in proptest::collection::vec((0..5000_u64, 1..4_u64), 1..60),
            change in 0..60_usize,
        ) {
            events.sort_unstable();
            let rules = ["fixed-window:7/1ms,gcra:9/2ms", "sliding-log:5/1500us"];
            let mut overs = Overs::default();
            overs.rule(&rules[0].parse().unwrap());
            for (index, (time, units)) in events.iter().enumerate() {
                let rule: Policy = rules[usize::from(index >= change)].parse().unwrap();
                if index == change {
                    overs.rule(&rule);
                }
                let found = overs.pass(*time, *units);
                for (limit, period) in limits_and_periods(&rule) {
                    // What a shorter rule has forgotten, a longer one cannot know.
                    let span = u64::try_from(period.as_micros()).unwrap();
                    let within = events[..=index].iter().filter(|it| time - it.0 < span);
                    let sum: u64 = within.map(|it| it.1).sum();
                    if sum > u64::from(limit) {
                        let found = found.expect("an interval is over");
                        let (ours, theirs) = (found.units * u64::from(limit), sum * u64::from(found.limit));
                        prop_assert!(ours >= theirs);
                    }
                }
            }
        }
    }
}
