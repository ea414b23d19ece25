//! The operations of every algorithm, and the words for its limits.

use std::{fmt::Display, time::Duration};

use crate::{
    bytes::{Head, Reader, StateError, Writer},
    calendar::Calendar,
    decision::{Decision, Retry},
    human,
    ledger::Expiry,
    parameters::LimitError,
    reached,
    share::Share,
    text::{LimitText, TextError},
    time::{Timestamp, as_micros},
};

/// The parameters of a limit of any algorithm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    /// `N`: units per period.
    pub(crate) limit: u32,
    /// `P`; the longest one where periods differ.
    pub(crate) period: Duration,
    /// Units that an idle key admits at once.
    pub(crate) capacity: u32,
    /// Units in a full bucket, which are admitted in addition to those of a period; 0 without a bucket.
    pub(crate) bucket_size: u32,
    /// Whether a request may take more than is available, and later ones pay for it.
    pub(crate) borrow: bool,
    /// Whether denied requests are recorded too.
    pub(crate) count_all: bool,
    /// Whether the time of admission can be computed in advance, as `reserve` needs.
    pub(crate) can_reserve: bool,
    /// Whether admitted requests are delayed, one behind the other.
    pub(crate) is_queue: bool,
    /// Whether the state grows with every request, up to the limit.
    pub(crate) keeps_log: bool,
    /// Whether it limits the units of open holds, and has no state.
    pub(crate) counts_holds: bool,
    /// Whether its window, or its steps, begin with the first units that an unused key takes.
    pub(crate) begins_with_use: bool,
}

impl Parameters {
    /// Those of `limit` units per `period`, without any option.
    pub(super) const fn new(limit: u32, period: Duration) -> Self {
        Self {
            limit,
            period,
            capacity: limit,
            bucket_size: 0,
            borrow: false,
            count_all: false,
            can_reserve: false,
            is_queue: false,
            keeps_log: false,
            counts_holds: false,
            begins_with_use: false,
        }
    }
}

/// One algorithm with its parameters, and its operations on the state of a key.
///
/// The state `None` is an unused key, which is the same as one that has recovered. Functions that take the state by
/// reference do not change it; `charge` and `refund` bring it up to `now` first. Costs are at least 1. A state may have
/// times later than `now` ([`decides_at`](Self::decides_at)).
pub(crate) trait Algorithm: Clone + PartialEq + Display {
    /// State of a key.
    type State: Clone;

