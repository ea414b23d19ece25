//! A limit: one algorithm with its parameters.
//!
//! Each algorithm answers by its own formulas. [`Limit`] checks each answer against its definition:
//! `remaining` is the number of unit requests that still pass, `reset_after` the *least* time until the state equals
//! none. `retry_after` looks ahead over the open holds; see [`super::ahead`].

use num_traits::{One, Zero};

use super::exact::{Q, q};
use super::machine::{Machine, State};
use super::{bucket, concurrency, counter, log, rate, window};

/// One algorithm with its parameters.
#[derive(Clone, Debug)]
pub(super) enum Limit {
    Rate(rate::Parameters),
    Bucket(bucket::Parameters),
    Window(window::Parameters),
    Log(log::Parameters),
    Counter(counter::Parameters),
    Concurrency(concurrency::Parameters),
}

impl Limit {
    pub(super) fn machine(&self) -> &dyn Machine {
        match self {
            Self::Rate(parameters) => parameters,
            Self::Bucket(parameters) => parameters,
            Self::Window(parameters) => parameters,
            Self::Log(parameters) => parameters,
            Self::Counter(parameters) => parameters,
            Self::Concurrency(parameters) => parameters,
        }
    }

    /// Whether it counts open holds only.
    pub(super) fn is_concurrency(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }

    /// Whether it delays requests: a `leaky-queue`.
    pub(super) fn is_queue(&self) -> bool {
        matches!(self, Self::Rate(rate::Parameters { queue: true, .. }))
    }

    /// Whether algorithm and parameters are equal, apart from names and defaults.
    pub(super) fn identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rate(a), Self::Rate(b)) => a.identical(b),
            (Self::Bucket(a), Self::Bucket(b)) => a == b,
            (Self::Window(a), Self::Window(b)) => a == b,
            (Self::Log(a), Self::Log(b)) => a == b,
            (Self::Counter(a), Self::Counter(b)) => a == b,
            (Self::Concurrency(a), Self::Concurrency(b)) => a == b,
            _ => false,
        }
    }

    /// A stored state, or none, at `now`.
    pub(super) fn at(&self, state: Option<&State>, now: &Q) -> State {
        state.map_or_else(|| self.machine().unused(now), |state| self.machine().at(state, now))
    }

    /// The state to store; `None` for nothing.
    pub(super) fn stored(&self, state: State, now: &Q) -> Option<State> {
        let state = self.machine().tidy(state, now);
        (!self.machine().forgotten(&state, now)).then_some(state)
    }

    /// The state, current at `now`, after a charge, whether or not it fits.
    pub(super) fn charged(&self, state: &State, now: &Q, cost: &Q) -> State {
        self.machine().trim(self.machine().charge(state, now, cost), now)
    }

    /// Number of requests of cost 1 that still pass at `now` if nothing is held.
    pub(super) fn remaining(&self, state: &State, now: &Q) -> Q {
        let remaining = self.machine().remaining(state, now);
        if self.is_concurrency() {
            return remaining;
        }
        let one_more_after = |taken: &Q| {
            let state = self.machine().charge(state, now, taken);
            self.machine().passes(&state, now, &Q::one())
        };
        assert!(!one_more_after(&remaining), "{self:?} {state:?}: more than {remaining} pass");
        if remaining >= Q::one() {
            assert!(one_more_after(&(&remaining - Q::one())), "fewer than {remaining} pass");
        }
        remaining
    }

    /// The least time until the state equals none.
    pub(super) fn reset_after(&self, state: &State, now: &Q) -> Q {
        let reset = self.machine().reset_after(state, now);
        let recovered_after = |d: &Q| {
            let then = now + d;
            self.machine().recovered(&self.machine().at(state, &then), &then)
        };
        assert!(recovered_after(&reset), "{self:?} {state:?}: in use {reset} after {now}");
        if reset > Q::zero() {
            assert!(!recovered_after(&(&reset - q(1))), "unused sooner than {reset} after {now}");
        }
        reset
    }
}
