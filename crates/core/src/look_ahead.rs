//! The answers of a limit while holds of the key are open.
//!
//! Held units count as in use. An open hold that is not settled expires, and is then charged if it is metered: the
//! answers look ahead to that. As time passes without requests, the free units of a limit never shrink, because an
//! expiry moves held units into use. Therefore a binary search finds the first expiry after which a request passes.

use crate::{
    algorithm::{Limit, State},
    decision::Retry,
    ledger::Ledger,
    time::{Timestamp, as_micros},
};

/// The open holds of a key, none of which has expired, as a limit sees them.
#[derive(Clone, Copy)]
pub(crate) struct OpenHolds<'a>(pub(crate) Option<&'a Ledger>);

impl OpenHolds<'_> {
    /// Units held, as far as `limit` counts them.
    pub(crate) fn held(self, limit: &Limit) -> u64 {
        self.0.map_or(0, |ledger| ledger.held(!limit.counts_holds()))
    }

    /// Requests of cost 1 that pass at `now`.
    pub(crate) fn remaining(self, limit: &Limit, state: &State, now: Timestamp) -> u32 {
        let held = u32::try_from(self.held(limit)).unwrap_or(u32::MAX);
        limit.remaining(state, now).saturating_sub(held)
    }

    /// Whether a request of `cost` passes at `now`.
    #[inline]
    pub(crate) fn passes(self, limit: &Limit, state: &State, now: Timestamp, cost: u32) -> bool {
        let units = u64::from(limit.needed(cost)) + self.held(limit);
        let units = u32::try_from(units).ok().filter(|&units| units <= limit.capacity());
        units.is_some_and(|units| limit.wait(state, now, units) == Retry::NOW)
    }

    /// Time after which a request of `cost` passes.
    pub(crate) fn wait(self, limit: &Limit, state: &State, now: Timestamp, cost: u32) -> Retry {
        let needed = limit.needed(cost);
        let held = self.held(limit);
        let Some(ledger) = self.0.filter(|_| held > 0 && needed <= limit.capacity()) else {
            return limit.wait(state, now, needed);
        };
        let passes = |state: &State, at: u64, held: u64| {
            let units = u32::try_from(u64::from(needed) + held).ok();
            let units = units.filter(|&units| units <= limit.capacity());
            match units.map(|units| limit.wait(state, Timestamp::saturating_from_micros(at), units))
            {
                Some(Retry::After(wait)) => Some(at + as_micros(wait)),
                Some(Retry::Never) | None => None,
            }
        };
        if self.passes(limit, state, now, cost) {
            return Retry::NOW;
        }
        let only_metered = !limit.counts_holds();
        let mut holds = ledger.by_expiry();
        holds.retain(|hold| hold.metered || !only_metered);
        // After the first `done` expiries, at `since`, the request does not pass; after the first `end`, it does, or they
        // are all.
        let (mut done, mut end) = (0, holds.len());
        let (mut state, mut since, mut held) = (as_of(limit, state, now), now.as_micros(), held);
        while end - done > 1 {
            let middle = done + (end - done) / 2;
            let (mut later, mut left) = (state.clone(), held);
            for hold in &holds[done..middle] {
                expire(limit, &mut later, hold.expires, hold.units);
                left -= u64::from(hold.units);
            }
            let at = holds[middle - 1].expires;
            if passes(&later, at, left) == Some(at) {
                end = middle;
            } else {
                (state, since, held, done) = (later, at, left, middle);
            }
        }
        // It passes before the next expiry, at it, or, after the last, when the units then in use have drained.
        let next = holds[end - 1].expires;
        let found = match passes(&state, since, held).filter(|&at| at < next) {
            Some(at) => Some(at),
            None => {
                let last = &holds[end - 1];
                expire(limit, &mut state, last.expires, last.units);
                passes(&state, next, held - u64::from(last.units))
            }
        };
        found.map_or(Retry::Never, |at| Retry::after_micros(at - now.as_micros()))
    }

    /// Time after which a reserve of `cost` passes that waits for up to `max_wait` microseconds. In a queue, a hold that
    /// expires departs before those that come later, and makes their delay longer.
    pub(crate) fn reserve_wait(
        self,
        limit: &Limit,
        state: &State,
        now: Timestamp,
        cost: u32,
        max_wait: u64,
    ) -> Retry {
        if cost > limit.capacity() {
            return Retry::Never;
        }
        let Retry::After(fits) = self.wait(limit, state, now, cost) else { return Retry::Never };
        let early = (now.as_micros() + as_micros(fits)).saturating_sub(max_wait);
        let passes = |state: &State, since: u64| {
            let delay = limit.delay(state, Timestamp::saturating_from_micros(since));
            since.max(early).max((since + delay).saturating_sub(max_wait))
        };
        let (mut state, mut since) = (state.clone(), now.as_micros());
        let holds = self.0.filter(|_| limit.is_queue()).map_or_else(Vec::new, Ledger::by_expiry);
        for hold in holds.iter().filter(|hold| hold.metered) {
            if passes(&state, since) < hold.expires {
                break;
            }
            expire(limit, &mut state, hold.expires, hold.units);
            since = hold.expires;
        }
        Retry::after_micros(passes(&state, since) - now.as_micros())
    }

    /// Microseconds until the state equals none and no hold that the limit counts is open.
    pub(crate) fn reset_after(self, limit: &Limit, state: &State, now: Timestamp) -> u64 {
        self.drained(limit, state, now, Limit::reset_after, as_of)
    }

    /// Microseconds until the state may be dropped. Times later than `now` stay, as they do in a state that is stored.
    pub(crate) fn lifetime(self, limit: &Limit, state: &State, now: Timestamp) -> u64 {
        self.drained(limit, state, now, Limit::lifetime, |_, state, _| state.clone())
    }

    /// Microseconds until no hold is open.
    pub(crate) fn all_expired(self, now: Timestamp) -> u64 {
        self.0.map_or(0, |ledger| ledger.last_expiry().saturating_sub(now.as_micros()))
    }

    fn drained(
        self,
        limit: &Limit,
        state: &State,
        now: Timestamp,
        drain: fn(&Limit, &State, Timestamp) -> u64,
        copy: fn(&Limit, &State, Timestamp) -> State,
    ) -> u64 {
        let Some(ledger) = self.0.filter(|_| !limit.counts_holds()) else {
            return drain(limit, state, now);
        };
        if ledger.held(true) == 0 {
            return drain(limit, state, now);
        }
        if let Some((_, micros)) = limit.beside_holds(state, now, ledger) {
            return micros;
        }
        let (mut state, mut last) = (copy(limit, state, now), now.as_micros());
        ledger.for_each_metered(|expires, units| {
            expire(limit, &mut state, expires, units);
            last = expires;
        });
        last - now.as_micros() + drain(limit, &state, Timestamp::saturating_from_micros(last))
    }
}

/// The state with times later than `now`, after a clock stepped back, taken as `now`.
fn as_of(limit: &Limit, state: &State, now: Timestamp) -> State {
    let mut state = state.clone();
    limit.refund(&mut state, now, 0);
    state
}

/// Charges a hold that expires at `at`.
fn expire(limit: &Limit, state: &mut State, at: u64, units: u32) {
    limit.charge(state, Timestamp::saturating_from_micros(at), units);
}