    /// Names in policy strings, each with the options that it has.
    const NAMES: &'static [(&'static str, &'static [&'static str])];

    /// Other words for it, in lower case without separators: a policy string that has one gets a hint.
    const OTHER_WORDS: &'static [&'static str] = &[];

    /// First bytes of a limit in the byte form, flags aside; one for each form of its parameters.
    const CODES: &'static [u8];

    // Parameters

    /// Its parameters, as far as all algorithms have them.
    fn parameters(&self) -> Parameters;

    /// The calendar that its windows follow.
    fn calendar(&self) -> Option<&Calendar> {
        None
    }

    /// Whether both decide alike, names and defaults aside.
    fn decides_like(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether both have the same period around `now`.
    fn has_period_of(&self, other: &Self, _now: Timestamp) -> bool {
        self.parameters().period == other.parameters().period
    }

    // Policy string; `Display` writes it

    /// The limit that `text` states, which begins with one of [`NAMES`](Self::NAMES); `None` if another algorithm
    /// of that name has its form.
    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError>;

    // Bytes

    /// Flags that may be set beside a code.
    fn flags(code: u8) -> u8;

    /// Appends the limit and the state of a key.
    fn encode(&self, state: Option<&Self::State>, out: &mut Writer);

    /// Reads what [`encode`](Self::encode) wrote, from behind the `N` of the limit.
    fn decode(
        head: Head,
        input: &mut Reader<'_>,
    ) -> Result<(Self, Option<Self::State>), StateError>;

    /// Bytes by which a log makes the byte form longer; 0 for a state of fixed size.
    fn log_len(_state: &Self::State) -> usize {
        0
    }

    /// A copy of `state` whose cost does not depend on the size of a log.
    fn share_state(state: &mut Self::State) -> Self::State {
        state.clone()
    }

    /// Bytes that `state` keeps elsewhere.
    fn heap_size(_state: &Self::State) -> usize {
        0
    }

    // Decision

    /// Checks that `state` is one that this limit stores.
    #[cfg(debug_assertions)]
    fn check(&self, state: &Self::State);

    /// Time after which `cost` units are available; zero if they are now.
    fn wait(&self, state: Option<&Self::State>, now: Timestamp, cost: u32) -> Retry;

    /// Requests of cost 1 that are admitted at `now`.
    fn remaining(&self, state: Option<&Self::State>, now: Timestamp) -> u32;

    /// Microseconds until the state equals none.
    fn reset_after(&self, state: Option<&Self::State>, now: Timestamp) -> u64;

    /// The latest time in `state` at which the limit decided; 0 if it need not be known.
    fn latest(_state: &Self::State) -> u64 {
        0
    }

    /// The length of the period that begins at `start`, in microseconds.
    fn period_from(&self, _start: u64) -> u64 {
        as_micros(self.parameters().period)
    }

    /// `time`, a time of the state, if it is not later than `now` or the limit decides as at that time. Otherwise the
    /// clock was set back, and it is taken as `now`.
    #[inline]
    fn unless_set_back(&self, time: u64, now: u64) -> u64 {
        if time <= now || time - now < self.period_from(time) {
            return time;
        }
        reached!(ClockSetBackAtKey);
        now
    }

    /// The time as at which the limit decides at `now`. Time does not run back for a key: the latest time in `state`, if
    /// that is later, by less than a period.
    #[inline]
    fn decides_at(&self, state: Option<&Self::State>, now: Timestamp) -> Timestamp {
        let now = now.as_micros();
        let latest = self.unless_set_back(state.map_or(0, Self::latest), now);
        reached!(RequestBeforeStoredTime if latest > now);
        Timestamp::ahead(latest.max(now))
    }

    /// Microseconds until the state may be dropped. After a clock was set back, it is kept until the clock is there again.
    fn lifetime(&self, state: Option<&Self::State>, now: Timestamp) -> u64 {
        let latest = state.map_or(0, Self::latest).max(now.as_micros());
        let rest = self.reset_after(state, Timestamp::ahead(latest));
        latest - now.as_micros() + rest
    }

    /// Microseconds by which a request that is admitted at `now` is delayed.
    fn delay(&self, _state: Option<&Self::State>, _now: Timestamp) -> u64 {
        0
    }

    /// Units in use at `now`, rounded up.
    fn used(&self, state: Option<&Self::State>, now: Timestamp) -> u64;

    /// Units counted in the window before that of `now`, and in that of `now`, if it estimates by two windows.
    fn window_counts(&self, _state: Option<&Self::State>, _now: Timestamp) -> Option<(u64, u64)> {
        None
    }

    /// Start and end of the window of `now`, if units of one window do not count in the next.
    fn window_at(&self, _state: Option<&Self::State>, _now: Timestamp) -> Option<(u64, u64)> {
        None
    }

    /// Takes `cost` units, whether or not they fit.
    fn charge(&self, state: &mut Option<Self::State>, now: Timestamp, cost: u32);

    /// Charges holds, each when it expires.
    fn charge_all(&self, state: &mut Option<Self::State>, expiries: &[Expiry]) {
        for expiry in expiries {
            self.charge(state, expiry.time(), expiry.units);
        }
    }

    /// Gives back up to `cost` units.
    fn refund(&self, state: &mut Option<Self::State>, now: Timestamp, cost: u32);

    // While holds are open, which are charged when they expire

    /// Time after which `units` are available, which are not now, and fit. `expiries` are those of the open holds.
    fn wait_beside(
        &self,
        state: Option<&Self::State>,
        now: Timestamp,
        units: u32,
        expiries: &[Expiry],
    ) -> Retry {
        search(self, state, now, units, expiries)
    }

    /// As [`reset_after`](Self::reset_after), with at least one open hold.
    fn reset_after_beside(
        &self,
        state: Option<&Self::State>,
        now: Timestamp,
        expiries: &[Expiry],
    ) -> u64 {
        let mut state = state.cloned();
        self.refund(&mut state, now, 0);
        drained(self, state, now, expiries, Self::reset_after)
    }

    /// As [`lifetime`](Self::lifetime), with at least one open hold.
    fn lifetime_beside(
        &self,
        state: Option<&Self::State>,
        now: Timestamp,
        expiries: &[Expiry],
    ) -> u64 {
        drained(self, state.cloned(), now, expiries, Self::lifetime)
    }

    // Migration

    /// State in which `used` units (at most [`MAX_COUNT`]) were taken at `now`.
    fn with_used(&self, now: Timestamp, used: u64) -> Option<Self::State>;

    /// `state`, migrated from `old` to this limit.
    fn migrate(&self, old: &Self, state: Self::State, now: Timestamp) -> Option<Self::State>;

    /// This limit for reading a state that was written under `old`, where that is possible without
    /// [`migrate`](Self::migrate): it then answers as this limit does of the migrated state.
    fn reader(&self, _old: &Self, _state: &Self::State, _now: Timestamp) -> Option<Self> {
        None
    }

    // Bounds and description

    /// Upper bound on the units that are admitted in any interval of `micros`. With `borrow`, the last request may
    /// borrow more; charges are not counted.
    fn max_admitted(&self, micros: u64) -> u128;

    /// Maximum number of units that leave a queue in any interval of `micros`; `None` if it is not a queue.
    fn max_sent(&self, _micros: u64) -> Option<u128> {
        None
    }

    /// Quota and window as the `RateLimit-Policy` header states them.
    fn quota(&self) -> (u32, Option<Duration>) {
        let Parameters { limit, period, .. } = self.parameters();
        (limit, Some(period))
    }

    /// Time until more units are available than after `decision`, if the decision determines it. Something is
    /// in use. Open holds can only make it shorter, and by less than a refill.
    fn more_after(&self, decision: &Decision) -> Option<Duration>;

    /// Upper bound on the time until this limit has its full quota after `decision`, which it determined; of open holds
    /// and a debt, only what a denial waits for is known.
    fn max_reset_after(&self, decision: &Decision) -> Duration {
        let _ = decision;
        self.parameters().period
    }

    /// Describes the limit in words.
    fn describe(&self) -> LimitSummary;

    // Scaling

    /// That share of the limit.
    fn share(&self, share: Share) -> Result<Self, LimitError>;
}

