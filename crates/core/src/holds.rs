//! Holds: units that are taken now, and charged when the real usage is known.
//!
//! A hold is a request in flight, a stream of tokens, a job. It ends when it is settled, or expires; a metered one
//! that expires is charged in full. Therefore a process that dies blocks units for a bounded time, and never causes
//! an excess.

use std::time::Duration;

use crate::{
    algorithm::{Limit, State},
    apply::KeyState,
    decision::{Decision, Operation, Outcome, Retry},
    entry::Entry,
    ledger::{Hold, MAX_HOLD_ID, MAX_HOLDS, RecordPosition},
    look_ahead::{KnownExpiries, OpenHolds},
    policy::Policy,
    time::{Timestamp, as_micros},
};

/// The shortest lifetime of a hold, in microseconds.
const MIN_TTL: u64 = 1_000;
/// The longest.
const MAX_TTL: u64 = 86_400_000_000;

/// An operation on a hold that is invalid, or that the policy does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HoldError {
    /// The id is empty or too long.
    #[error("invalid id of {0} bytes: expected 1 to 64 bytes")]
    Id(usize),
    /// The lifetime is outside its domain.
    #[error("invalid ttl `{}`: expected {MIN_TTL} to {} microseconds", as_micros(*ttl), as_micros(*max))]
    Ttl {
        /// The lifetime.
        ttl: Duration,
        /// The longest one under the policy.
        max: Duration,
    },
    /// There is no lifetime, and no `concurrency` limit that has a default.
    #[error(
        "missing ttl: expected {MIN_TTL} to {MAX_TTL} microseconds; only a policy with `concurrency` has a default"
    )]
    MissingTtl,
    /// The policy has a queue, which delays requests.
    #[error("invalid policy for a hold: expected one without `leaky-queue`")]
    Queue,
    /// As many holds of the key are open as the store opens: [`MAX_HOLDS`], or 4096 by a script.
    #[error("too many open holds of the key: expected at most {0}")]
    Full(usize),
}

/// The fast path, which takes half the time: a hold that is allowed, or the settle of an open one, under the only limit of the policy
/// that the entry is stored with, where no hold has expired.
#[inline]
pub(crate) fn under_one_limit(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
    ttl: u64,
) -> Option<Decision> {
    let id = operation.id()?;
    let [limit] = policy.limits() else { return None };
    if entry.is_none()
        && let Operation::Hold { cost: units @ 1.., .. } = operation
        && OpenHolds::new(None, &KnownExpiries::default()).passes(limit, &State::None, now, units)
    {
        *entry = Some(Entry::with_ledger(policy));
    }
    let kept = entry.as_mut().filter(|entry| entry.policy.ptr_eq(policy))?;
    let [state, State::Holds(ledger)] = &mut kept.states[..] else { return None };
    let open = if ledger.has_expired(now) { return None } else { ledger.find(id) };
    match (operation, open) {
        (Operation::Hold { cost: units @ 1.., .. }, None)
            if ledger.len() < MAX_HOLDS
                && OpenHolds::new(Some(ledger), &KnownExpiries::default())
                    .passes(limit, state, now, units) =>
        {
            let expires = now.as_micros() + ttl;
            ledger.push(&Hold { id, units, expires, metered: !limit.counts_holds() });
        }
        (Operation::Settle { used, .. }, Some(at)) => {
            let (units, metered) = ledger.remove(at)?;
            let units = used.unwrap_or(units);
            if metered && units > 0 {
                limit.charge(state, now, units);
            }
        }
        _ => return None,
    }
    limit.keep_drain(ledger);
    let expiries = KnownExpiries::default();
    let holds = OpenHolds::new(Some(ledger), &expiries);
    let (remaining, reset_after) = limit.beside_holds(state, now, ledger).unwrap_or_else(|| {
        (holds.remaining(limit, state, now), holds.reset_after(limit, state, now))
    });
    let decision = Decision {
        outcome: Outcome::Allow { delay: Duration::ZERO },
        limit: limit.capacity(),
        remaining,
        reset_after: Duration::from_micros(reset_after.max(holds.all_expired(now))),
        binding: 0,
    };
    if ledger.is_empty() && *state != State::None {
        kept.states.pop();
    }
    Some(decision)
}

