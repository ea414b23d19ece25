//! The algorithms, one file each, and [`Limit`]: one limit of any of them.
//!
//! A file has all of its algorithm ([`Algorithm`]): the parameters, the policy string, the bytes of its state, the
//! decision, the migration of a state, and its bounds in numbers and in words. Everything else calls [`Limit`].

mod api;
mod concurrency;
mod event_log;
mod events;
mod fixed_window;
mod gcra;
mod interval_bucket;
mod sliding_counter;
mod sliding_log;

use std::{fmt, time::Duration};

use self::api::{Algorithm, Parameters};
pub(crate) use self::fixed_window::State as WindowState;
pub use self::{
    api::LimitSummary,
    concurrency::Concurrency,
    fixed_window::{Align, FixedWindow, Window, WindowTake},
    gcra::{Gcra, GcraName, GcraTake},
    interval_bucket::IntervalBucket,
    sliding_counter::SlidingCounter,
    sliding_log::SlidingLog,
};
use crate::{
    bytes::{Head, Reader, StateError, Writer},
    calendar::CalendarUnit,
    decision::{Decision, Retry},
    ledger::{Expiries, Ledger},
    parameters::LimitError,
    reached,
    share::Share,
    text::{LimitText, TextError},
    time::Timestamp,
};

/// The parts of an algorithm that a policy string needs.
pub(crate) struct AlgorithmText {
    pub(crate) names: &'static [(&'static str, &'static [&'static str])],
    pub(crate) other_words: &'static [&'static str],
    pub(crate) parse: fn(&LimitText<'_>) -> Result<Option<Limit>, TextError>,
}

