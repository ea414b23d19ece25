//! Token bucket refilled in steps: `A` tokens each interval `I` (`refill=interval`).
//!
//! The bucket of ITU-T I.371 with a coarse clock, as many services word their plans ("100 more
//! each hour"). The steps are counted from the first request after the bucket was full.
//!
//! Invariants: a full bucket is the same as no state; a step is never lost or gained, because `last` moves by whole
//! intervals only; in any interval of length `t` at most `B - 1 + min(A, B)*ceil(t/I)` pass: the steps begin with a request.

use std::{fmt, time::Duration};

use super::api::{
    Algorithm, LimitSummary, Parameters, bucket_at_once, bucket_waits, narrow, units,
};
use crate::{
    bytes::{BORROW, Head, MAX_COUNT, MAX_DRAIN, Reader, StateError, Writer},
    decision::{Decision, Retry},
    human,
    parameters::{LimitError, check_period, check_units},
    reached,
    share::Share,
    text::{LimitText, TextError, write_option, write_rate},
    time::Timestamp,
};

const CODE: u8 = 5;

/// `A` tokens each interval `I`, at most `B` in all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IntervalBucket {
    amount: u32,
    interval: u64,
    burst: u32,
    borrow: bool,
}

/// State of a key: the tokens that are missing from a full bucket, and the time of the last step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    used: u128,
    last: u64,
}

impl IntervalBucket {
    /// `amount` tokens each `interval` (1 ms to 366 days), at most `burst` (`amount` if none is given). With `borrow`
    /// a request passes if one token is available, whatever its cost.
    ///
    /// # Errors
    /// [`LimitError`] for a value outside its domain, or a bucket that would take more than 2^50 µs
    /// to fill.
    pub fn new(
        amount: u32,
        interval: Duration,
        burst: Option<u32>,
        borrow: bool,
    ) -> Result<Self, LimitError> {
        let amount = check_units("limit", amount)?;
        let interval = check_period("period", interval)?;
        let burst = check_units("burst", burst.unwrap_or(amount))?;
        if u64::from(burst.div_ceil(amount)).saturating_mul(interval) > MAX_DRAIN {
            return Err(LimitError::Drain { name: "burst", value: burst });
        }
        Ok(Self { amount, interval, burst, borrow })
    }

    const fn period(&self) -> Duration {
        Duration::from_micros(self.interval)
    }

    /// The state with all steps up to `now` done. The last step may be later than `now`.
    fn refilled(&self, state: Option<&State>, now: Timestamp) -> State {
        let now = now.as_micros();
        let Some(state) = state else { return State { used: 0, last: now } };
        let last = self.unless_set_back(state.last, now);
        let steps = now.saturating_sub(last) / self.interval;
        let used = state.used.saturating_sub(u128::from(steps) * u128::from(self.amount));
        if used == 0 {
            return State { used: 0, last: now };
        }
        let refilled = State { used, last: last + steps * self.interval };
        debug_assert!(refilled.last > now || now - refilled.last < self.interval, "a step is due");
        refilled
    }

    /// Tokens that can be taken each interval, for ever: a step fills the bucket at most, unless it repays a debt.
    fn sustained(&self) -> u32 {
        if self.borrow { self.amount } else { self.amount.min(self.burst) }
    }

    /// Where debts saturate: the tokens that come in 2^50 µs.
    fn max_used(&self) -> u128 {
        u128::from(self.amount) * u128::from(MAX_DRAIN / self.interval)
    }

    fn state(&self, used: u128, last: u64) -> Option<State> {
        (used > 0).then(|| State { used: used.min(self.max_used()), last })
    }

    /// Microseconds until all but `left` of the tokens missing are back.
    fn until(&self, state: &State, left: u128, now: Timestamp) -> u64 {
        let steps = state.used.saturating_sub(left).div_ceil(u128::from(self.amount));
        let wait = u128::from(state.last) + steps * u128::from(self.interval);
        narrow(wait.saturating_sub(u128::from(now.as_micros())))
    }
}

impl Algorithm for IntervalBucket {
    type State = State;