impl Policy {
    /// [`check_operation`](Self::check_operation) of an operation on a hold.
    pub(crate) fn check_hold(&self, operation: Operation) -> Result<u64, HoldError> {
        let id = operation.id().unwrap_or_default();
        if !(1..=MAX_HOLD_ID).contains(&id.len()) {
            return Err(HoldError::Id(id.len()));
        }
        if self.limits().iter().any(Limit::is_queue) {
            return Err(HoldError::Queue);
        }
        let (Operation::Hold { ttl, .. } | Operation::Renew { ttl, .. }) = operation else {
            return Ok(0);
        };
        let periods = self.limits().iter().filter(|limit| limit.counts_holds());
        let shortest = periods.map(|limit| as_micros(limit.rate().1)).min();
        let max = shortest.unwrap_or(MAX_TTL).min(MAX_TTL);
        match ttl.map(as_micros) {
            None => shortest.map(|_| max).ok_or(HoldError::MissingTtl),
            Some(micros) if (MIN_TTL..=max).contains(&micros) => Ok(micros),
            Some(micros) => Err(HoldError::Ttl {
                ttl: Duration::from_micros(micros),
                max: Duration::from_micros(max),
            }),
        }
    }
}

impl KeyState<'_> {
    /// Where in the ledger the hold of that id is, if it is open.
    pub(crate) fn find(&self, id: &[u8]) -> Option<RecordPosition> {
        self.entry().and_then(Entry::ledger)?.find(id)
    }

    /// Holds `cost` units, at least 1, for `ttl` microseconds, under an id that is not open.
    pub(crate) fn hold(&mut self, id: &[u8], cost: u32, ttl: u64) -> Result<Decision, HoldError> {
        if self.passes(cost) {
            self.check_room()?;
            self.open(id, cost, ttl);
            return Ok(self.answer());
        }
        self.record_denial(cost);
        Ok(self.denial(cost))
    }

    /// Checks that one more hold can be opened.
    pub(crate) fn check_room(&self) -> Result<(), HoldError> {
        let open = self.entry().and_then(Entry::ledger).map_or(0, |ledger| ledger.len());
        if open < MAX_HOLDS { Ok(()) } else { Err(HoldError::Full(MAX_HOLDS)) }
    }

    /// Adds a hold to the ledger.
    pub(crate) fn open(&mut self, id: &[u8], units: u32, ttl: u64) {
        let expires = self.now.as_micros() + ttl;
        let metered = !self.policy.is_concurrency();
        let hold = Hold { id, units, expires, metered };
        self.store_entry(|entry| entry.change_ledger(|ledger| ledger.push(&hold)));
    }

    /// Ends the hold at `at` of the ledger.
    pub(crate) fn settle(&mut self, at: RecordPosition, used: Option<u32>) -> &Self {
        let now = self.now;
        self.store_entry(|entry| {
            let settled = entry.change_ledger(|ledger| ledger.remove(at));
            let Some((units, true)) = settled else { return };
            let units = used.unwrap_or(units);
            if units > 0 {
                // Under a policy of only `concurrency` limits, the entry is under another one.
                entry.charge(now, units);
            }
        })
    }

    /// Prolongs the hold at `at` of the ledger.
    pub(crate) fn renew(&mut self, at: RecordPosition, ttl: u64) -> &Self {
        let expires = self.now.as_micros() + ttl;
        self.store_entry(|entry| entry.change_ledger(|ledger| ledger.set_expires(at, expires)))
    }

    /// Denied for ever, with the current state of the key.
    pub(crate) fn not_open(&self) -> Decision {
        self.decision_of(Outcome::Deny { retry: Retry::Never }, self.least_remaining())
    }
}
