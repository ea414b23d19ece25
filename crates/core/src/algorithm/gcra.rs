//! Generic cell rate algorithm, virtual-scheduling form (ITU-T I.371, annex A), under its four
//! names: `gcra`, `token-bucket`, `leaky-bucket` (the meter) and `leaky-queue` (traffic shaping).
//!
//! A key is one number: the theoretical arrival time (TAT), when the next unit would come if
//! traffic were perfectly paced. A token bucket that is refilled continuously holds
//! `burst - (tat - now) / T` tokens; a leaky bucket as a meter holds `(tat - now) / T` units: the
//! same number, read from the other end. The queue also returns the time of departure of a request that it admits.
//!
//! Time is counted in *ticks* of `1/n` µs, where `n/p` is the rate in lowest terms (units per µs).
//! The emission interval `T` is then exactly `p` ticks, so no rate is ever rounded.
//!
//! Invariants, each a property in the tests:
//! - a TAT that is not in the future is the same as no state;
//! - waiting `retry_after` is enough, and a microsecond less is not;
//! - in any interval of length `t` at most `burst + t*N/P` units pass (without `borrow`, charges).

use std::{fmt, time::Duration};

use super::api::{
    Algorithm, LimitSummary, Parameters, bucket_at_once, bucket_waits, narrow, units,
};
use crate::{
    bytes::{BORROW, Head, MAX_COUNT, MAX_DRAIN, Reader, StateError, Writer},
    decision::{Decision, Outcome, Retry},
    drain::DrainRate,
    human,
    ledger::Ledger,
    parameters::{LimitError, check_period, check_units},
    reached,
    share::Share,
    text::{LimitText, TextError, write_option, write_rate},
    time::Timestamp,
};

/// The name of the algorithm in a policy. All but the queue decide alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GcraName {
    /// `gcra`: admits `burst` at once after idling.
    Gcra,
    /// `token-bucket`: holds `burst` tokens when full, refilled continuously.
    TokenBucket,
    /// `leaky-bucket`: holds `capacity` units and leaks; a meter, which delays no request.
    LeakyBucket,
    /// `leaky-queue`: holds `capacity` units, and lets one go each `T`, in order.
    LeakyQueue,
}

impl GcraName {
    /// Each at its code in the byte form, from 1 on.
    const ALL: [Self; 4] = [Self::Gcra, Self::TokenBucket, Self::LeakyBucket, Self::LeakyQueue];

    /// Its word in a policy string.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gcra => "gcra",
            Self::TokenBucket => "token-bucket",
            Self::LeakyBucket => "leaky-bucket",
            Self::LeakyQueue => "leaky-queue",
        }
    }

    /// The word for `B`.
    const fn size_word(self) -> &'static str {
        match self {
            Self::Gcra | Self::TokenBucket => "burst",
            Self::LeakyBucket | Self::LeakyQueue => "capacity",
        }
    }
}

/// `N` units per period `P`, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gcra {
    name: GcraName,
    limit: u32,
    period: u64,
    burst: u32,
    borrow: bool,
    /// Ticks in a microsecond: the numerator of the rate in lowest terms.
    scale: u32,
    /// Ticks from one unit to the next: the denominator of the rate in lowest terms.
    interval: u64,
    /// The burst, and its span in ticks, if [`Gcra::try_take`] supports the limit; else 0.
    narrow_burst: u32,
    narrow_depth: u64,
}

/// Greatest number of ticks that [`Gcra::try_take`] accepts: sums of two fit in 64 bits.
const MAX_NARROW_TICKS: u64 = 1 << 62;

/// Result of a take under a limit of this family; see [`Gcra::try_take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GcraTake {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// Ticks by which the TAT exceeds `now` after the decision.
    pub after: u64,
    /// Ticks by which it would, had the request been allowed.
    needed: u64,
}

/// State of a key: its TAT, in ticks since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) tat: u128,
}

