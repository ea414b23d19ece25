//! The algorithms, one file each, and what they have in common.

mod events;
mod fixed_window;
mod gcra;
mod interval_bucket;
mod limit;
mod sliding_counter;
mod sliding_log;

use std::time::Duration;

pub(crate) use self::{
    fixed_window::State as WindowState,
    gcra::State as GcraState,
    interval_bucket::State as BucketState,
    limit::State,
    sliding_counter::State as CounterState,
    sliding_log::{Event, State as LogState},
};
pub use self::{
    fixed_window::{Align, Counted, FixedWindow, Window},
    gcra::{Gcra, GcraName, Judgement},
    interval_bucket::IntervalBucket,
    limit::Limit,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
};
use crate::{
    decision::Retry,
    time::{Timestamp, as_micros},
};

/// The longest time that a state may take to drain: 2^50 µs, 35 years.
pub(crate) const MAX_DRAIN: u64 = 1 << 50;
/// The greatest count of units that a state holds.
pub(crate) const MAX_COUNT: u64 = 1 << 50;

const MIN_PERIOD: u64 = 1_000;
const MAX_PERIOD: u64 = 366 * 86_400_000_000;

/// One algorithm with its parameters: what it does with the state of a key.
///
/// `None` is a key never used, which is the same as one that has recovered. Questions leave the
/// state alone; `charge` and `refund` bring it up to `now` first. Costs are at least 1.
pub(crate) trait Algorithm {
    /// What is kept of a key.
    type State;

    /// What an idle key admits at once, in units.
    fn capacity(&self) -> u32;

    /// After which time `cost` units would pass; zero if they would now.
    fn wait(&self, state: Option<&Self::State>, now: Timestamp, cost: u32) -> Retry;

    /// How many requests of cost 1 would pass at `now`.
    fn remaining(&self, state: Option<&Self::State>, now: Timestamp) -> u32;

    /// Microseconds until the state equals none.
    fn reset_after(&self, state: Option<&Self::State>, now: Timestamp) -> u64;

    /// Units in use at `now`, rounded up.
    fn used(&self, state: Option<&Self::State>, now: Timestamp) -> u64;

    /// Takes `cost` units, whether or not they fit.
    fn charge(&self, state: &mut Option<Self::State>, now: Timestamp, cost: u32);

    /// Gives back up to `cost` units.
    fn refund(&self, state: &mut Option<Self::State>, now: Timestamp, cost: u32);

    /// The state in which `used` units (at most [`MAX_COUNT`]) were taken at `now`.
    fn with_used(&self, now: Timestamp, used: u64) -> Option<Self::State>;
}

/// A parameter outside its domain.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A value is out of bounds.
    #[error("invalid {name} `{value}`: expected {domain}")]
    Domain {
        /// Which parameter.
        name: &'static str,
        /// Its value, as a policy would write it.
        value: String,
        /// The valid values.
        domain: &'static str,
    },
    /// A full state would take too long to drain.
    #[error(
        "invalid {name} `{value}`: expected one that drains within 35 years; use a lower {name}, a \
         higher limit or a shorter period"
    )]
    Drain {
        /// Which parameter.
        name: &'static str,
        /// Its value.
        value: u32,
    },
    /// A time zone that the bundled database does not know.
    #[error("unknown time zone `{0}`: expected an IANA name, such as `Asia/Shanghai`")]
    Zone(String),
    /// An option that does not go with the others.
    #[error("{0}")]
    Combination(&'static str),
}

/// `value` as a limit `N`.
fn check_units(name: &'static str, value: u32) -> Result<u32, LimitError> {
    if value == 0 {
        let domain = match name {
            "limit" => "1 to 4294967295; to block all requests, use a rule with `block: true`",
            _ => "1 to 4294967295",
        };
        return Err(LimitError::Domain { name, value: value.to_string(), domain });
    }
    Ok(value)
}

/// Whether a period may have that many microseconds.
pub(crate) const fn is_period(micros: u64) -> bool {
    MIN_PERIOD <= micros && micros <= MAX_PERIOD
}

/// `span` as a period in microseconds.
fn check_period(name: &'static str, span: Duration) -> Result<u64, LimitError> {
    let micros = as_micros(span);
    if is_period(micros) {
        Ok(micros)
    } else {
        let value = crate::policy::format_period(micros);
        Err(LimitError::Domain { name, value, domain: "1ms to 366d" })
    }
}

/// A count that is known to fit, as what a decision tells.
fn units(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// The later of a time that a state holds and none: a time later than `now` is taken as `now`, so
/// that a clock which stepped back holds nobody up for longer than it stepped.
fn not_after(held: u64, now: u64) -> u64 {
    held.min(now)
}

/// A 128-bit count of microseconds as what it must fit in.
fn narrow(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}
