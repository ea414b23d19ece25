//! `sliding-counter`: the previous window, weighted by its part that lies within the last period.

use num_traits::Zero;

use super::exact::{Q, at_least_zero, ceiling, q};
use super::machine::{Machine, State};

/// At most `n`, by estimate, in any `p` microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) n: Q,
    pub(super) p: Q,
    pub(super) count_all: bool,
}

impl Parameters {
    /// Opening of the window that `now` lies in.
    fn open(&self, now: &Q) -> Q {
        (now / &self.p).floor() * &self.p
    }

    /// Time since then.
    fn e(&self, now: &Q) -> Q {
        now - self.open(now)
    }

    /// `W`: the estimate, times the period.
    fn w(&self, state: &State, now: &Q) -> Q {
        let (_, prev, cur) = parts(state);
        prev * (&self.p - self.e(now)) + cur * &self.p
    }

    /// Migrates the state from other parameters of this algorithm.
    pub(super) fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        if old.p == self.p {
            return state.clone();
        }
        let cur = old.used(state, now).min(ceiling());
        State::Counter { start: self.open(now), prev: Q::zero(), cur }
    }
}

fn parts(state: &State) -> (&Q, &Q, &Q) {
    let State::Counter { start, prev, cur } = state else {
        unreachable!("a state is kept under its own machine")
    };
    (start, prev, cur)
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.n
    }

    fn unused(&self, now: &Q) -> State {
        State::Counter { start: self.open(now), prev: Q::zero(), cur: Q::zero() }
    }

    fn at(&self, state: &State, now: &Q) -> State {
        let (start, prev, cur) = parts(state);
        let open = self.open(now);
        // A window later than that of `now` counts as that of `now`.
        if start >= &open {
            return State::Counter { start: open, prev: prev.clone(), cur: cur.clone() };
        }
        if start + &self.p == open {
            return State::Counter { start: open, prev: cur.clone(), cur: Q::zero() };
        }
        self.unused(now)
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        let (_, prev, cur) = parts(state);
        prev.is_zero() && cur.is_zero()
    }

    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool {
        self.w(state, now) + units * &self.p <= &self.n * &self.p
    }

    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        let (_, prev, cur) = parts(state);
        let (p, f) = (&self.p, &self.n - units);
        let left = p - self.e(now);
        if cur <= &f {
            return left - ((f - cur) * p / prev).floor();
        }
        left + at_least_zero(p - (f * p / cur).floor())
    }

    fn remaining(&self, state: &State, now: &Q) -> Q {
        at_least_zero(((&self.n * &self.p - self.w(state, now)) / &self.p).floor())
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        let (_, prev, cur) = parts(state);
        if cur > &Q::zero() {
            q(2) * &self.p - self.e(now)
        } else if prev > &Q::zero() {
            &self.p - self.e(now)
        } else {
            Q::zero()
        }
    }

    fn charge(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (start, prev, cur) = parts(state);
        State::Counter {
            start: start.clone(),
            prev: prev.clone(),
            cur: (cur + cost).min(ceiling()),
        }
    }

    fn refund(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (start, prev, cur) = parts(state);
        let cur = at_least_zero(cur - cost);
        State::Counter { start: start.clone(), prev: prev.clone(), cur }
    }

    fn records_denials(&self) -> bool {
        self.count_all
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        (self.w(state, now) / &self.p).ceil()
    }
}
