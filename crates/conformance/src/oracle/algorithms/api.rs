//! [`Algorithm`]: what each file of this folder has.

use std::fmt::Debug;

use num_traits::Zero;

use crate::oracle::exact::Q;
use crate::oracle::text::LimitText;

/// The parameters of one algorithm, with its text form, its formulas and its part of a migration. Every state passed
/// to the formulas, except to `at` and `latest`, comes from `at` or `unused`. `now` is the time as at which the limit
/// decides.
pub(super) trait Algorithm: Clone + Debug + PartialEq {
    /// State of one key. Times are microseconds since the Unix epoch.
    type State: Clone + Debug;
    /// Its names in the text form.
    const NAMES: &[&str];

    /// Reads a limit with one of the names; `None` if the options choose another algorithm of that name.
    fn parse(text: &mut LimitText<'_>) -> Result<Option<Self>, String>;
    fn properties(&self) -> Properties<'_>;

    /// The explicit form of an absent state.
    fn unused(&self, now: &Q) -> Self::State;
    /// The time of a state that may be later than that of a request, if something is in use.
    fn latest(&self, _state: &Self::State) -> Option<Q> {
        None
    }
    /// The length of the period that begins at `start`.
    fn period_from(&self, _start: &Q) -> Q {
        self.properties().period.cloned().unwrap_or_else(Q::zero)
    }
    /// A stored state, updated to `now`; times later than `now` count as `now`: the clock was set back.
    fn at(&self, state: &Self::State, _now: &Q) -> Self::State {
        state.clone()
    }
    /// Whether decisions are the same as without a state.
    fn recovered(&self, state: &Self::State, now: &Q) -> bool;
    /// Whether nothing has to be stored. Differs from `recovered` in a log with `keep`.
    fn forgotten(&self, state: &Self::State, now: &Q) -> bool {
        self.recovered(state, now)
    }

    /// Whether `units` are left.
    fn passes(&self, state: &Self::State, now: &Q, units: &Q) -> bool;
    /// The least time after which `units` are left: up to the capacity, and more than are left at `now`.
    fn retry_after(&self, state: &Self::State, now: &Q, units: &Q) -> Q;
    fn remaining(&self, state: &Self::State, now: &Q) -> Q;
    fn reset_after(&self, state: &Self::State, now: &Q) -> Q;
    /// Delay of an admitted request; zero except in a queue.
    fn delay(&self, _state: &Self::State, _now: &Q) -> Q {
        Q::zero()
    }

    /// Takes `cost`, whether or not it fits.
    fn charge(&self, state: &Self::State, now: &Q, cost: &Q) -> Self::State;
    fn refund(&self, state: &Self::State, now: &Q, cost: &Q) -> Self::State;
    /// Removes the events that a log drops after a charge or a recorded denial.
    fn trim(&self, state: &Self::State, _now: &Q) -> Self::State {
        state.clone()
    }
    /// Removes the events that a log with `keep` drops on every write.
    fn tidy(&self, state: &Self::State, _now: &Q) -> Self::State {
        state.clone()
    }

    /// Whether the periods are equal as durations.
    fn same_period(&self, other: &Self, _now: &Q) -> bool {
        self.properties().period == other.properties().period
    }
    /// Migrates the state from other parameters of this algorithm. `at` is applied afterwards.
    fn continued(&self, _old: &Self, state: &Self::State, _now: &Q) -> Self::State {
        state.clone()
    }
    /// Whole units in use, rounded up, for migration to another algorithm.
    fn used(&self, state: &Self::State, now: &Q) -> Q;
}

/// What other files need to know of the parameters of any algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties<'a> {
    /// `B`, or `N` for windows and logs.
    pub(crate) capacity: &'a Q,
    /// `None` for one of the calendar.
    pub(crate) period: Option<&'a Q>,
    /// `borrow`: a request of any cost passes if one unit is left.
    pub(crate) borrows: bool,
    /// `count=all`.
    pub(crate) records_denials: bool,
    pub(crate) can_reserve: bool,
    /// Admitted requests are delayed.
    pub(crate) is_queue: bool,
    /// A new limit can begin with a copy of the state of another one.
    pub(crate) keeps_log: bool,
    /// The limit counts open holds only and has no state. The period is the longest lifetime of a hold.
    pub(crate) counts_holds: bool,
}

impl<'a> Properties<'a> {
    /// A limit with none of the other properties.
    pub(super) fn of(capacity: &'a Q, period: Option<&'a Q>) -> Self {
        Self {
            capacity,
            period,
            borrows: false,
            records_denials: false,
            can_reserve: false,
            is_queue: false,
            keeps_log: false,
            counts_holds: false,
        }
    }
}