impl Gcra {
    /// `limit` units per `period` (1 ms ..= 366 days), `burst` at once (`limit` if none is given).
    ///
    /// With `borrow` a request passes when one whole unit is free, whatever its cost; the balance
    /// then goes below zero, and later requests wait until it is repaid.
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain, a burst that would take more than 2^50 µs to
    /// drain, and for a queue that borrows.
    pub fn new(
        name: GcraName,
        limit: u32,
        period: Duration,
        burst: Option<u32>,
        borrow: bool,
    ) -> Result<Self, LimitError> {
        let limit = check_units("limit", limit)?;
        let period = check_period("period", period)?;
        let word = name.size_word();
        let burst = check_units(word, burst.unwrap_or(limit))?;
        if borrow && name == GcraName::LeakyQueue {
            return Err(LimitError::Combination(
                "invalid option `borrow` for leaky-queue: expected `leaky-bucket` or `token-bucket`",
            ));
        }
        let divisor = greatest_common_divisor(u64::from(limit), period);
        let scale = units(u64::from(limit) / divisor);
        let interval = period / divisor;
        let depth = u128::from(burst) * u128::from(interval);
        if depth > u128::from(MAX_DRAIN) * u128::from(scale) {
            return Err(LimitError::Drain { name: word, value: burst });
        }
        let (narrow_burst, narrow_depth) = match u64::try_from(depth) {
            Ok(depth) if depth <= MAX_NARROW_TICKS && !borrow && name != GcraName::LeakyQueue => {
                (burst, depth)
            }
            _ => (0, 0),
        };
        Ok(Self { name, limit, period, burst, borrow, scale, interval, narrow_burst, narrow_depth })
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> GcraName {
        self.name
    }

    /// `N`: units per period.
    #[must_use]
    pub const fn limit(&self) -> u32 {
        self.limit
    }

    /// `P`: 1 ms ..= 366 days.
    #[must_use]
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period)
    }

    /// `B`: the units that an idle key admits at once.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Whether a request may take more than is there, later ones paying for it.
    #[must_use]
    pub const fn borrow(&self) -> bool {
        self.borrow
    }

    /// Ticks in a microsecond: the numerator of the rate in lowest terms, `n`. One unit takes as many ticks as the
    /// denominator, so no rate is ever rounded.
    #[must_use]
    pub const fn scale(&self) -> u32 {
        self.scale
    }

    /// Bytes that the rest of a TAT beyond its whole microseconds, which is less than
    /// [`scale`](Self::scale) ticks, takes up in the byte form: 0 where a unit takes up whole
    /// microseconds.
    #[must_use]
    pub const fn rest_width(&self) -> usize {
        (u32::BITS - (self.scale - 1).leading_zeros()).div_ceil(8) as usize
    }

    /// Takes `cost` units from a key whose TAT lies `debt` ticks after now: what [`apply`](crate::apply) does
    /// under a policy of this one limit, for stores that keep a TAT in a form of their own.
    /// [`decision`](Self::decision) makes a [`Decision`] of it.
    ///
    /// `None` if `apply` has to decide: a cost of 0 or of more than the burst, a limit that borrows, a queue, and
    /// ticks that may not fit in 64 bits.
    #[inline(always)]
    #[must_use]
    pub fn try_take(&self, debt: u64, cost: u32) -> Option<GcraTake> {
        // A limit that is not decided here has a narrow burst of 0.
        if cost.wrapping_sub(1) >= self.narrow_burst || debt > MAX_NARROW_TICKS {
            return None;
        }
        let needed = debt + u64::from(cost) * self.interval;
        let allowed = needed <= self.narrow_depth;
        debug_assert_eq!(
            allowed,
            u128::from(debt) + self.span(cost) <= self.span(self.burst),
            "the narrow decision is that of 128 bits"
        );
        Some(GcraTake { allowed, after: if allowed { needed } else { debt }, needed })
    }

    /// The decision on a take under this limit.
    // Apart from `try_take`, so that a store does first what the next request waits for.
    #[inline(always)]
    pub fn decision(&self, take: &GcraTake) -> Decision {
        let GcraTake { allowed, after, needed } = *take;
        let outcome = if allowed {
            Outcome::Allow { delay: Duration::ZERO }
        } else {
            Outcome::Deny { retry: Retry::after_micros(self.micros_of(needed - self.narrow_depth)) }
        };
        let free = self.narrow_depth.saturating_sub(after);
        // A denied key has less than one unit: the common case needs no division.
        let remaining = if free < self.interval { 0 } else { units(free / self.interval) };
        let reset_after = Duration::from_micros(self.micros_of(after));
        Decision { outcome, limit: self.burst, remaining, reset_after, binding: 0 }
    }

    /// As [`Limit::beside_holds`](super::Limit::beside_holds), where all fits in 64 bits.
    pub(crate) fn beside_holds(
        &self,
        state: Option<&State>,
        now: Timestamp,
        ledger: &Ledger,
    ) -> Option<(u32, u64)> {
        let debt = u64::try_from(self.debt(state, now)).ok()?;
        let held = ledger.held(true).checked_mul(self.interval)?;
        let all = debt.checked_add(held)?;
        let owed = ledger.owed(self.drain_rate(), now)?.max(all);
        let fits = u128::from(owed) < self.ticks(MAX_DRAIN);
        fits.then(|| (self.free(all.into()), self.micros_of(owed)))
    }

    pub(crate) fn drain_rate(&self) -> DrainRate {
        DrainRate { ticks_per_unit: self.interval, ticks_per_micro: self.scale.into() }
    }

    fn is_queue(&self) -> bool {
        self.name == GcraName::LeakyQueue
    }

    /// Whether a debt is one that requests may run up, without charges and borrowing: it then
    /// drains in the time that a full burst takes.
    #[must_use]
    pub fn is_within_burst(&self, debt: u128) -> bool {
        debt <= self.span(self.burst)
    }

    /// Whole units that are free with this debt.
    fn free(&self, debt: u128) -> u32 {
        let free = self.span(self.burst).saturating_sub(debt);
        match u64::try_from(free) {
            Ok(free) => units(free / self.interval),
            Err(_) => units(narrow(free / u128::from(self.interval))),
        }
    }

    /// Whole units that come back in `micros`.
    fn refilled(&self, micros: u64) -> u128 {
        (u128::from(micros) * u128::from(self.limit)).div_ceil(u128::from(self.period))
    }

    /// Ticks by which the TAT lies in the future.
    pub(crate) fn debt(&self, state: Option<&State>, now: Timestamp) -> u128 {
        state.map_or(0, |state| state.tat.saturating_sub(self.ticks(now.as_micros())))
    }

    pub(crate) fn with_debt(&self, now: Timestamp, debt: u128) -> Option<State> {
        (debt > 0).then(|| State { tat: self.ticks(now.as_micros()) + debt })
    }

    /// `debt` ticks, or as many as drain in the longest time allowed.
    fn saturated(&self, debt: u128) -> u128 {
        debt.min(self.ticks(MAX_DRAIN))
    }

    fn ticks(&self, micros: u64) -> u128 {
        u128::from(micros) * u128::from(self.scale)
    }

    /// Ticks that `units` take up.
    fn span(&self, units: u32) -> u128 {
        u128::from(units) * u128::from(self.interval)
    }

    /// Ticks as microseconds, rounded up, so that a client that waits that long is never early.
    fn micros(&self, ticks: u128) -> u64 {
        match u64::try_from(ticks) {
            Ok(ticks) => self.micros_of(ticks),
            Err(_) => narrow(ticks.div_ceil(u128::from(self.scale))),
        }
    }

    /// [`micros`](Self::micros) of what fits in 64 bits, which is divided several times faster.
    #[inline(always)]
    const fn micros_of(&self, ticks: u64) -> u64 {
        if self.scale == 1 { ticks } else { ticks.div_ceil(self.scale as u64) }
    }
}

