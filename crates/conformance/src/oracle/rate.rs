//! `gcra`, `token-bucket`, `leaky-bucket` and `leaky-queue`: one theoretical arrival time.

use num_traits::Zero;

use super::exact::{Q, at_least_zero, ceiling, q};
use super::machine::{Machine, State};

/// Limit `n`, period `p` in microseconds, burst `b`.
#[derive(Clone, Debug)]
pub(super) struct Parameters {
    pub(super) n: Q,
    pub(super) p: Q,
    pub(super) b: Q,
    pub(super) borrow: bool,
    /// `leaky-queue`: admitted requests are delayed.
    pub(super) queue: bool,
}

impl Parameters {
    /// Queue and meter have the same state and admit the same requests.
    pub(super) fn identical(&self, other: &Self) -> bool {
        (&self.n, &self.p, &self.b, self.borrow) == (&other.n, &other.p, &other.b, other.borrow)
    }

    /// The time to drain a full state must be at most `2^50` microseconds.
    pub(super) fn drains_in_time(&self) -> bool {
        &self.b * self.t() <= ceiling()
    }

    /// Emission interval `T`.
    fn t(&self) -> Q {
        &self.p / &self.n
    }

    /// `max(tat, now)`.
    fn base(state: &State, now: &Q) -> Q {
        tat(state).max(now).clone()
    }

    /// Migrates the state from other parameters of this algorithm.
    pub(super) fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        if &old.n / &old.p == &self.n / &self.p {
            return state.clone();
        }
        let million = q(1_000_000);
        let m = at_least_zero(((tat(state) - now) / old.t() * &million).ceil());
        let m = m.min(ceiling() * &million);
        // `n` of the rate in lowest terms.
        let n = (&self.n / &self.p).numerator();
        let debt = (m * self.t() / million * &n).ceil() / n;
        State::Rate { tat: now + debt.min(ceiling()) }
    }
}

fn tat(state: &State) -> &Q {
    let State::Rate { tat } = state else { unreachable!("a state is kept under its own machine") };
    tat
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.b
    }

    fn unused(&self, now: &Q) -> State {
        State::Rate { tat: now.clone() }
    }

    fn at(&self, state: &State, _now: &Q) -> State {
        state.clone()
    }

    fn recovered(&self, state: &State, now: &Q) -> bool {
        tat(state) <= now
    }

    fn borrows(&self) -> bool {
        self.borrow
    }

    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool {
        let new = Self::base(state, now) + units * self.t();
        new - now <= &self.b * self.t()
    }

    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        let new = Self::base(state, now) + units * self.t();
        (new - &self.b * self.t() - now).ceil()
    }

    fn remaining(&self, state: &State, now: &Q) -> Q {
        let full = &self.b * self.t();
        at_least_zero(((full - at_least_zero(tat(state) - now)) / self.t()).floor())
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        at_least_zero(tat(state) - now).ceil()
    }

    fn delay(&self, state: &State, now: &Q) -> Q {
        if self.queue { (Self::base(state, now) - now).ceil() } else { Q::zero() }
    }

    fn charge(&self, state: &State, now: &Q, cost: &Q) -> State {
        let new = Self::base(state, now) + cost * self.t();
        State::Rate { tat: new.min(now + ceiling()) }
    }

    fn refund(&self, state: &State, now: &Q, cost: &Q) -> State {
        State::Rate { tat: (tat(state) - cost * self.t()).max(now.clone()) }
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        at_least_zero(((tat(state) - now) / self.t()).ceil())
    }
}