/// Defines [`Limit`], [`State`] and the dispatch of the algorithms that are listed. `$` is passed so that the macros
/// that this one defines can have parameters.
macro_rules! algorithms {
    ($d:tt $($(#[$doc:meta])* $name:ident,)*) => {
        /// One algorithm with its parameters. Values are checked on construction, so a `Limit` that exists is
        /// valid.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Limit { $($(#[$doc])* $name($name),)* }

        /// State of a key for one limit. `None` is a limit that is unused or has recovered. The open holds of the
        /// key, if any, follow the states of its limits, so that keys without holds need no space for them.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(crate) enum State {
            #[default] None, Holds(Box<Ledger>), $($name(<$name as Algorithm>::State),)*
        }

        $(impl From<$name> for Limit {
            fn from(limit: $name) -> Self { Self::$name(limit) }
        })*

        /// All algorithms, in the order in which errors list their names.
        pub(crate) const ALGORITHMS: &[AlgorithmText] = &[$(AlgorithmText {
            names: $name::NAMES, other_words: $name::OTHER_WORDS, parse: |text| Ok($name::parse(text)?.map(Limit::from)),
        },)*];

        /// Calls a function of the algorithm with the state that belongs to it.
        macro_rules! dispatch {
            ($d limit:expr, $d state:expr, |$d algorithm:ident, $d own:ident| $d body:expr) => {
                match $d limit { $(Limit::$name($d algorithm) => {
                    let $d own = if let State::$name(own) = $d state { Some(own) } else { None };
                    $d body
                })* }
            };
        }

        /// Lets the algorithm replace the state that belongs to it.
        macro_rules! change {
            ($d limit:expr, $d state:expr, |$d algorithm:ident, $d own:ident| $d body:expr) => {
                match $d limit { $(Limit::$name($d algorithm) => {
                    let mut own = match std::mem::take($d state) {
                        State::$name(own) => Some(own),
                        _ => None,
                    };
                    let $d own = &mut own;
                    $d body;
                    *$d state = own.map_or(State::None, State::$name);
                })* }
            };
        }

        /// Calls a function with two limits of the same algorithm; otherwise evaluates `else`.
        macro_rules! both {
            ($d a:expr, $d b:expr, |$d left:ident, $d right:ident| $d body:expr, else $d other:expr) => {
                match ($d a, $d b) {
                    $((Limit::$name($d left), Limit::$name($d right)) => $d body.into(),)*
                    _ => $d other,
                }
            };
        }

        impl State {
            /// Bytes that it keeps elsewhere.
            #[inline]
            pub(crate) fn heap_size(&self) -> usize {
                match self {
                    Self::None => 0,
                    Self::Holds(ledger) => size_of::<Ledger>() + ledger.heap_size(),
                    $(Self::$name(state) => $name::heap_size(state),)*
                }
            }

            /// A copy whose cost does not depend on the size of a log.
            pub(crate) fn share(&mut self) -> Self {
                match self {
                    Self::None => Self::None,
                    Self::Holds(ledger) => Self::Holds(ledger.clone()),
                    $(Self::$name(state) => Self::$name($name::share_state(state)),)*
                }
            }

            /// Bytes by which a log makes the byte form longer than that of no state.
            pub(crate) fn log_len(&self) -> usize {
                match self { Self::None | Self::Holds(_) => 0, $(Self::$name(state) => $name::log_len(state),)* }
            }
        }

        impl Limit {
            /// Number of algorithms.
            pub const COUNT: usize = ALGORITHMS.len();

            /// Index of its algorithm, below [`COUNT`](Self::COUNT), in the order in which errors list them.
            #[must_use]
            pub const fn index(&self) -> usize {
                enum Index { $($name,)* }
                match self { $(Self::$name(_) => Index::$name as usize,)* }
            }

            /// Flags that may be set beside a code of the byte form; `None` for an unknown code.
            pub(crate) fn flags(code: u8) -> Option<u8> {
                $(if $name::CODES.contains(&code) { return Some($name::flags(code)); })*
                None
            }

            /// Reads what [`encode`](Self::encode) wrote, from behind its head.
            pub(crate) fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, State), StateError> {
                $(if $name::CODES.contains(&head.code) {
                    let (limit, state) = $name::decode(head, input)?;
                    return Ok((Self::$name(limit), state.map_or(State::None, State::$name)));
                })*
                Err(StateError::Damaged("a limit is of no known algorithm"))
            }

            /// This limit for reading `state`, which was written under `old`, at `now` without migrating it.
            pub(crate) fn reader(&self, old: &Self, state: &State, now: Timestamp) -> Option<Self> {
                match (self, old, state) {
                    $((Self::$name(new), Self::$name(old), State::$name(state)) => {
                        new.reader(old, state, now).map(Self::$name)
                    })*
                    _ => None,
                }
            }

            /// `state`, migrated from `old` to this limit.
            pub(crate) fn migrate(&self, old: &Self, state: State, now: Timestamp) -> State {
                let mut migrated = match (self, old, state) {
                    (_, _, State::None) => State::None,
                    $((Self::$name(new), Self::$name(old), State::$name(state)) => {
                        new.migrate(old, state, now).map_or(State::None, State::$name)
                    })*
                    (new, old, state) => {
                        reached!(MigratedToOtherAlgorithm);
                        new.with_used(old.decides_at(&state, now), old.used(&state, now))
                    }
                };
                // A time that is later than `now` may be a period or more later for this limit.
                self.refund(&mut migrated, now, 0);
                migrated
            }
        }
    };
}

algorithms! { $
    /// `gcra`, `token-bucket`, `leaky-bucket`, `leaky-queue`.
    Gcra,
    /// `token-bucket` with `refill=interval`.
    IntervalBucket,
    /// `fixed-window`.
    FixedWindow,
    /// `sliding-log`.
    SlidingLog,
    /// `sliding-counter`.
    SlidingCounter,
    /// `concurrency`.
    Concurrency,
}

/// When a limit no longer counts units that were taken at once, [as far as](Limit::forgets) a lease of them needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgets {
    /// One after the other, at its [rate](Limit::rate).
    AtRate,
    /// The units of its rate at once, at the end of each period.
    InSteps,
    /// Those of a window at its end.
    ByWindow,
    /// A period after they were taken, or later.
    AfterPeriod,
    /// When a hold ends.
    WhenSettled,
}

/// Calls a function of the algorithm that needs no state.
macro_rules! of {
    ($limit:expr, |$algorithm:ident| $body:expr) => {
        dispatch!($limit, &State::None, |$algorithm, _own| $body)
    };
}

