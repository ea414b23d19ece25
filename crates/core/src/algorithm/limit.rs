//! One limit of any algorithm, and one state: what the rest of the core works with.

use super::{
    Algorithm, BucketState, CounterState, FixedWindow, Gcra, GcraState, IntervalBucket, LogState,
    SlidingCounter, SlidingLog, WindowState,
};
use crate::{decision::Retry, time::Timestamp};

/// One algorithm with its parameters. Values are checked on the way in, so a `Limit` that exists is
/// valid.
#[derive(Clone, Debug, PartialEq)]
pub enum Limit {
    /// `gcra`, `token-bucket`, `leaky-bucket`, `leaky-queue`.
    Gcra(Gcra),
    /// `token-bucket` with `refill=interval`.
    IntervalBucket(IntervalBucket),
    /// `fixed-window`.
    FixedWindow(FixedWindow),
    /// `sliding-log`.
    SlidingLog(SlidingLog),
    /// `sliding-counter`.
    SlidingCounter(SlidingCounter),
}

/// What is kept of a key for one limit. `None` is a limit never used, or fully recovered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum State {
    #[default]
    None,
    Gcra(GcraState),
    IntervalBucket(BucketState),
    FixedWindow(WindowState),
    SlidingLog(LogState),
    SlidingCounter(CounterState),
}

impl State {
    /// Bytes that it keeps elsewhere.
    pub(crate) fn heap_size(&self) -> usize {
        match self {
            Self::SlidingLog(log) => log.heap_size(),
            _ => 0,
        }
    }
}

/// Calls a method of the algorithm with the state that belongs to it.
macro_rules! ask {
    ($limit:expr, $state:expr, |$algorithm:ident, $own:ident| $body:expr) => {
        match $limit {
            Limit::Gcra($algorithm) => {
                let $own = if let State::Gcra(own) = $state { Some(own) } else { None };
                $body
            }
            Limit::IntervalBucket($algorithm) => {
                let $own = if let State::IntervalBucket(own) = $state { Some(own) } else { None };
                $body
            }
            Limit::FixedWindow($algorithm) => {
                let $own = if let State::FixedWindow(own) = $state { Some(own) } else { None };
                $body
            }
            Limit::SlidingLog($algorithm) => {
                let $own = if let State::SlidingLog(own) = $state { Some(own) } else { None };
                $body
            }
            Limit::SlidingCounter($algorithm) => {
                let $own = if let State::SlidingCounter(own) = $state { Some(own) } else { None };
                $body
            }
        }
    };
}

/// Lets an algorithm change its own state in place.
macro_rules! change {
    ($limit:expr, $state:expr, |$algorithm:ident, $own:ident| $body:expr) => {
        match $limit {
            Limit::Gcra($algorithm) => change!($state, Gcra, $own, $body),
            Limit::IntervalBucket($algorithm) => change!($state, IntervalBucket, $own, $body),
            Limit::FixedWindow($algorithm) => change!($state, FixedWindow, $own, $body),
            Limit::SlidingLog($algorithm) => change!($state, SlidingLog, $own, $body),
            Limit::SlidingCounter($algorithm) => change!($state, SlidingCounter, $own, $body),
        }
    };
    ($state:expr, $variant:ident, $own:ident, $body:expr) => {{
        let mut own = match std::mem::take($state) {
            State::$variant(own) => Some(own),
            _ => None,
        };
        let $own = &mut own;
        $body;
        *$state = own.map_or(State::None, State::$variant);
    }};
}

impl Limit {
    /// What an idle key admits at once: `B`, or `N` for windows and logs.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        ask!(self, &State::None, |limit, _own| limit.capacity())
    }

    /// Whether denied requests are recorded too.
    #[must_use]
    pub const fn count_all(&self) -> bool {
        match self {
            Self::FixedWindow(limit) => limit.count_all(),
            Self::SlidingLog(limit) => limit.count_all(),
            Self::SlidingCounter(limit) => limit.count_all(),
            Self::Gcra(_) | Self::IntervalBucket(_) => false,
        }
    }

    pub(crate) fn wait(&self, state: &State, now: Timestamp, cost: u32) -> Retry {
        ask!(self, state, |limit, own| limit.wait(own, now, cost))
    }

    pub(crate) fn remaining(&self, state: &State, now: Timestamp) -> u32 {
        ask!(self, state, |limit, own| limit.remaining(own, now))
    }

    pub(crate) fn reset_after(&self, state: &State, now: Timestamp) -> u64 {
        ask!(self, state, |limit, own| limit.reset_after(own, now))
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        ask!(self, state, |limit, own| limit.used(own, now))
    }

    pub(crate) fn charge(&self, state: &mut State, now: Timestamp, cost: u32) {
        change!(self, state, |limit, own| limit.charge(own, now, cost));
    }

    pub(crate) fn refund(&self, state: &mut State, now: Timestamp, cost: u32) {
        change!(self, state, |limit, own| limit.refund(own, now, cost));
    }

    pub(crate) fn with_used(&self, now: Timestamp, used: u64) -> State {
        let mut state = State::None;
        change!(self, &mut state, |limit, own| *own = limit.with_used(now, used));
        state
    }

    /// How long a request that passes must be held back, in microseconds.
    pub(crate) fn delay(&self, state: &State, now: Timestamp) -> u64 {
        match (self, state) {
            (Self::Gcra(limit), State::Gcra(state)) => limit.delay(Some(state), now),
            _ => 0,
        }
    }

    /// Microseconds until nothing is kept any more: longer than `reset_after` for a log that keeps
    /// events for a later rule.
    pub(crate) fn lifetime(&self, state: &State, now: Timestamp) -> u64 {
        match (self, state) {
            (Self::SlidingLog(limit), State::SlidingLog(state)) => limit.lifetime(Some(state), now),
            _ => self.reset_after(state, now),
        }
    }
}
