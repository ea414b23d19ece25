//! Units sent in the period that ends now, for each limit of a policy.
//!
//! A period here is any half-open interval of that length, wherever it begins: the usual meaning of "100 a minute",
//! which windows on a clock do not guarantee.

use std::collections::VecDeque;

use sluicegate_core::{MAX_LIMITS, Policy, as_micros};

use crate::bounds::Bound;

/// Units in one period, for each limit of a policy, in their order.
pub type Levels = [Level; MAX_LIMITS];

/// Units in the period of one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Units.
    pub units: u64,
    /// Whether they exceed the bound because more were sent, and not because the policy changed.
    pub exceeds: bool,
}

/// An interval no longer than a period, in which more was sent than the limit promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Excess {
    /// Index of the limit in the policy.
    pub limit: usize,
    /// When the first of the units was sent, in microseconds since the Unix epoch.
    pub from: u64,
    /// When the last of them was sent.
    pub to: u64,
    /// The units, the first and the last among them.
    pub units: u64,
    /// The bound of the limit.
    pub bound: Bound,
}

impl Excess {
    /// Whether it is further above its bound, in proportion.
    fn is_worse_than(&self, other: &Self) -> bool {
        let (ours, theirs) = (u128::from(self.units), u128::from(other.units));
        ours * u128::from(other.bound.units()) > theirs * u128::from(self.bound.units())
    }
}

/// The units that one key has sent recently.
#[derive(Debug, Default)]
pub(super) struct Sliding {
    /// Times in microseconds with the units that are to be sent then, in order.
    waiting: VecDeque<(u64, u64)>,
    /// The same of the units sent, as far back as the longest period reaches.
    sent: VecDeque<(u64, u64)>,
    windows: Vec<Window>,
    worst: Option<Excess>,
}

#[derive(Debug)]
struct Window {
    bound: Bound,
    /// Units that may be sent in a period that ends before a moment: the bound before a change of
    /// the policy applies until nothing sent under it is left in the period.
    before: (u64, u64),
    /// The period in microseconds.
    period: u64,
    /// The number of entries at the end of `sent` that are in it, and their units.
    held: usize,
    units: u64,
    exceeds: bool,
}

impl Window {
    /// The most units that a period that ends at `now` is meant to have.
    fn bound_at(&self, now: u64) -> u64 {
        let (units, until) = self.before;
        let before = if now < until { units } else { 0 };
        self.bound.units().max(before)
    }
}

impl Sliding {
    /// Uses the limits of `policy` from `now` on; units that were sent stay counted.
    pub(super) fn set_policy(&mut self, now: u64, policy: &Policy) {
        let units = self.sent.iter().map(|(_, units)| units).sum();
        let window = |(index, bound): (usize, Bound)| {
            let period = as_micros(bound.period);
            let old = self.windows.get(index).map_or(0, |window| window.bound_at(now));
            let before = (old, now.saturating_add(period));
            Window { bound, before, period, held: self.sent.len(), units, exceeds: false }
        };
        self.windows = Bound::of(policy).into_iter().enumerate().map(window).collect();
    }

    /// Adds `units` that are sent at `time`, or at the last time if that is later.
    pub(super) fn send(&mut self, time: u64, units: u64) {
        let last = self.waiting.back().or(self.sent.back()).map_or(0, |(last, _)| *last);
        self.waiting.push_back((time.max(last), units));
    }

    /// Counts the next units that are sent, if that is at `now` or before; when they are.
    pub(super) fn send_next(&mut self, now: u64) -> Option<u64> {
        let (time, units) = self.waiting.pop_front_if(|(time, _)| *time <= now)?;
        match self.sent.back_mut() {
            Some((last, sum)) if *last == time => {
                *sum += units;
                self.windows.iter_mut().for_each(|window| window.units += units);
            }
            _ => {
                self.sent.push_back((time, units));
                for window in &mut self.windows {
                    window.held += 1;
                    window.units += units;
                }
            }
        }
        self.slide_to(time);
        for (limit, window) in self.windows.iter_mut().enumerate() {
            let Window { bound, units, held, .. } = *window;
            if bound.borrows || bound.counts_holds || units <= window.bound_at(time) {
                continue;
            }
            window.exceeds = true;
            let from = self.sent[self.sent.len() - held].0;
            let excess = Excess { limit, from, to: time, units, bound };
            if self.worst.is_none_or(|worst| excess.is_worse_than(&worst)) {
                self.worst = Some(excess);
            }
        }
        Some(time)
    }

