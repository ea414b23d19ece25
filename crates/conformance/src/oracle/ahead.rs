//! One limit of a key, and its future without requests: open holds expire and are charged.
//!
//! The look-ahead walks from one expiry to the next. Between two expiries the formulas of the algorithm hold, with
//! the units that are then held added to the request. Each answer is checked against its definition.

use num_traits::{One, Zero};

use super::algorithms::{Limit, State};
use super::exact::{Q, at_least_zero, q};
use super::holds::Ledger;

/// Time until a request passes. The order of the variants makes `Never` the greatest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    After(Q),
    Never,
}

/// A limit at `now`: its state, which is current, and the open holds of the key.
#[derive(Clone, Debug)]
pub(super) struct Ahead<'a> {
    pub(super) limit: &'a Limit,
    pub(super) now: Q,
    pub(super) state: State,
    pub(super) ledger: Ledger,
}

impl Ahead<'_> {
    /// The limit at a later time, if nothing else comes.
    fn at(&self, then: &Q) -> Self {
        let mut ledger = self.ledger.clone();
        let mut state = self.state.clone();
        for hold in ledger.expire(then) {
            if hold.metered {
                state = self.limit.at(&state, &hold.expires);
                state = self.limit.charged(&state, &hold.expires, &hold.units);
            }
        }
        let state = self.limit.at(&state, then);
        Self { limit: self.limit, now: then.clone(), state, ledger }
    }

    /// The units that must be left for a request to pass.
    fn needed(&self, cost: &Q) -> Q {
        let own = if self.limit.properties().borrows { Q::one() } else { cost.clone() };
        own + self.ledger.held(self.limit)
    }

    /// Whether a request passes at `now`.
    pub(super) fn passes(&self, cost: &Q) -> bool {
        !self.is_never(cost) && self.limit.passes(&self.state, &self.now, &self.needed(cost))
    }

    fn is_never(&self, cost: &Q) -> bool {
        !self.limit.properties().borrows && cost > self.limit.properties().capacity
    }

    /// The limit now and at each expiry, each with the time of the next.
    fn segments(&self) -> Vec<(Self, Option<Q>)> {
        let mut starts = vec![self.now.clone()];
        starts.extend(self.ledger.expiries());
        let ends = starts.iter().skip(1).cloned().map(Some).chain([None]);
        starts.iter().map(|start| self.at(start)).zip(ends).collect()
    }

    /// The least time after which a request of this cost passes.
    pub(super) fn retry_after(&self, cost: &Q) -> Wait {
        if self.is_never(cost) {
            return Wait::Never;
        }
        let passes_at = |(start, end): (Self, Option<Q>)| {
            if start.passes(cost) {
                return Some(start.now);
            }
            let needed = start.needed(cost);
            if &needed > self.limit.properties().capacity {
                return None;
            }
            let then = &start.now + self.limit.retry_after(&start.state, &start.now, &needed);
            end.is_none_or(|end| then < end).then_some(then)
        };
        let then = self.segments().into_iter().find_map(passes_at);
        let then = then.expect("a cost within the capacity passes after the last expiry");
        self.assert_least(&then, |ahead| ahead.passes(cost));
        Wait::After(then - &self.now)
    }

    /// Number of requests of cost 1 that still pass at `now`.
    pub(super) fn remaining(&self) -> Q {
        let without_holds = self.limit.checked_remaining(&self.state, &self.now);
        at_least_zero(without_holds - self.ledger.held(self.limit))
    }

    /// The time until the last hold has expired and the units then in use have drained.
    pub(super) fn reset_after(&self) -> Q {
        let last = self.ledger.expiries().pop().unwrap_or_else(|| self.now.clone());
        let state = self.at(&last).state;
        &last - &self.now + self.limit.checked_reset_after(&state, &last)
    }

    /// Delay of an admitted request; zero except in a queue.
    pub(super) fn delay(&self) -> Q {
        self.limit.delay(&self.state, &self.now)
    }

    /// How long a reserved request waits: until it fits, which takes longest behind open holds, and in a queue also until
    /// its departure. `None` if that is longer than `max_wait`.
    pub(super) fn reserve(&self, cost: &Q, max_wait: &Q) -> Option<Q> {
        if cost > self.limit.properties().capacity {
            return None;
        }
        let Wait::After(fits) = self.retry_after(cost) else { return None };
        let wait = if self.limit.properties().is_queue { self.delay().max(fits) } else { fits };
        (&wait <= max_wait).then_some(wait)
    }

    /// The least time after which a reserve of this cost is admitted.
    pub(super) fn reserve_retry_after(&self, cost: &Q, max_wait: &Q) -> Wait {
        if cost > self.limit.properties().capacity {
            return Wait::Never;
        }
        let Wait::After(fits) = self.retry_after(cost) else { return Wait::Never };
        let early = &self.now + fits - max_wait;
        let reserves_at = |(start, end): (Self, Option<Q>)| {
            let departs = &start.now + start.delay() - max_wait;
            let then = start.now.max(early.clone()).max(departs);
            end.is_none_or(|end| then < end).then_some(then)
        };
        let then = self.segments().into_iter().find_map(reserves_at);
        let then = then.expect("a cost within the capacity passes after the last expiry");
        self.assert_least(&then, |ahead| ahead.reserve(cost, max_wait).is_some());
        Wait::After(then - &self.now)
    }

    fn assert_least(&self, then: &Q, holds: impl Fn(&Self) -> bool) {
        assert!(holds(&self.at(then)), "{self:?}: too soon at {then}");
        if then > &self.now {
            assert!(!holds(&self.at(&(then - q(1)))), "{self:?}: too late at {then}");
        }
    }
}

/// The state of each limit at `now`, with its holds.
pub(super) fn ahead<'a>(
    limits: &'a [Limit],
    states: &[State],
    ledger: &Ledger,
    now: &Q,
) -> Vec<Ahead<'a>> {
    let one = |(limit, state): (&'a Limit, &State)| Ahead {
        limit,
        now: now.clone(),
        state: state.clone(),
        ledger: ledger.clone(),
    };
    limits.iter().zip(states).map(one).collect()
}

/// Whether all admit the cost.
pub(super) fn all_pass(limits: &[Ahead<'_>], cost: &Q) -> bool {
    limits.iter().all(|limit| limit.passes(cost))
}

/// The greatest delay of an admitted request.
pub(super) fn delay(limits: &[Ahead<'_>]) -> Q {
    limits.iter().map(Ahead::delay).max().unwrap_or_else(Q::zero)
}
