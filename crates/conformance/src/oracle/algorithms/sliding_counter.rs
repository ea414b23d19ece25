//! `sliding-counter`: the previous window, weighted by its part that lies within the last period.

use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::exact::{Q, at_least_zero, ceiling, q};
use crate::oracle::text::{LimitText, duration};

/// At most `n`, by estimate, in any `p` microseconds.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    n: Q,
    p: Q,
    count_all: bool,
}

/// Start of the current window, units in the one before and in it.
#[derive(Clone, Debug)]
pub(crate) struct State {
    start: Q,
    prev: Q,
    cur: Q,
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
    fn w(&self, State { prev, cur, .. }: &State, now: &Q) -> Q {
        prev * (&self.p - self.e(now)) + cur * &self.p
    }
}

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["sliding-counter"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        let (n, p, count_all) = (text.n.clone(), duration(text.period)?, text.count_all()?);
        Ok(Some(Self { n, p, count_all }))
    }

    fn properties(&self) -> Properties<'_> {
        Properties { records_denials: self.count_all, ..Properties::of(&self.n, Some(&self.p)) }
    }

    fn unused(&self, now: &Q) -> State {
        State { start: self.open(now), prev: Q::zero(), cur: Q::zero() }
    }

    fn latest(&self, State { start, prev, cur }: &State) -> Option<Q> {
        (!prev.is_zero() || !cur.is_zero()).then(|| start.clone())
    }

    fn at(&self, State { start, prev, cur }: &State, now: &Q) -> State {
        let open = self.open(now);
        // The counts of a later window become those of the window of `now`.
        if start >= &open {
            return State { start: open, prev: prev.clone(), cur: cur.clone() };
        }
        if start + &self.p == open {
            return State { start: open, prev: cur.clone(), cur: Q::zero() };
        }
        self.unused(now)
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        state.prev.is_zero() && state.cur.is_zero()
    }

    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool {
        self.w(state, now) + units * &self.p <= &self.n * &self.p
    }

    fn retry_after(&self, State { prev, cur, .. }: &State, now: &Q, units: &Q) -> Q {
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

    fn reset_after(&self, State { prev, cur, .. }: &State, now: &Q) -> Q {
        if cur > &Q::zero() {
            q(2) * &self.p - self.e(now)
        } else if prev > &Q::zero() {
            &self.p - self.e(now)
        } else {
            Q::zero()
        }
    }

    fn charge(&self, state: &State, _now: &Q, cost: &Q) -> State {
        State { cur: (&state.cur + cost).min(ceiling()), ..state.clone() }
    }

    fn refund(&self, state: &State, _now: &Q, cost: &Q) -> State {
        State { cur: at_least_zero(&state.cur - cost), ..state.clone() }
    }

    fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        if old.p == self.p {
            return state.clone();
        }
        let cur = old.used(state, now).min(ceiling());
        State { start: self.open(now), prev: Q::zero(), cur }
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        (self.w(state, now) / &self.p).ceil()
    }
}