    /// Drops units that are no longer in a period that ends at `now`.
    pub(super) fn slide_to(&mut self, now: u64) {
        for window in &mut self.windows {
            while window.held > 0 {
                let (first, units) = self.sent[self.sent.len() - window.held];
                if now.saturating_sub(first) < window.period {
                    break;
                }
                window.held -= 1;
                window.units -= units;
            }
            window.exceeds &= window.units > window.bound_at(now);
        }
        let needed = self.windows.iter().map(|window| window.held).max().unwrap_or(0);
        self.sent.drain(..self.sent.len() - needed);
    }

    /// Units in the period that ends at the time reached.
    pub(super) fn levels(&self) -> Levels {
        let mut levels = Levels::default();
        for (level, window) in levels.iter_mut().zip(&self.windows) {
            *level = Level { units: window.units, exceeds: window.exceeds };
        }
        levels
    }

    /// The interval that is furthest above its bound.
    pub(super) const fn worst(&self) -> Option<&Excess> {
        self.worst.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn send(sliding: &mut Sliding, time: u64, units: u64) -> Level {
        sliding.send(time, units);
        assert_eq!(sliding.send_next(time), Some(time));
        sliding.levels()[0]
    }

    #[test]
    fn sliding_units_a_period_apart_are_not_in_the_same_period() {
        let mut sliding = Sliding::default();
        sliding.set_policy(0, &"sliding-log:2/1s".parse().unwrap());
        assert_eq!(send(&mut sliding, 0, 2), Level { units: 2, exceeds: false });
        assert_eq!(send(&mut sliding, 1_000_000, 2), Level { units: 2, exceeds: false });
        assert_eq!(send(&mut sliding, 1_999_999, 1), Level { units: 3, exceeds: true });
        let worst = sliding.worst().unwrap();
        assert_eq!((worst.from, worst.to, worst.units), (1_000_000, 1_999_999, 3));
        sliding.slide_to(2_000_000);
        assert_eq!(sliding.levels()[0], Level { units: 1, exceeds: false });
        assert_eq!(send(&mut sliding, 9_000_000, 1), Level { units: 1, exceeds: false });
    }

    #[test]
    fn sliding_lowered_limit_is_not_exceeded_by_what_was_sent_before() {
        let mut sliding = Sliding::default();
        sliding.set_policy(0, &"sliding-log:5/1s".parse().unwrap());
        send(&mut sliding, 0, 4);
        sliding.set_policy(10, &"sliding-log:2/1s".parse().unwrap());
        assert_eq!(send(&mut sliding, 20, 1), Level { units: 5, exceeds: false });
        assert_eq!(sliding.worst(), None);
        // The new limit bounds the units sent since then.
        assert_eq!(send(&mut sliding, 1_000_010, 2), Level { units: 3, exceeds: true });
    }

    #[test]
    fn sliding_units_that_wait_count_when_they_are_sent() {
        let mut sliding = Sliding::default();
        sliding.set_policy(0, &"leaky-queue:1/1s:capacity=3".parse().unwrap());
        (0..3).for_each(|second| sliding.send(second * 1_000_000, 1));
        assert_eq!(sliding.send_next(500_000), Some(0));
        assert_eq!(sliding.send_next(500_000), None);
        assert_eq!(sliding.levels()[0].units, 1);
        assert_eq!(sliding.send_next(9_000_000), Some(1_000_000));
        assert_eq!(sliding.levels()[0], Level { units: 1, exceeds: false });
    }

    proptest! {
        #[test]
        fn sliding_agrees_with_adding_up_every_interval(
            mut events in proptest::collection::vec((0..5000_u64, 1..4_u64), 1..60),
            change in 0..60_usize,
        ) {
            events.sort_unstable();
            let policies = ["fixed-window:7/1ms,sliding-log:9/2ms", "sliding-log:5/1500us"];
            let mut sliding = Sliding::default();
            sliding.set_policy(0, &policies[0].parse().unwrap());
            for (index, (time, units)) in events.iter().enumerate() {
                let policy: Policy = policies[usize::from(index >= change)].parse().unwrap();
                if index == change {
                    sliding.set_policy(*time, &policy);
                }
                sliding.send(*time, *units);
                sliding.send_next(*time);
                for (bound, level) in Bound::of(&policy).iter().zip(sliding.levels()) {
                    let period = u64::try_from(bound.period.as_micros()).unwrap();
                    let within = events[..=index].iter().filter(|it| time - it.0 < period);
                    let sum: u64 = within.map(|it| it.1).sum();
                    prop_assert_eq!(level.units, sum);
                    prop_assert!(!level.exceeds || sum > bound.units());
                    if index < change {
                        prop_assert!(level.exceeds || sum <= bound.units());
                    }
                }
            }
        }
    }
}
