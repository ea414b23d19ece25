//! `token-bucket` with `refill=interval`: tokens come in steps.

use num_traits::Zero;

use super::api::{Algorithm, Properties};
use crate::oracle::exact::{Q, at_least_zero, ceiling};
use crate::oracle::text::{LimitText, check_drain, duration};

/// `a` tokens each `i` microseconds, at most `b`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parameters {
    a: Q,
    i: Q,
    b: Q,
    borrow: bool,
}

/// Tokens left, and the time when the last were added.
#[derive(Clone, Debug)]
pub(crate) struct State {
    tokens: Q,
    last: Q,
}

impl Parameters {
    /// The least number of tokens: a deeper debt would take longer than `2^50` us to drain.
    fn floor(&self) -> Q {
        &self.b - &self.a * (ceiling() / &self.i).floor()
    }
}

impl Algorithm for Parameters {
    type State = State;
    const NAMES: &[&str] = &["token-bucket"];

    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String> {
        if !text.one_of("refill", "continuous", "interval")? {
            return Ok(None);
        }
        let (a, i, b) = (text.n.clone(), duration(text.period)?, text.burst()?);
        check_drain(&((&b / &a).ceil() * &i))?;
        Ok(Some(Self { a, i, b, borrow: text.flag("borrow")? }))
    }

    fn properties(&self) -> Properties<'_> {
        Properties { borrows: self.borrow, ..Properties::of(&self.b, Some(&self.i)) }
    }

    fn unused(&self, now: &Q) -> State {
        State { tokens: self.b.clone(), last: now.clone() }
    }

    fn latest(&self, State { tokens, last }: &State) -> Option<Q> {
        (tokens != &self.b).then(|| last.clone())
    }

    fn at(&self, State { tokens, last }: &State, now: &Q) -> State {
        let last = last.min(now);
        let k = ((now - last) / &self.i).floor();
        let tokens = (tokens + &k * &self.a).min(self.b.clone());
        if tokens == self.b {
            return self.unused(now);
        }
        State { tokens, last: last + k * &self.i }
    }

    fn recovered(&self, state: &State, _now: &Q) -> bool {
        state.tokens == self.b
    }

    fn passes(&self, state: &State, _now: &Q, units: &Q) -> bool {
        units <= &state.tokens
    }

    fn retry_after(&self, State { tokens, last }: &State, now: &Q, units: &Q) -> Q {
        last + ((units - tokens) / &self.a).ceil() * &self.i - now
    }

    fn remaining(&self, state: &State, _now: &Q) -> Q {
        at_least_zero(state.tokens.clone())
    }

    fn reset_after(&self, state: &State, now: &Q) -> Q {
        if self.recovered(state, now) { Q::zero() } else { self.retry_after(state, now, &self.b) }
    }

    fn charge(&self, State { tokens, last }: &State, _now: &Q, cost: &Q) -> State {
        State { tokens: (tokens - cost).max(self.floor()), last: last.clone() }
    }

    fn refund(&self, State { tokens, last }: &State, _now: &Q, cost: &Q) -> State {
        State { tokens: (tokens + cost).min(self.b.clone()), last: last.clone() }
    }

    fn continued(&self, old: &Self, State { tokens, last }: &State, now: &Q) -> State {
        let used = (&old.b - tokens).min(ceiling());
        let tokens = (&self.b - used).max(self.floor());
        let last = if now - last >= self.i { now } else { last };
        State { tokens, last: last.clone() }
    }

    fn used(&self, state: &State, _now: &Q) -> Q {
        &self.b - &state.tokens
    }
}
