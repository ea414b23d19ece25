//! The answers of a limit while holds of the key are open.
//!
//! Held units count as in use. An open hold that is not settled expires, and is then charged if it is metered: the
//! answers look ahead to that.

use std::cell::OnceCell;

use crate::{
    algorithm::{Limit, State},
    decision::Retry,
    ledger::{Expiries, Ledger},
    time::{Timestamp, as_micros},
};

/// The open holds of a key, none of which has expired, as a limit sees them.
pub(crate) struct OpenHolds<'a> {
    ledger: Option<&'a Ledger>,
    expiries: &'a KnownExpiries,
}

/// The expiries of the metered holds of a ledger, and of all, once a limit has looked ahead.
#[derive(Default)]
pub(crate) struct KnownExpiries {
    metered: OnceCell<Expiries>,
    all: OnceCell<Expiries>,
}

impl<'a> OpenHolds<'a> {
    /// `expiries` are those of this `ledger`.
    pub(crate) const fn new(ledger: Option<&'a Ledger>, expiries: &'a KnownExpiries) -> Self {
        Self { ledger, expiries }
    }

    /// Units held, as far as `limit` counts them.
    pub(crate) fn held(&self, limit: &Limit) -> u64 {
        self.ledger.map_or(0, |ledger| ledger.held(!limit.counts_holds()))
    }

    /// The expiries of the holds that `limit` counts.
    fn expiries(&self, limit: &Limit) -> &'a Expiries {
        let (only_metered, cell) = match limit.counts_holds() {
            true => (false, &self.expiries.all),
            false => (true, &self.expiries.metered),
        };
        cell.get_or_init(|| self.ledger.map_or_else(Expiries::new, |it| it.expiries(only_metered)))
    }

    /// Requests of cost 1 that pass at `now`.
    pub(crate) fn remaining(&self, limit: &Limit, state: &State, now: Timestamp) -> u32 {
        let held = u32::try_from(self.held(limit)).unwrap_or(u32::MAX);
        limit.remaining(state, now).saturating_sub(held)
    }

    /// Whether a request of `cost` passes at `now`.
    #[inline]
    pub(crate) fn passes(&self, limit: &Limit, state: &State, now: Timestamp, cost: u32) -> bool {
        let units = u64::from(limit.needed(cost)) + self.held(limit);
        let units = u32::try_from(units).ok().filter(|&units| units <= limit.capacity());
        units.is_some_and(|units| limit.wait(state, now, units) == Retry::NOW)
    }

    /// Time after which a request of `cost` passes.
    pub(crate) fn wait(&self, limit: &Limit, state: &State, now: Timestamp, cost: u32) -> Retry {
        let needed = limit.needed(cost);
        if self.held(limit) == 0 || needed > limit.capacity() {
            return limit.wait(state, now, needed);
        }
        if self.passes(limit, state, now, cost) {
            return Retry::NOW;
        }
        limit.wait_beside(state, now, needed, self.expiries(limit))
    }

    /// Time after which a reserve of `cost` passes that waits for up to `max_wait` microseconds. In a queue, a hold that
    /// expires departs before those that come later, and makes their delay longer.
    pub(crate) fn reserve_wait(
        &self,
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
            let delay = limit.delay(state, Timestamp::ahead(since));
            since.max(early).max((since + delay).saturating_sub(max_wait))
        };
        let (mut state, mut since) = (state.clone(), now.as_micros());
        if limit.is_queue() {
            for hold in self.expiries(limit) {
                if passes(&state, since) < hold.at {
                    break;
                }
                limit.charge(&mut state, hold.time(), hold.units);
                since = hold.at;
            }
        }
        Retry::after_micros(passes(&state, since) - now.as_micros())
    }

    /// Microseconds until the state equals none and no hold that the limit counts is open.
    pub(crate) fn reset_after(&self, limit: &Limit, state: &State, now: Timestamp) -> u64 {
        self.drained(limit, state, now, Limit::reset_after, Limit::reset_after_beside)
    }

    /// Microseconds until the state may be dropped. Times later than `now` stay, as they do in a state that is stored.
    pub(crate) fn lifetime(&self, limit: &Limit, state: &State, now: Timestamp) -> u64 {
        self.drained(limit, state, now, Limit::lifetime, Limit::lifetime_beside)
    }

    /// Microseconds until no hold is open.
    pub(crate) fn all_expired(&self, now: Timestamp) -> u64 {
        self.ledger.map_or(0, |ledger| ledger.last_expiry().saturating_sub(now.as_micros()))
    }

    fn drained(
        &self,
        limit: &Limit,
        state: &State,
        now: Timestamp,
        drain: fn(&Limit, &State, Timestamp) -> u64,
        drain_beside: fn(&Limit, &State, Timestamp, &Expiries) -> u64,
    ) -> u64 {
        match self.ledger.filter(|it| !limit.counts_holds() && it.held(true) > 0) {
            None => drain(limit, state, now),
            Some(ledger) => match limit.beside_holds(state, now, ledger) {
                Some((_, micros)) => micros,
                None => drain_beside(limit, state, now, self.expiries(limit)),
            },
        }
    }
}