impl Algorithm for Gcra {
    type State = State;

    const NAMES: &'static [(&'static str, &'static [&'static str])] = &[
        ("gcra", &["borrow", "burst"]),
        ("token-bucket", &["borrow", "burst", "refill"]),
        ("leaky-bucket", &["borrow", "capacity"]),
        ("leaky-queue", &["capacity"]),
    ];
    const CODES: &'static [u8] = &[1, 2, 3, 4];

    fn parameters(&self) -> Parameters {
        // A queue sends one by one, and so does a bucket of one.
        let one_by_one = self.is_queue() || self.burst == 1;
        Parameters {
            capacity: self.burst,
            bucket_size: if one_by_one { 0 } else { self.burst },
            borrow: self.borrow,
            can_reserve: true,
            is_queue: self.is_queue(),
            ..Parameters::new(self.limit, self.period())
        }
    }

    fn decides_like(&self, other: &Self) -> bool {
        let parameters = |it: &Self| (it.limit, it.period, it.burst, it.borrow);
        parameters(self) == parameters(other)
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        let (period, burst, borrow) = (text.period()?, text.burst()?, text.has("borrow"));
        let words = [("continuous", false), ("interval", true)];
        if text.word_option("refill", &words)? == Some(true) {
            return Ok(None);
        }
        let name = GcraName::ALL.into_iter().find(|name| name.as_str() == text.name());
        let name = name.expect("the name is one of this algorithm");
        Ok(Some(Self::new(name, text.limit()?, period, burst, borrow)?))
    }

    fn flags(code: u8) -> u8 {
        if GcraName::LeakyQueue as u8 + 1 == code { 0 } else { BORROW }
    }

    fn encode(&self, state: Option<&State>, out: &mut Writer) {
        out.head(self.name as u8 + 1, if self.borrow { BORROW } else { 0 }, self.limit);
        out.uint(self.period, 6);
        out.uint(self.burst.into(), 4);
        let (tat, scale) = (state.map_or(0, |state| state.tat), u128::from(self.scale));
        out.uint(narrow(tat / scale), 7);
        out.uint(narrow(tat % scale), self.rest_width());
    }

    fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, Option<State>), StateError> {
        let name = GcraName::ALL[usize::from(head.code - 1)];
        let (period, burst) = (input.period()?, input.u32()?);
        let limit = Self::new(name, head.limit, period, Some(burst), head.has(BORROW))?;
        let width = limit.rest_width();
        let (whole, part) = (input.time()?, input.uint(width)?);
        if part >= u64::from(limit.scale) {
            return Err(StateError::Damaged("a part of a microsecond is out of bounds"));
        }
        let tat = u128::from(whole) * u128::from(limit.scale) + u128::from(part);
        Ok((limit, (tat > 0).then_some(State { tat })))
    }

    #[cfg(debug_assertions)]
    fn check(&self, state: &State) {
        assert!(state.tat > 0, "a TAT of 0 is no state");
        let latest = self.ticks(crate::bytes::MAX_TIME + MAX_DRAIN);
        assert!(state.tat <= latest, "a TAT is later than a debt that saturates");
    }

    /// A queue sends a request when those before it are sent.
    fn delay(&self, state: Option<&State>, now: Timestamp) -> u64 {
        if self.is_queue() { self.micros(self.debt(state, now)) } else { 0 }
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        if cost > self.burst {
            return Retry::Never;
        }
        let over = (self.debt(state, now) + self.span(cost)).saturating_sub(self.span(self.burst));
        if over == 0 { Retry::NOW } else { Retry::after_micros(self.micros(over)) }
    }

    fn remaining(&self, state: Option<&State>, now: Timestamp) -> u32 {
        self.free(self.debt(state, now))
    }

    fn reset_after(&self, state: Option<&State>, now: Timestamp) -> u64 {
        self.micros(self.debt(state, now))
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        narrow(self.debt(state, now).div_ceil(u128::from(self.interval))).min(MAX_COUNT)
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let debt = self.debt(state.as_ref(), now) + self.span(cost);
        *state = self.with_debt(now, self.saturated(debt));
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let debt = self.debt(state.as_ref(), now).saturating_sub(self.span(cost));
        *state = self.with_debt(now, debt);
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        self.with_debt(now, self.saturated(u128::from(used) * u128::from(self.interval)))
    }

    fn migrate(&self, old: &Self, state: State, now: Timestamp) -> Option<State> {
        let debt = old.debt(Some(&state), now);
        if (self.scale, self.interval) == (old.scale, old.interval) {
            reached!(MigratedGcraSameRate if debt > 0);
            return self.with_debt(now, debt);
        }
        reached!(MigratedGcraOtherRate if debt > 0);
        // Millionths of a unit in use; 2^50 units are 2^70 of them, and 2^115 ticks, at most.
        let used = (debt * 1_000_000).div_ceil(u128::from(old.interval));
        let used = used.min(u128::from(MAX_COUNT) * 1_000_000);
        let debt = (used * u128::from(self.interval)).div_ceil(1_000_000);
        self.with_debt(now, self.saturated(debt))
    }

    fn max_admitted(&self, micros: u64) -> u128 {
        u128::from(self.burst) + self.refilled(micros).saturating_sub(1)
    }

    fn max_sent(&self, micros: u64) -> Option<u128> {
        self.is_queue().then(|| self.refilled(micros))
    }

    fn quota(&self) -> (u32, Option<Duration>) {
        if self.burst <= self.limit {
            return (self.limit, Some(self.period()));
        }
        let (full, limit) =
            (u128::from(self.period) * u128::from(self.burst), u128::from(self.limit));
        let whole = full.is_multiple_of(limit);
        (self.burst, whole.then(|| Duration::from_micros(narrow(full / limit))))
    }

    /// One more unit is available when at most `burst - remaining - 1` are in use: after the time of one unit at most, and
    /// the microsecond to which `reset_after` is rounded up. A longer time is that of open holds, or of a debt.
    fn more_after(&self, decision: &Decision) -> Option<Duration> {
        let kept = u128::from(self.burst.saturating_sub(decision.remaining).saturating_sub(1));
        let (period, limit) = (u128::from(self.period), u128::from(self.limit));
        let left = (decision.reset_after.as_micros() * limit).saturating_sub(kept * period);
        (left < period + limit).then(|| Duration::from_micros(narrow(left.div_ceil(limit))))
    }

    /// After the wait of a denial, at most all other units of the burst are still in use.
    fn max_reset_after(&self, decision: &Decision) -> Duration {
        let (wait, used) = match decision.retry() {
            Some(Retry::After(wait)) => (wait, self.burst - 1),
            Some(Retry::Never) | None => {
                (Duration::ZERO, self.burst.saturating_sub(decision.remaining))
            }
        };
        wait + Duration::from_micros(self.micros(self.span(used)))
    }

    fn describe(&self) -> LimitSummary {
        let n = u64::from(self.limit);
        let one = human::span_of(self.period, n);
        let pace = if self.is_queue() { "one goes each" } else { "one each" };
        let full = u128::from(self.burst) * u128::from(self.period);
        LimitSummary {
            at_once: if self.is_queue() {
                format!("{} into the queue, when it is empty", human::units(self.burst.into()))
            } else {
                bucket_at_once(self.burst, self.borrow)
            },
            sustained: format!(
                "{} per {}: {pace} {one}",
                human::units(n),
                human::span(self.period)
            ),
            denied: if self.borrow {
                format!("waits until what was borrowed is repaid, one unit each {one}")
            } else {
                bucket_waits(&one, self.burst, narrow(full.div_ceil(u128::from(n))))
            },
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        share.bucket(self.limit, self.period(), |units, period| {
            Self::new(self.name, units, period, Some(share.units(self.burst)), self.borrow)
        })
    }
}

impl fmt::Display for Gcra {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(formatter, self.name.as_str(), self.limit, self.period)?;
        write_option(formatter, self.borrow, "borrow")?;
        let size = format_args!("{}={}", self.name.size_word(), self.burst);
        write_option(formatter, self.burst != self.limit, size)
    }
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
