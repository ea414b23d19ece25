//! `concurrency`: at most `n` units are held at one time. The holds are in the ledger of the key.

use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::exact::{Q, q};
use crate::oracle::text::{LimitText, duration};

/// Upper bound on the units of a limit.
const MAX_UNITS_HELD: u64 = 65_536;

/// At most `n` units held, each hold for at most `p` microseconds unless it is renewed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    n: Q,
    p: Q,
}

/// The limit counts holds and has no state of its own.
#[derive(Clone, Debug)]
pub(crate) struct State;

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["concurrency"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        if text.n > q(MAX_UNITS_HELD) {
            return Err(format!("more than {MAX_UNITS_HELD} units held"));
        }
        Ok(Some(Self { n: text.n.clone(), p: duration(text.period)? }))
    }

    fn properties(&self) -> Properties<'_> {
        Properties { counts_holds: true, ..Properties::of(&self.n, Some(&self.p)) }
    }

    fn unused(&self, _now: &Q) -> State {
        State
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
        State
    }

    fn refund(&self, _state: &State, _now: &Q, _cost: &Q) -> State {
        State
    }

    fn used(&self, _state: &State, _now: &Q) -> Q {
        Q::zero()
    }
}
