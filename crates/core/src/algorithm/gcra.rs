//! Generic cell rate algorithm, virtual-scheduling form (ITU-T I.371, annex A), under its four
//! names: `gcra`, `token-bucket`, `leaky-bucket` (the meter) and `leaky-queue` (traffic shaping).
//!
//! A key is one number: the theoretical arrival time (TAT), when the next unit would come if
//! traffic were perfectly paced. A token bucket that is refilled continuously holds
//! `burst - (tat - now) / T` tokens; a leaky bucket as a meter holds `(tat - now) / T` units: the
//! same number, read from the other end. The queue also tells whom it admits when to depart.
//!
//! Time is counted in *ticks* of `1/n` µs, where `n/p` is the rate in lowest terms (units per µs).
//! The emission interval `T` is then exactly `p` ticks, so no rate is ever rounded.
//!
//! Invariants, each a property in the tests:
//! - a TAT that is not in the future is the same as no state;
//! - waiting `retry_after` is enough, and a microsecond less is not;
//! - in any interval of length `t` at most `burst + t*N/P` units pass (without `borrow`, charges).

use std::time::Duration;

use super::{
    Algorithm, LimitError, MAX_COUNT, MAX_DRAIN, check_period, check_units, narrow, units,
};
use crate::{
    decision::{Decision, Outcome, Retry},
    time::Timestamp,
};

/// What the algorithm is called in a policy. All but the queue decide alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GcraName {
    /// `gcra`: admits `burst` at once after idling.
    Gcra,
    /// `token-bucket`: holds `burst` tokens when full, refilled continuously.
    TokenBucket,
    /// `leaky-bucket`: holds `capacity` units and leaks; a meter, which delays nobody.
    LeakyBucket,
    /// `leaky-queue`: holds `capacity` units, and lets one go each `T`, in order.
    LeakyQueue,
}

/// `N` units per period `P`, at most `burst` at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The burst, and what it takes up in ticks, where [`Gcra::judge`] knows the limit; else 0.
    everyday_burst: u32,
    everyday_depth: u64,
}

/// The most ticks that [`Gcra::judge`] reckons with: sums of two fit in 64 bits.
const MAX_EVERYDAY_TICKS: u64 = 1 << 62;

/// What a take comes to under a limit of this family; see [`Gcra::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// May it pass?
    pub allowed: bool,
    /// By how many ticks the TAT lies after now, once it is decided.
    pub after: u64,
    /// By how many it would if the request passed.
    needed: u64,
}

/// What a key keeps: its TAT, in ticks since the Unix epoch.
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
        let word = match name {
            GcraName::Gcra | GcraName::TokenBucket => "burst",
            GcraName::LeakyBucket | GcraName::LeakyQueue => "capacity",
        };
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
        let (everyday_burst, everyday_depth) = match u64::try_from(depth) {
            Ok(depth) if depth <= MAX_EVERYDAY_TICKS && !borrow && name != GcraName::LeakyQueue => {
                (burst, depth)
            }
            _ => (0, 0),
        };
        Ok(Self {
            name,
            limit,
            period,
            burst,
            borrow,
            scale,
            interval,
            everyday_burst,
            everyday_depth,
        })
    }

    /// What it is called.
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

    /// `B`: what an idle key admits at once.
    #[must_use]
    pub const fn burst(&self) -> u32 {
        self.burst
    }

    /// Whether a request may take more than is there, later ones paying for it.
    #[must_use]
    pub const fn borrow(&self) -> bool {
        self.borrow
    }

    /// Ticks in a microsecond: the numerator of the rate in lowest terms, `n`. One unit takes up
    /// as many ticks as the denominator, so no rate is ever rounded.
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

    /// Judges a take of `cost` units on a key whose TAT lies `debt` ticks after now: what
    /// [`apply`](crate::apply) does under a policy of this one limit, for stores that keep a TAT in
    /// a form of their own. [`tell`](Self::tell) makes a [`Decision`] of it.
    ///
    /// `None` for what is not an everyday take: one of no unit or of more than the burst, under a
    /// limit that borrows or a queue, or where 64 bits might not hold the ticks. It is `apply`'s to
    /// answer.
    #[inline(always)]
    #[must_use]
    pub fn judge(&self, debt: u64, cost: u32) -> Option<Judgement> {
        // An irregular limit has an everyday burst of 0.
        if cost.wrapping_sub(1) >= self.everyday_burst || debt > MAX_EVERYDAY_TICKS {
            return None;
        }
        let needed = debt + u64::from(cost) * self.interval;
        let allowed = needed <= self.everyday_depth;
        Some(Judgement { allowed, after: if allowed { needed } else { debt }, needed })
    }

    /// What was judged under this limit, as a decision.
    // Apart from `judge`, so that a store does first what the next request waits for.
    #[inline(always)]
    pub fn tell(&self, judgement: &Judgement) -> Decision {
        let Judgement { allowed, after, needed } = *judgement;
        let outcome = if allowed {
            Outcome::Allow { delay: Duration::ZERO }
        } else {
            Outcome::Deny {
                retry: Retry::after_micros(self.micros_of(needed - self.everyday_depth)),
            }
        };
        let free = self.everyday_depth.saturating_sub(after);
        // A denied key has less than one unit: the common case needs no division.
        let remaining = if free < self.interval { 0 } else { units(free / self.interval) };
        let reset_after = Duration::from_micros(self.micros_of(after));
        Decision { outcome, limit: self.burst, remaining, reset_after, binding: 0 }
    }

    /// Whether a debt is one that requests may run up, without charges and borrowing: it then
    /// drains in the time that a full burst takes.
    #[must_use]
    pub fn holds(&self, debt: u128) -> bool {
        debt <= self.span(self.burst)
    }

    /// Whole units that are free when so much is owed.
    fn free(&self, debt: u128) -> u32 {
        let free = self.span(self.burst).saturating_sub(debt);
        units(narrow(free / u128::from(self.interval)))
    }

    /// How long a request that passes at `now` must be held back: a queue lets it go when those
    /// before it have gone.
    pub(crate) fn delay(&self, state: Option<&State>, now: Timestamp) -> u64 {
        match self.name {
            GcraName::LeakyQueue => self.micros(self.debt(state, now)),
            GcraName::Gcra | GcraName::TokenBucket | GcraName::LeakyBucket => 0,
        }
    }

    /// What `state` becomes under this limit when it was written under `old`.
    pub(crate) fn carry(&self, old: &Self, state: Option<&State>, now: Timestamp) -> Option<State> {
        let debt = old.debt(state, now);
        if (self.scale, self.interval) == (old.scale, old.interval) {
            return self.with_debt(now, debt);
        }
        // Millionths of a unit in use; 2^50 units are 2^70 of them, and 2^115 ticks, at most.
        let used = (debt * 1_000_000).div_ceil(u128::from(old.interval));
        let used = used.min(u128::from(MAX_COUNT) * 1_000_000);
        let debt = (used * u128::from(self.interval)).div_ceil(1_000_000);
        self.with_debt(now, self.saturated(debt))
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

    /// Ticks as microseconds, rounded up, so that whoever waits that long is never early.
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

    fn capacity(&self) -> u32 {
        self.burst
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        let asked = if self.borrow { 1 } else { cost };
        if asked > self.burst {
            return Retry::Never;
        }
        let new = self.debt(state, now) + self.span(asked);
        Retry::after_micros(self.micros(new.saturating_sub(self.span(self.burst))))
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
}

fn greatest_common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