    /// With `refill=interval`; otherwise the name is that of [`Gcra`](super::Gcra).
    const NAMES: &'static [(&'static str, &'static [&'static str])] =
        &[("token-bucket", &["borrow", "burst", "refill"])];
    const CODES: &'static [u8] = &[CODE];

    fn parameters(&self) -> Parameters {
        Parameters {
            capacity: self.burst,
            bucket_size: self.burst,
            borrow: self.borrow,
            begins_with_use: true,
            ..Parameters::new(self.amount, self.period())
        }
    }

    fn parse(text: &LimitText<'_>) -> Result<Option<Self>, TextError> {
        let (period, burst, borrow) = (text.period()?, text.burst()?, text.has("borrow"));
        Ok(Some(Self::new(text.limit()?, period, burst, borrow)?))
    }

    fn flags(_code: u8) -> u8 {
        BORROW
    }

    fn encode(&self, state: Option<&State>, out: &mut Writer) {
        out.head(CODE, if self.borrow { BORROW } else { 0 }, self.amount);
        out.uint(self.interval, 6);
        out.uint(self.burst.into(), 4);
        let State { used, last } = state.copied().unwrap_or_default();
        out.uint(last, 7);
        out.uint(narrow(used & 0xffff_ffff_ffff), 6);
        out.uint(narrow(used >> 48), 4);
    }

    fn decode(head: Head, input: &mut Reader<'_>) -> Result<(Self, Option<State>), StateError> {
        let (period, burst) = (input.period()?, input.u32()?);
        let limit = Self::new(head.limit, period, Some(burst), head.has(BORROW))?;
        let (last, low, high) = (input.time()?, input.uint(6)?, input.uint(4)?);
        let used = u128::from(high) << 48 | u128::from(low);
        if used > limit.max_used() {
            return Err(StateError::Damaged("a count is out of bounds"));
        }
        Ok((limit, (used > 0).then_some(State { used, last })))
    }

    #[cfg(debug_assertions)]
    fn check(&self, state: &State) {
        assert!(0 < state.used && state.used <= self.max_used(), "a full bucket is no state");
    }

    fn wait(&self, state: Option<&State>, now: Timestamp, cost: u32) -> Retry {
        if cost > self.burst {
            return Retry::Never;
        }
        let state = self.refilled(state, now);
        let left = u128::from(self.burst - cost);
        if state.used <= left {
            return Retry::NOW;
        }
        Retry::after_micros(self.until(&state, left, now))
    }

    fn remaining(&self, state: Option<&State>, now: Timestamp) -> u32 {
        let used = self.refilled(state, now).used;
        units(u64::from(self.burst).saturating_sub(narrow(used)))
    }

    fn reset_after(&self, state: Option<&State>, now: Timestamp) -> u64 {
        let state = self.refilled(state, now);
        if state.used == 0 { 0 } else { self.until(&state, 0, now) }
    }

    fn latest(state: &State) -> u64 {
        state.last
    }

    fn used(&self, state: Option<&State>, now: Timestamp) -> u64 {
        narrow(self.refilled(state, now).used).min(MAX_COUNT)
    }

    fn charge(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let State { used, last } = self.refilled(state.as_ref(), now);
        *state = self.state(used + u128::from(cost), last);
    }

    fn refund(&self, state: &mut Option<State>, now: Timestamp, cost: u32) {
        let State { used, last } = self.refilled(state.as_ref(), now);
        *state = self.state(used.saturating_sub(u128::from(cost)), last);
    }

    fn with_used(&self, now: Timestamp, used: u64) -> Option<State> {
        self.state(u128::from(used), now.as_micros())
    }

    fn migrate(&self, old: &Self, state: State, now: Timestamp) -> Option<State> {
        let State { used, last } = old.refilled(Some(&state), now);
        let kept = now.as_micros().saturating_sub(last) < self.interval;
        reached!(MigratedBucketKeepsStep if kept && used > 0);
        reached!(MigratedBucketRestartsStep if !kept && used > 0);
        self.state(used, if kept { last } else { now.as_micros() })
    }

    fn max_admitted(&self, micros: u64) -> u128 {
        // The steps are counted from a request, which came before the interval.
        let steps = u128::from(micros.div_ceil(self.interval));
        u128::from(self.burst) - 1 + u128::from(self.sustained()) * steps
    }

    fn quota(&self) -> (u32, Option<Duration>) {
        if self.burst > self.amount {
            let steps = self.burst.div_ceil(self.amount);
            return (self.burst, self.period().checked_mul(steps));
        }
        (self.amount, Some(self.period()))
    }

    /// The steps after the next one, until the bucket is full, are whole intervals. If more than one interval is left,
    /// there are open holds, or a debt.
    fn more_after(&self, decision: &Decision) -> Option<Duration> {
        let used = self.burst.saturating_sub(decision.remaining);
        let later = self.interval * u64::from(used.saturating_sub(1) / self.amount);
        let left = decision.reset_after.saturating_sub(Duration::from_micros(later));
        (left <= self.period()).then_some(left)
    }

    /// A denial waits for one of the steps, the first at the earliest.
    fn max_reset_after(&self, decision: &Decision) -> Duration {
        let used = self.burst.saturating_sub(decision.remaining);
        let steps = u64::from(used.div_ceil(self.amount));
        let (wait, steps) = match decision.retry() {
            Some(Retry::After(wait)) => (wait, steps.saturating_sub(1)),
            Some(Retry::Never) | None => (Duration::ZERO, steps),
        };
        wait + Duration::from_micros(self.interval.saturating_mul(steps))
    }

    fn describe(&self) -> LimitSummary {
        let (n, period) = (self.sustained(), human::span(self.interval));
        let steps = u64::from(self.burst.div_ceil(self.amount));
        LimitSummary {
            at_once: bucket_at_once(self.burst, self.borrow),
            sustained: format!(
                "{} per {period}: all of them each {period}",
                human::units(n.into())
            ),
            denied: if self.borrow {
                "waits until what was borrowed is repaid".to_owned()
            } else {
                bucket_waits(&period, self.burst, steps * self.interval)
            },
        }
    }

    fn share(&self, share: Share) -> Result<Self, LimitError> {
        share.bucket(self.amount, self.period(), |units, period| {
            Self::new(units, period, Some(share.units(self.burst)), self.borrow)
        })
    }
}

impl fmt::Display for IntervalBucket {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_rate(formatter, "token-bucket", self.amount, self.interval)?;
        write_option(formatter, self.borrow, "borrow")?;
        let burst = format_args!("burst={}", self.burst);
        write_option(formatter, self.burst != self.amount, burst)?;
        write_option(formatter, true, "refill=interval")
    }
}
