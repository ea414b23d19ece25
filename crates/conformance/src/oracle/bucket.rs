//! `token-bucket` with `refill=interval`: tokens come in steps.

use num_traits::Zero;

use super::exact::{Q, at_least_zero, ceiling};
use super::machine::{Machine, State};

/// `a` tokens each `i` microseconds, at most `b`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) a: Q,
    pub(super) i: Q,
    pub(super) b: Q,
    pub(super) borrow: bool,
}

impl Parameters {
    /// The time to drain a full state must be at most `2^50` microseconds.
    pub(super) fn drains_in_time(&self) -> bool {
        (&self.b / &self.a).ceil() * &self.i <= ceiling()
    }

    /// The least number of tokens: a deeper debt would take longer than `2^50` us to drain.
    fn floor(&self) -> Q {
        &self.b - &self.a * (ceiling() / &self.i).floor()
    }

    /// Time from `now` until the bucket has `wanted` tokens.
    fn until(&self, wanted: &Q, state: &State, now: &Q) -> Q {
        let (tokens, last) = parts(state);
        last + ((wanted - tokens) / &self.a).ceil() * &self.i - now
    }

    /// Migrates the state from other parameters of this algorithm.
    pub(super) fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        let (tokens, last) = parts(state);
        let used = (&old.b - tokens).min(ceiling());
        let tokens = (&self.b - used).max(self.floor());
        let last = if now - last >= self.i { now } else { last };
        State::Bucket { tokens, last: last.clone() }
    }
}

fn parts(state: &State) -> (&Q, &Q) {
    let State::Bucket { tokens, last } = state else {
        unreachable!("a state is kept under its own machine")
    };
    (tokens, last)
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.b
    }

    fn unused(&self, now: &Q) -> State {
        State::Bucket { tokens: self.b.clone(), last: now.clone() }
    }

    fn at(&self, state: &State, now: &Q) -> State {
        let (tokens, last) = parts(state);
        let last = last.min(now);
        let k = ((now - last) / &self.i).floor();
        let tokens = (tokens + &k * &self.a).min(self.b.clone());
        if tokens == self.b {
            return self.unused(now);
        }
        State::Bucket { tokens, last: last + k * &self.i }
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        parts(state).0 == &self.b
    }

    fn borrows(&self) -> bool {
        self.borrow
    }

    fn passes(&self, state: &State, _now: &Q, units: &Q) -> bool {
        units <= parts(state).0
    }

    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        self.until(units, state, now)
    }

    fn remaining(&self, state: &State, _now: &Q) -> Q {
        at_least_zero(parts(state).0.clone())
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        if self.recovered(state, now) { Q::zero() } else { self.until(&self.b, state, now) }
    }

    fn charge(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (tokens, last) = parts(state);
        State::Bucket { tokens: (tokens - cost).max(self.floor()), last: last.clone() }
    }

    fn refund(&self, state: &State, _now: &Q, cost: &Q) -> State {
        let (tokens, last) = parts(state);
        State::Bucket { tokens: (tokens + cost).min(self.b.clone()), last: last.clone() }
    }

    fn used(&self, state: &State, _now: &Q) -> Q {
        &self.b - parts(state).0
    }
}
