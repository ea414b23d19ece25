//! `concurrency`: at most `n` units are held at one time. The holds are in the ledger of the key.

use num_traits::Zero;

use super::exact::Q;
use super::machine::{Machine, State};

/// At most `n` units held, each hold for at most `p` microseconds unless it is renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Parameters {
    pub(super) n: Q,
    pub(super) p: Q,
}

impl Machine for Parameters {
    fn capacity(&self) -> &Q {
        &self.n
    }

    fn unused(&self, _now: &Q) -> State {
        State::Concurrency
    }

    fn at(&self, _state: &State, _now: &Q) -> State {
        State::Concurrency
    }

    fn recovered(&self, _state: &State, _now: &Q) -> bool {
        true
    }

    /// `units` includes the units of all open holds.
    fn passes(&self, _state: &State, _now: &Q, units: &Q) -> bool {
        units <= &self.n
    }

    fn retry_after(&self, _state: &State, _now: &Q, _units: &Q) -> Q {
        unreachable!("up to the capacity passes at once")
    }

    fn remaining(&self, _state: &State, _now: &Q) -> Q {
        self.n.clone()
    }

    fn reset_after(&self, _state: &State, _now: &Q) -> Q {
        Q::zero()
    }

    fn charge(&self, _state: &State, _now: &Q, _cost: &Q) -> State {
        State::Concurrency
    }

    fn refund(&self, _state: &State, _now: &Q, _cost: &Q) -> State {
        State::Concurrency
    }

    fn used(&self, _state: &State, _now: &Q) -> Q {
        Q::zero()
    }
}
