//! The algorithms, one file each, and [`Limit`]: one limit of any of them.
//!
//! A file has all of its algorithm ([`Algorithm`]); a new one is a file, its `mod` and its line of `algorithms!`. Each
//! algorithm answers by its own formulas. [`Limit`] checks two answers against their definitions: `remaining` is the
//! number of unit requests that still pass, `reset_after` the *least* time until the state equals none. `retry_after`
//! looks ahead over the open holds; see [`super::ahead`].

mod api;
mod concurrency;
mod fixed_window;
mod gcra;
mod interval_bucket;
mod sliding_counter;
mod sliding_log;

use num_traits::{One, Zero};

use self::api::{Algorithm, Properties};
use super::exact::{Q, q};
use super::text::LimitText;

/// Defines what differs between the algorithms that are listed. `$` is passed so that the macros that this one defines
/// can have parameters.
macro_rules! algorithms {
    ($d:tt $($name:ident: $module:ident,)*) => {
        /// One algorithm with its parameters. Equal limits have the same states and admit the same requests.
        #[derive(Clone, Debug, PartialEq)]
        pub(super) enum Limit { $($name($module::Parameters),)* }

        /// State of one key under one limit.
        #[derive(Clone, Debug)]
        pub(super) enum State { $($name($module::State),)* }

        $(impl From<$module::State> for State {
            fn from(state: $module::State) -> Self { Self::$name(state) }
        })*

        /// Evaluates an expression with the parameters of a limit and a state of it.
        macro_rules! with {
            ($d limit:expr, $d state:expr, |$d own:ident, $d its:ident| $d body:expr) => {
                match ($d limit, $d state) {
                    $((Limit::$name($d own), State::$name($d its)) => $d body,)*
                    _ => unreachable!("a state is kept under its own algorithm"),
                }
            };
        }

        impl Limit {
            /// Reads `ALGORITHM:N/PERIOD[:option[=value]]...`.
            pub(super) fn parse(text: &str) -> Result<Self, String> {
                let text = LimitText::read(text)?;
                $(
                    let mut own = text.clone();
                    if $module::Parameters::NAMES.contains(&text.name)
                        && let Some(parameters) = $module::Parameters::parse(&mut own)?
                    {
                        own.reject_unread()?;
                        return Ok(Self::$name(parameters));
                    }
                )*
                Err(format!("unknown algorithm `{}`", text.name))
            }

            pub(super) fn properties(&self) -> Properties<'_> {
                match self { $(Self::$name(own) => own.properties(),)* }
            }

            pub(super) fn unused(&self, now: &Q) -> State {
                match self { $(Self::$name(own) => own.unused(now).into(),)* }
            }

            /// Whether both are of one algorithm and have the same period.
            pub(super) fn same_period(&self, other: &Self, now: &Q) -> bool {
                match (self, other) {
                    $((Self::$name(a), Self::$name(b)) => a.same_period(b, now),)*
                    _ => false,
                }
            }

            /// The state that continues `state` of `old`; `None` if the algorithms differ.
            pub(super) fn continued(&self, old: &Self, state: &State, now: &Q) -> Option<State> {
                match (self, old, state) {
                    $((Self::$name(new), Self::$name(old), State::$name(state)) => {
                        Some(new.continued(old, state, now).into())
                    })*
                    _ => None,
                }
            }
        }
    };
}

algorithms! { $
    Gcra: gcra,
    IntervalBucket: interval_bucket,
    FixedWindow: fixed_window,
    SlidingLog: sliding_log,
    SlidingCounter: sliding_counter,
    Concurrency: concurrency,
}

/// Defines functions of [`Limit`] that call those of [`Algorithm`], as at the time of the state where that is later than
/// `now` ([`Limit::decides_at`]).
macro_rules! formulas {
    ($($name:ident(now$(, $argument:ident)*) -> $result:ty;)*) => {
        impl Limit {
            $(pub(super) fn $name(&self, state: &State, now: &Q, $($argument: &Q),*) -> $result {
                let at = &self.decides_at(state, now);
                with!(self, state, |own, its| own.$name(its, at, $($argument),*).into())
            })*
        }
    };
}

formulas! {
    at(now) -> State;
    recovered(now) -> bool;
    forgotten(now) -> bool;
    passes(now, units) -> bool;
    remaining(now) -> Q;
    delay(now) -> Q;
    charge(now, cost) -> State;
    refund(now, cost) -> State;
    trim(now) -> State;
    tidy(now) -> State;
    used(now) -> Q;
}

impl Limit {
    /// The time as at which the limit decides at `now`: that of its state, if that is later, by less than a period.
    pub(super) fn decides_at(&self, state: &State, now: &Q) -> Q {
        with!(self, state, |own, its| match own.latest(its) {
            Some(latest) if &latest > now && &latest - now < own.period_from(&latest) => latest,
            _ => now.clone(),
        })
    }

    /// The least time from `now` after which `units` are left.
    pub(super) fn retry_after(&self, state: &State, now: &Q, units: &Q) -> Q {
        let at = &self.decides_at(state, now);
        at - now + with!(self, state, |own, its| own.retry_after(its, at, units))
    }

    /// The time from `now` until the state equals none.
    fn reset_after(&self, state: &State, now: &Q) -> Q {
        let at = &self.decides_at(state, now);
        at - now + with!(self, state, |own, its| own.reset_after(its, at))
    }

    pub(super) fn counts_holds(&self) -> bool {
        self.properties().counts_holds
    }

    pub(super) fn same_algorithm(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// A stored state, or none, at `now`.
    pub(super) fn state_at(&self, state: Option<&State>, now: &Q) -> State {
        state.map_or_else(|| self.unused(now), |state| self.at(state, now))
    }

    /// The state to store; `None` for nothing.
    pub(super) fn stored(&self, state: &State, now: &Q) -> Option<State> {
        let state = self.tidy(state, now);
        (!self.forgotten(&state, now)).then_some(state)
    }

    /// The state, current at `now`, after a charge, whether or not it fits.
    pub(super) fn charged(&self, state: &State, now: &Q, cost: &Q) -> State {
        self.trim(&self.charge(state, now, cost), now)
    }

    /// Number of requests of cost 1 that still pass at `now` if nothing is held.
    pub(super) fn checked_remaining(&self, state: &State, now: &Q) -> Q {
        let remaining = self.remaining(state, now);
        if self.counts_holds() {
            return remaining;
        }
        let one_more_after = |taken: &Q| {
            let state = self.charge(state, now, taken);
            self.passes(&state, now, &Q::one())
        };
        assert!(!one_more_after(&remaining), "{self:?} {state:?}: more than {remaining} pass");
        if remaining >= Q::one() {
            assert!(one_more_after(&(&remaining - Q::one())), "fewer than {remaining} pass");
        }
        remaining
    }

    /// The least time until the state equals none.
    pub(super) fn checked_reset_after(&self, state: &State, now: &Q) -> Q {
        let reset = self.reset_after(state, now);
        let recovered_after = |d: &Q| {
            let then = now + d;
            self.recovered(&self.at(state, &then), &then)
        };
        assert!(recovered_after(&reset), "{self:?} {state:?}: in use {reset} after {now}");
        if reset > Q::zero() {
            assert!(!recovered_after(&(&reset - q(1))), "unused sooner than {reset} after {now}");
        }
        reset
    }
}
