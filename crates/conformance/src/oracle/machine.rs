//! The state machines of the algorithms: the state of a key under a limit, and the formulas of [`Machine`].

use std::fmt::Debug;

use num_traits::Zero;

use super::exact::Q;

/// State of one key under one limit. Times are microseconds since the Unix epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Theoretical arrival time.
    Rate { tat: Q },
    /// Tokens left, and the time when the last were added.
    Bucket { tokens: Q, last: Q },
    /// Start of the window, and units used in it.
    Window { start: Q, used: Q },
    /// Requests that passed or were recorded, oldest first.
    Log { events: Vec<Event> },
    /// Start of the current window, units in the one before and in it.
    Counter { start: Q, prev: Q, cur: Q },
    /// A `concurrency` limit counts holds and has no state of its own.
    Concurrency,
}

/// One entry of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) t: Q,
    pub(super) weight: Q,
}

/// Time until a request passes. The order of the variants makes `Never` the greatest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wait {
    After(Q),
    Never,
}

/// The formulas of one algorithm. Every state passed to them, except to `at`, comes from `at` or `unused`.
pub(super) trait Machine: Debug {
    /// `B`, or `N` for windows and logs.
    fn capacity(&self) -> &Q;
    /// The explicit form of an absent state.
    fn unused(&self, now: &Q) -> State;
    /// A stored state, updated to `now`; times later than `now` count as `now`.
    fn at(&self, state: &State, now: &Q) -> State;
    /// Whether decisions are the same as without a state.
    fn recovered(&self, state: &State, now: &Q) -> bool;
    /// Whether nothing has to be stored. Differs from `recovered` in a log with `keep`.
    fn forgotten(&self, state: &State, now: &Q) -> bool {
        self.recovered(state, now)
    }

    /// `borrow`: a request of any cost passes if one unit is left.
    fn borrows(&self) -> bool {
        false
    }
    /// Whether `units` are left.
    fn passes(&self, state: &State, now: &Q, units: &Q) -> bool;
    /// The least time after which `units` are left: up to the capacity, and more than are left at `now`.
    fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q;
    fn remaining(&self, state: &State, now: &Q) -> Q;
    fn reset_after(&self, state: &State, now: &Q) -> Q;
    /// Delay of an admitted request; zero except in a queue.
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
    /// Removes the events that a log drops after a charge or a recorded denial.
    fn trim(&self, state: State, _now: &Q) -> State {
        state
    }
    /// Removes the events that a log with `keep` drops on every write.
    fn tidy(&self, state: State, _now: &Q) -> State {
        state
    }

    /// Whole units in use, rounded up, for migration to another algorithm.
    fn used(&self, state: &State, now: &Q) -> Q;
}