impl Limit {
    /// The names of all algorithms in policy strings.
    pub fn names() -> impl Iterator<Item = &'static str> {
        let names = ALGORITHMS.iter().flat_map(|it| it.names).map(|&(name, _)| name);
        // The forms of a token bucket are two algorithms.
        let is_first = |&(at, name): &(usize, &str)| {
            !ALGORITHMS.iter().flat_map(|it| it.names).take(at).any(|(other, _)| *other == name)
        };
        names.enumerate().filter(is_first).map(|(_, name)| name)
    }

    #[inline]
    fn parameters(&self) -> Parameters {
        of!(self, |limit| limit.parameters())
    }

    /// Rate: `N` units per period `P`. A period of the calendar is given as its longest: a month is 31 days, a
    /// year 366.
    #[must_use]
    pub fn rate(&self) -> (u32, Duration) {
        let parameters = self.parameters();
        (parameters.limit, parameters.period)
    }

    /// The calendar that its windows follow, if they do: the unit that is its period, and the name of the time zone in
    /// the IANA database.
    #[must_use]
    pub fn calendar(&self) -> Option<(CalendarUnit, &str)> {
        of!(self, |limit| limit.calendar()).map(|calendar| (calendar.unit(), calendar.zone()))
    }

    /// Units that an idle key admits at once: `B`, or `N` for windows and logs.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.parameters().capacity
    }

    /// Units in a full bucket, which are admitted in addition to those that come in a period, of which the last one comes
    /// as it ends; 0 for windows, logs, queues, and buckets of one unit that are refilled continuously.
    #[must_use]
    pub fn bucket_size(&self) -> u32 {
        self.parameters().bucket_size
    }

    /// Whether a request may take more than is available, and later ones pay for it (`borrow`).
    #[must_use]
    pub fn borrow(&self) -> bool {
        self.parameters().borrow
    }

    /// Whether denied requests are recorded too (`count=all`).
    #[must_use]
    pub fn count_all(&self) -> bool {
        self.parameters().count_all
    }

    /// Whether the time of admission can be computed in advance: [`Operation::Reserve`](crate::Operation::Reserve)
    /// needs that of every limit.
    #[must_use]
    pub fn can_reserve(&self) -> bool {
        self.parameters().can_reserve
    }

    /// Why a process cannot take units for later requests ([`PreparedPolicy::lease`](crate::PreparedPolicy::lease)); `None`
    /// if it can, because taking several units at once equals taking them one by one.
    #[must_use]
    pub fn why_no_lease(&self) -> Option<&'static str> {
        let Parameters { borrow, count_all, is_queue, counts_holds, .. } = self.parameters();
        match (is_queue, counts_holds, borrow, count_all) {
            (true, ..) => Some("it delays each request"),
            (_, true, ..) => Some("it limits open holds"),
            (_, _, true, _) => Some("a request may take more than is available"),
            (.., true) => Some("it counts denied requests"),
            _ => None,
        }
    }

    /// When it no longer counts units that were taken at once.
    #[must_use]
    pub fn forgets(&self) -> Forgets {
        match self {
            Self::Gcra(_) => Forgets::AtRate,
            Self::IntervalBucket(_) => Forgets::InSteps,
            Self::FixedWindow(_) => Forgets::ByWindow,
            Self::SlidingLog(_) | Self::SlidingCounter(_) => Forgets::AfterPeriod,
            Self::Concurrency(_) => Forgets::WhenSettled,
        }
    }

    /// Whether admitted requests are delayed, one behind the other (`leaky-queue`).
    #[must_use]
    pub fn is_queue(&self) -> bool {
        self.parameters().is_queue
    }

    /// Whether the state of a key grows with every request, up to the limit.
    #[must_use]
    pub fn keeps_log(&self) -> bool {
        self.parameters().keeps_log
    }

    /// Whether its window, or its steps, begin with the first units that an unused key takes. While units are held, an
    /// admitted request can therefore let another one pass earlier.
    #[must_use]
    pub fn begins_with_use(&self) -> bool {
        self.parameters().begins_with_use
    }

    /// Whether it limits the units of open holds (`concurrency`). Only [`Operation::Hold`](crate::Operation::Hold) takes from
    /// it.
    #[must_use]
    pub fn counts_holds(&self) -> bool {
        self.parameters().counts_holds
    }

    /// Upper bound on the units that are admitted in any interval of `micros` microseconds, half-open. With `borrow`,
    /// the last request may borrow more; charges are not counted.
    #[must_use]
    pub fn max_admitted(&self, micros: u64) -> u128 {
        of!(self, |limit| limit.max_admitted(micros))
    }

    /// Upper bound on the units that leave a queue in any interval of `micros` microseconds; `None` if it is not
    /// a queue.
    #[must_use]
    pub fn max_sent(&self, micros: u64) -> Option<u128> {
        of!(self, |limit| limit.max_sent(micros))
    }

    /// Quota and window for the `RateLimit-Policy` header: the rate as written, or where a burst is larger than
    /// `N`, the burst in the time that it takes to refill. `None` where windows differ in length, or have no
    /// whole number of microseconds.
    #[must_use]
    pub fn quota(&self) -> (u32, Option<Duration>) {
        of!(self, |limit| limit.quota())
    }

    /// Time until more units are available than after `decision`, which this limit alone made; `None` where all
    /// are available, and where the decision does not determine it: where `reset_after` may be that of open holds
    /// or of a debt.
    #[must_use]
    pub fn more_after(&self, decision: &Decision) -> Option<Duration> {
        if decision.reset_after.is_zero() {
            return None;
        }
        of!(self, |limit| limit.more_after(decision))
    }

    /// Time until this limit, the binding one of a policy, has its full quota after `decision`: at most
    /// `reset_after`, which is that of the slowest limit. Of a window that other limits outlast, only an upper bound is
    /// known while requests are allowed.
    #[must_use]
    pub fn binding_reset_after(&self, decision: &Decision) -> Duration {
        decision.reset_after.min(of!(self, |limit| limit.max_reset_after(decision)))
    }

    /// Describes the limit in words.
    #[must_use]
    pub fn describe(&self) -> LimitSummary {
        of!(self, |limit| limit.describe())
    }

    /// That share of the limit, or the whole where no valid limit is as small.
    #[must_use]
    pub fn share(&self, share: Share) -> Self {
        of!(self, |limit| limit.share(share).map(Self::from))
            .unwrap_or_else(|_: LimitError| self.clone())
    }

    /// Whether both decide alike: the same algorithm and parameters, names and defaults aside.
    pub(crate) fn decides_like(&self, other: &Self) -> bool {
        both!(self, other, |a, b| a.decides_like(b), else false)
    }

    pub(crate) fn is_same_algorithm(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }

    /// Whether both have the same period, as a duration. The period of a calendar is the length of its window around
    /// `now`.
    pub(crate) fn has_period_of(&self, other: &Self, now: Timestamp) -> bool {
        both!(self, other, |a, b| a.has_period_of(b, now), else false)
    }

    pub(crate) fn encode(&self, state: &State, out: &mut Writer) {
        dispatch!(self, state, |limit, own| limit.encode(own, out));
    }

    /// Time after which `units` are available.
    pub(crate) fn wait(&self, state: &State, now: Timestamp, units: u32) -> Retry {
        dispatch!(self, state, |limit, own| limit.wait(own, now, units))
    }

    /// Units that must be available for a request of `cost`: with `borrow`, one is enough.
    pub(crate) fn needed(&self, cost: u32) -> u32 {
        if self.borrow() { 1 } else { cost }
    }

    pub(crate) fn remaining(&self, state: &State, now: Timestamp) -> u32 {
        dispatch!(self, state, |limit, own| limit.remaining(own, now))
    }

    pub(crate) fn reset_after(&self, state: &State, now: Timestamp) -> u64 {
        dispatch!(self, state, |limit, own| limit.reset_after(own, now))
    }

    /// Requests of cost 1 that pass at `now` beside the holds of `ledger`, and the microseconds until the state
    /// equals none if the only change is that these expire. `None` where neither can be computed without charging the
    /// holds one by one.
    #[inline]
    pub(crate) fn beside_holds(
        &self,
        state: &State,
        now: Timestamp,
        ledger: &Ledger,
    ) -> Option<(u32, u64)> {
        let Self::Gcra(gcra) = self else { return None };
        let state = if let State::Gcra(state) = state { Some(state) } else { None };
        gcra.beside_holds(state, now, ledger)
    }

    /// Stores in `ledger` the values that [`beside_holds`](Self::beside_holds) reads from it.
    #[inline]
    pub(crate) fn keep_drain(&self, ledger: &mut Ledger) {
        if let Self::Gcra(gcra) = self {
            ledger.keep_drain(gcra.drain_rate());
        }
    }

    /// Time after which `units` are available, if the only change is that the holds of `expiries` expire.
    pub(crate) fn wait_beside(
        &self,
        state: &State,
        now: Timestamp,
        units: u32,
        expiries: &Expiries,
    ) -> Retry {
        dispatch!(self, state, |limit, own| limit.wait_beside(own, now, units, expiries))
    }

    /// As [`reset_after`](Self::reset_after), if the only change is that the holds of `expiries` expire.
    pub(crate) fn reset_after_beside(
        &self,
        state: &State,
        now: Timestamp,
        expiries: &Expiries,
    ) -> u64 {
        dispatch!(self, state, |limit, own| limit.reset_after_beside(own, now, expiries))
    }

    /// As [`lifetime`](Self::lifetime), if the only change is that the holds of `expiries` expire.
    pub(crate) fn lifetime_beside(
        &self,
        state: &State,
        now: Timestamp,
        expiries: &Expiries,
    ) -> u64 {
        dispatch!(self, state, |limit, own| limit.lifetime_beside(own, now, expiries))
    }

    /// Checks that it stores `state`.
    #[cfg(debug_assertions)]
    pub(crate) fn check_state(&self, state: &State) {
        dispatch!(self, state, |limit, own| match own {
            Some(own) => limit.check(own),
            None => assert_eq!(*state, State::None, "{limit} has the state of another algorithm"),
        });
    }

    /// The latest time in `state`.
    #[cfg(debug_assertions)]
    pub(crate) fn latest(&self, state: &State) -> u64 {
        fn of<A: Algorithm>(_limit: &A, state: Option<&A::State>) -> u64 {
            state.map_or(0, A::latest)
        }
        dispatch!(self, state, |limit, own| of(limit, own))
    }

    /// The time as at which it decides at `now`.
    fn decides_at(&self, state: &State, now: Timestamp) -> Timestamp {
        dispatch!(self, state, |limit, own| limit.decides_at(own, now))
    }

    pub(crate) fn lifetime(&self, state: &State, now: Timestamp) -> u64 {
        dispatch!(self, state, |limit, own| limit.lifetime(own, now))
    }

    pub(crate) fn delay(&self, state: &State, now: Timestamp) -> u64 {
        dispatch!(self, state, |limit, own| limit.delay(own, now))
    }

    pub(crate) fn used(&self, state: &State, now: Timestamp) -> u64 {
        dispatch!(self, state, |limit, own| limit.used(own, now))
    }

    pub(crate) fn window_counts(&self, state: &State, now: Timestamp) -> Option<(u64, u64)> {
        dispatch!(self, state, |limit, own| limit.window_counts(own, now))
    }

    pub(crate) fn window_at(&self, state: &State, now: Timestamp) -> Option<(u64, u64)> {
        dispatch!(self, state, |limit, own| limit.window_at(own, now))
    }

    pub(crate) fn charge(&self, state: &mut State, now: Timestamp, cost: u32) {
        change!(self, state, |limit, own| limit.charge(own, now, cost));
    }

    /// Charges holds, each when it expires.
    pub(crate) fn charge_all(&self, state: &mut State, expiries: &Expiries) {
        change!(self, state, |limit, own| limit.charge_all(own, expiries));
    }

    pub(crate) fn refund(&self, state: &mut State, now: Timestamp, cost: u32) {
        change!(self, state, |limit, own| limit.refund(own, now, cost));
    }

    pub(crate) fn with_used(&self, now: Timestamp, used: u64) -> State {
        let mut state = State::None;
        change!(self, &mut state, |limit, own| *own = limit.with_used(now, used));
        state
    }
}

/// The canonical policy string: the largest unit that divides the period, defaults left out, options in
/// alphabetical order.
impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        of!(self, |limit| limit.fmt(formatter))
    }
}

#[cfg(test)]
mod tests;