/// [`Algorithm::wait_beside`] of every algorithm. As time passes without requests, the free units of a limit never
/// shrink, because an expiry moves held units into use. Therefore a binary search finds the first expiry after which the
/// units are available.
pub(super) fn search<A: Algorithm>(
    limit: &A,
    state: Option<&A::State>,
    now: Timestamp,
    units: u32,
    expiries: &[Expiry],
) -> Retry {
    let capacity = limit.parameters().capacity;
    let passes = |state: Option<&A::State>, at: u64, held: u64| {
        let units = u32::try_from(u64::from(units) + held).ok().filter(|&it| it <= capacity)?;
        match limit.wait(state, Timestamp::ahead(at), units) {
            Retry::After(wait) => Some(at + as_micros(wait)),
            Retry::Never => None,
        }
    };
    // After the clock was set back, later times are taken as `now`, for this and for all expiries.
    let mut state = state.cloned();
    limit.refund(&mut state, now, 0);
    let mut held = expiries.iter().map(|it| u64::from(it.units)).sum();
    let mut since = now.as_micros();
    // After the first `done` expiries, at `since`, it does not pass; after the first `end`, it does, or they are all.
    let (mut done, mut end) = (0, expiries.len());
    while end - done > 1 {
        let middle = done + (end - done) / 2;
        let (some, mut later) = (&expiries[done..middle], state.clone());
        limit.charge_all(&mut later, some);
        let left = held - some.iter().map(|it| u64::from(it.units)).sum::<u64>();
        let at = expiries[middle - 1].at;
        if passes(later.as_ref(), at, left) == Some(at) {
            end = middle;
        } else {
            (state, since, held, done) = (later, at, left, middle);
        }
    }
    // It passes before the next expiry, at it, or, after the last, when the units then in use have drained.
    let Some(next) = expiries.get(done) else { return limit.wait(state.as_ref(), now, units) };
    let found = passes(state.as_ref(), since, held).filter(|&at| at < next.at).or_else(|| {
        limit.charge(&mut state, next.time(), next.units);
        passes(state.as_ref(), next.at, held - u64::from(next.units))
    });
    found.map_or(Retry::Never, |at| Retry::after_micros(at - now.as_micros()))
}

/// The time that `drain` returns, from `now` on, after all expiries.
fn drained<A: Algorithm>(
    limit: &A,
    mut state: Option<A::State>,
    now: Timestamp,
    expiries: &[Expiry],
    drain: fn(&A, Option<&A::State>, Timestamp) -> u64,
) -> u64 {
    limit.charge_all(&mut state, expiries);
    let last = expiries.last().map_or(now, |it| it.time());
    last.as_micros() - now.as_micros() + drain(limit, state.as_ref(), last)
}

/// A count that is known to fit, for a decision.
pub(super) fn units(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// A 128-bit count of microseconds in 64 bits, which it fits in.
pub(super) fn narrow(micros: u128) -> u64 {
    u64::try_from(micros).unwrap_or(u64::MAX)
}

/// A limit in words that follow the labels "at once", "sustained" and "denied".
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitSummary {
    /// The units that an idle key admits at once: "16 units after idling".
    pub at_once: String,
    /// The rate that it admits for ever: "30 units per 1m: one each 2s".
    pub sustained: String,
    /// The wait of a denied client: "waits 2s at most for 1 unit, 32s for 16".
    pub denied: String,
}

/// The text after the wait of a denied client, if denied requests may be recorded.
pub(crate) const fn counting_denied(all: bool) -> &'static str {
    if all { "; denied requests count too, and extend the wait" } else { "" }
}

/// The units that a bucket of `size` units admits at once.
pub(crate) fn bucket_at_once(size: u32, borrow: bool) -> String {
    let units = human::units(size.into());
    let more = if borrow { "; one request may take more, if 1 unit is available" } else { "" };
    format!("{units} after idling{more}")
}

/// `waits 2s at most for 1 unit, 32s for 16`: the waits for one unit and for a full bucket, in microseconds.
pub(crate) fn bucket_waits(one: &str, size: u32, full: u64) -> String {
    let more = if size > 1 { format!(", {} for {size}", human::span(full)) } else { String::new() };
    format!("waits {one} at most for {}{more}", human::units(1))
}
