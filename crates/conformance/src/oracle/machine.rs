//! What the five state machines have in common: a limit asks the same questions of each.
//!
//! A rule says how its own machine answers by formula. [`Limit`] asks, and checks each answer
//! against the definition of the word: `retry_after` is the *least* time after which the request
//! passes, `remaining` the number of unit requests that still pass, `reset_after` the *least* time
//! until the state is as good as none.

use std::fmt::Debug;

use num_traits::{One, Zero};

use super::exact::{Q, q};
use super::{bucket, counter, log, rate, window};

/// What one limit keeps of one key. Times are microseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Theoretical arrival time.
    Rate { tat: Q },
    /// Tokens there, and when the last were added.
    Bucket { tokens: Q, last: Q },
    /// Opening of the window, and units used in it.
    Window { start: Q, used: Q },
    /// What passed (or was recorded), oldest first.
    Log { events: Vec<Event> },
    /// Opening of the current window, units in the one before and in it.
    Counter { start: Q, prev: Q, cur: Q },
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) t: Q,
    pub(super) weight: Q,
}

/// Time until a request would pass. The order of the variants makes `Never` the greatest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    After(Q),
    Never,
}

/// The formulas of one machine. Every state given to them, but to `at`, comes from `at` or `unused`.
pub(super) trait Machine: Debug {
    /// `B`, or `N` for windows and logs.
    fn capacity(&self) -> &Q;
    /// The explicit form of an absent state.
    fn unused(&self, now: &Q) -> State;
    /// A stored state as it stands at `now`; times later than `now` are taken as `now`.
    fn at(&self, state: &State, now: &Q) -> State;
    /// Decides as an absent state would.
    fn recovered(&self, state: &State, now: &Q) -> bool;
    /// Nothing is left to be stored. Differs from `recovered` in a log with `keep`.
    fn forgotten(&self, state: &State, now: &Q) -> bool {
        self.recovered(state, now)
    }

    fn passes(&self, state: &State, now: &Q, cost: &Q) -> bool;
    /// Only asked when the request does not pass.
    fn retry_after(&self, state: &State, now: &Q, cost: &Q) -> Wait;
    fn remaining(&self, state: &State, now: &Q) -> Q;
    fn reset_after(&self, state: &State, now: &Q) -> Q;
    /// How long an admitted request must be held back: only a queue does so.
    fn delay(&self, _state: &State, _now: &Q) -> Q {
        Q::zero()
    }

    /// Takes `cost`, whether or not it fits.
    fn charge(&self, state: &State, now: &Q, cost: &Q) -> State;
    fn refund(&self, state: &State, now: &Q, cost: &Q) -> State;
    /// `count=all`.
    fn records_denials(&self) -> bool {
        false
    }
    /// What a log forgets after a charge or a recorded denial.
    fn trim(&self, state: State, _now: &Q) -> State {
        state
    }
    /// What a log with `keep` forgets on every store.
    fn tidy(&self, state: State, _now: &Q) -> State {
        state
    }

    /// Whole units in use, rounded up, as another machine would take them over.
    fn used(&self, state: &State, now: &Q) -> Q;
}

/// One algorithm with its parameters.
#[derive(Clone, Debug)]
pub(super) enum Limit {
    Rate(rate::Rule),
    Bucket(bucket::Rule),
    Window(window::Rule),
    Log(log::Rule),
    Counter(counter::Rule),
}

impl Limit {
    pub(super) fn machine(&self) -> &dyn Machine {
        match self {
            Self::Rate(rule) => rule,
            Self::Bucket(rule) => rule,
            Self::Window(rule) => rule,
            Self::Log(rule) => rule,
            Self::Counter(rule) => rule,
        }
    }

    /// Same machine and parameters, names and defaults aside.
    pub(super) fn identical(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Rate(a), Self::Rate(b)) => a.identical(b),
            (Self::Bucket(a), Self::Bucket(b)) => a == b,
            (Self::Window(a), Self::Window(b)) => a == b,
            (Self::Log(a), Self::Log(b)) => a == b,
            (Self::Counter(a), Self::Counter(b)) => a == b,
            _ => false,
        }
    }

    /// A stored state, or none, as it stands at `now`.
    pub(super) fn at(&self, state: Option<&State>, now: &Q) -> State {
        state.map_or_else(|| self.machine().unused(now), |state| self.machine().at(state, now))
    }

    /// What is stored of a state.
    pub(super) fn stored(&self, state: State, now: &Q) -> Option<State> {
        let state = self.machine().tidy(state, now);
        (!self.machine().forgotten(&state, now)).then_some(state)
    }

    /// The least time after which this cost passes if nothing else comes.
    pub(super) fn retry_after(&self, state: &State, now: &Q, cost: &Q) -> Wait {
        if self.machine().passes(state, now, cost) {
            return Wait::After(Q::zero());
        }
        let wait = self.machine().retry_after(state, now, cost);
        if let Wait::After(d) = &wait {
            let passes_after = |d: &Q| {
                let then = now + d;
                self.machine().passes(&self.machine().at(state, &then), &then, cost)
            };
            assert!(passes_after(d), "{self:?} {state:?}: {cost} does not pass {d} after {now}");
            assert!(!passes_after(&(d - Q::one())), "{cost} passes sooner than {d} after {now}");
        }
        wait
    }

    /// How many requests of cost 1 still pass at `now`.
    pub(super) fn remaining(&self, state: &State, now: &Q) -> Q {
        let remaining = self.machine().remaining(state, now);
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

    /// The least time until the key is as if never used.
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
