//! `gcra`, `token-bucket`, `leaky-bucket` and `leaky-queue`: one theoretical arrival time.

use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::exact::{Q, at_least_zero, ceiling, q};
use crate::oracle::text::{LimitText, check_drain, duration};

/// Limit `n`, period `p` in microseconds, burst `b`.
#[derive(Clone, Debug)]
pub(crate) struct Parameters {
    n: Q,
    p: Q,
    b: Q,
    borrow: bool,
    /// `leaky-queue`: admitted requests are delayed.
    queue: bool,
}

/// Theoretical arrival time.
#[derive(Clone, Debug)]
pub(crate) struct State {
    tat: Q,
}

/// Queue and meter have the same state and admit the same requests.
impl PartialEq for Parameters {
    fn eq(&self, other: &Self) -> bool {
        (&self.n, &self.p, &self.b, self.borrow) == (&other.n, &other.p, &other.b, other.borrow)
    }
}

impl Parameters {
    /// Emission interval `T`.
    fn t(&self) -> Q {
        &self.p / &self.n
    }

    /// `max(tat, now)`.
    fn base(state: &State, now: &Q) -> Q {
        (&state.tat).max(now).clone()
    }
}

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["gcra", "token-bucket", "leaky-bucket", "leaky-queue"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        if text.name == "token-bucket" && text.one_of("refill", "continuous", "interval")? {
            return Ok(None);
        }
        let queue = text.name == "leaky-queue";
        let (n, p, b) = (text.n.clone(), duration(text.period)?, text.burst()?);
        let borrow = !queue && text.flag("borrow")?;
        let limit = Self { n, p, b, borrow, queue };
        check_drain(&(&limit.b * limit.t()))?;
        Ok(Some(limit))
    }

    fn properties(&self) -> Properties<'_> {
        let (borrows, is_queue) = (self.borrow, self.queue);
        let plain = Properties::of(&self.b, Some(&self.p));
        Properties { borrows, is_queue, can_reserve: true, ..plain }
    }

    fn unused(&self, now: &Q) -> State {
        State { tat: now.clone() }
    }

    fn recovered(&self, state: &State, now: &Q) -> bool {
        &state.tat <= now
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
        at_least_zero(((full - at_least_zero(&state.tat - now)) / self.t()).floor())
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        at_least_zero(&state.tat - now).ceil()
    }

    fn delay(&self, state: &State, now: &Q) -> Q {
        if self.queue { (Self::base(state, now) - now).ceil() } else { Q::zero() }
    }

    fn charge(&self, state: &State, now: &Q, cost: &Q) -> State {
        let new = Self::base(state, now) + cost * self.t();
        State { tat: new.min(now + ceiling()) }
    }

    fn refund(&self, state: &State, now: &Q, cost: &Q) -> State {
        State { tat: (&state.tat - cost * self.t()).max(now.clone()) }
    }

    fn continued(&self, old: &Self, state: &State, now: &Q) -> State {
        if &old.n / &old.p == &self.n / &self.p {
            return state.clone();
        }
        let million = q(1_000_000);
        let m = at_least_zero(((&state.tat - now) / old.t() * &million).ceil());
        let m = m.min(ceiling() * &million);
        // `n` of the rate in lowest terms.
        let n = (&self.n / &self.p).numerator();
        let debt = (m * self.t() / million * &n).ceil() / n;
        State { tat: now + debt.min(ceiling()) }
    }

    fn used(&self, state: &State, now: &Q) -> Q {
        at_least_zero(((&state.tat - now) / self.t()).ceil())
    }
}
