//! One decision: the whole of the semantics in one function.

use std::time::Duration;

use smallvec::SmallVec;

#[cfg(debug_assertions)]
use crate::check::{self, InUse};
use crate::{
    algorithm::{Limit, State},
    decision::{Decision, Operation, Outcome, RequestError, Retry},
    entry::Entry,
    ledger::{MAX_HOLD_ID, MAX_HOLDS, RecordPosition},
    look_ahead::{KnownExpiries, OpenHolds},
    migrate::{MigratedState, migrate, migrated_states},
    policy::Policy,
    reached,
    time::{Timestamp, as_micros},
};

/// An operation that is invalid, or that the policy does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// A reserve under a policy with a limit that cannot compute when a later request would pass.
    #[error(
        "reserve needs every limit to be gcra, token-bucket (refill=continuous), leaky-bucket or \
         leaky-queue"
    )]
    Reserve,
    /// A take, charge, refund or reserve under a policy with a `concurrency` limit.
    #[error(
        "invalid operation under a policy with `concurrency`: expected hold, settle, renew, peek or reset; use hold"
    )]
    Concurrency,
    /// An operation on a hold is invalid, or the policy does not support it.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// Operations on several keys are no request.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Applies `operation` to the entry of a key, under `policy`, at `now`.
///
/// `entry` is `None` for a key that is unused or fully recovered, and stays `None` where nothing need be stored. A
/// denied request leaves it as it was, unless the policy has changed since it was written (then the entry is
/// migrated) or denied requests count (`count=all`). Time does not run back for a key: a limit that stores a later time than
/// `now`, by less than its period, decides as at that time.
///
/// A settle or renew of an id that is not open is denied with [`Retry::Never`], and changes nothing: a settle that is
/// repeated charges once.
///
/// ```
/// use std::time::Duration;
/// use sluicegate_core::{Operation, Policy, Timestamp, apply};
///
/// let policy: Policy = "token-bucket:10000/1m".parse()?;
/// let (mut entry, now) = (None, Timestamp::EPOCH);
/// let hold = Operation::Hold { id: b"stream 1", cost: 4000, ttl: Some(Duration::from_secs(30)) };
/// assert_eq!(apply(&policy, &mut entry, now, hold)?.remaining, 6000);
///
/// let settle = Operation::Settle { id: b"stream 1", used: Some(2310) };
/// assert_eq!(apply(&policy, &mut entry, now, settle)?.remaining, 7690);
/// assert!(!apply(&policy, &mut entry, now, settle)?.allowed(), "it is charged once");
/// assert_eq!(apply(&policy, &mut entry, now, Operation::Peek(1))?.remaining, 7690);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`OperationError`] for [`Operation::Reserve`] if a limit is not of the gcra family, for all operations that take or
/// give back units under a policy with a `concurrency` limit, and for invalid operations on holds; the entry is then
/// untouched.
pub fn apply(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
) -> Result<Decision, OperationError> {
    let decision = apply_in_place(policy, entry, now, operation)?;
    entry.take_if(|entry| entry.is_idle());
    Ok(decision)
}

/// [`apply`] for stores that reuse memory: when the last hold ends, it may leave an [idle](Entry::is_idle) entry,
/// which keeps the memory of its ledger and may become that of another key.
///
/// # Errors
/// As [`apply`].
#[inline]
pub fn apply_in_place(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
) -> Result<Decision, OperationError> {
    let ttl = policy.check_operation(operation)?;
    #[cfg(debug_assertions)]
    let before = operation.id().and_then(|_| check::small_copy(policy, entry));
    if let Some(decision) = under_one_limit(policy, entry, now, operation, ttl) {
        #[cfg(debug_assertions)]
        if let Some(mut before) = before {
            let general = apply_in_general(policy, &mut before, now, operation, ttl);
            assert_eq!(general.as_ref(), Ok(&decision), "the fast path decides differently");
            let after = entry.as_ref().filter(|it| !it.is_idle());
            assert_eq!(before.as_ref(), after, "the fast path stores another state");
        }
        return Ok(decision);
    }
    let decided = apply_in_general(policy, entry, now, operation, ttl);
    #[cfg(debug_assertions)]
    if let Ok(decision) = &decided {
        check::check_decision(policy, entry, now, operation, decision, |entry, now, cost| {
            let peeked = apply_in_general(policy, entry, now, Operation::Peek(cost), 0);
            peeked.is_ok_and(|it| it.allowed())
        });
    }
    decided
}

/// `ttl` is that of a hold, in microseconds.
#[inline(never)]
fn apply_in_general(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
    ttl: u64,
) -> Result<Decision, OperationError> {
    if operation == Operation::Reset {
        *entry = None;
    }
    let mut key = KeyState::new(policy, entry, now);
    Ok(match operation {
        Operation::Take(0) | Operation::Reserve { cost: 0, .. } | Operation::Peek(0) => {
            key.answer()
        }
        Operation::Charge(0) | Operation::Refund(0) | Operation::Reset => key.answer(),
        Operation::Take(cost) => key.take(cost),
        Operation::Peek(cost) if key.passes(cost) => key.allowed(key.delay()),
        Operation::Peek(cost) => key.denial(cost),
        Operation::Charge(cost) => key.charge(cost).answer(),
        Operation::Refund(cost) => {
            #[cfg(debug_assertions)]
            let before = key.in_use();
            key.store(|limit, state| limit.refund(state, now, cost));
            #[cfg(debug_assertions)]
            before.check_refunded(&key.in_use(), cost);
            key.answer()
        }
        Operation::Reserve { cost, max_wait } => key.reserve(cost, as_micros(max_wait)),
        Operation::Hold { id, cost, .. } if cost == 0 || key.find(id).is_some() => {
            reached!(HoldIsRepeated if cost > 0);
            key.answer()
        }
        Operation::Hold { id, cost, .. } => key.hold(id, cost, ttl)?,
        Operation::Settle { id, used } => match key.find(id) {
            Some(at) => key.settle(at, used).answer(),
            None => {
                reached!(SettleOfNoOpenHold);
                key.not_open()
            }
        },
        Operation::Renew { id, .. } => match key.find(id) {
            Some(at) => key.renew(at, ttl).answer(),
            None => {
                reached!(RenewOfNoOpenHold);
                key.not_open()
            }
        },
    })
}

impl Policy {
    /// Checks that the policy supports `operation`, and returns the lifetime that it gives to a hold, in microseconds; 0 for
    /// other operations.
    ///
    /// # Errors
    /// [`OperationError`]: it does not, or the operation is invalid.
    #[inline]
    pub fn check_operation(&self, operation: Operation) -> Result<u64, OperationError> {
        match operation {
            Operation::Peek(_) | Operation::Reset => Ok(0),
            Operation::Hold { .. } | Operation::Settle { .. } | Operation::Renew { .. } => {
                Ok(self.check_hold(operation)?)
            }
            _ if self.counts_holds() => Err(OperationError::Concurrency),
            Operation::Reserve { .. } if !self.can_reserve() => Err(OperationError::Reserve),
            _ => Ok(0),
        }
    }
}

/// A key under the policy of a request.
pub(crate) struct KeyState<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) now: Timestamp,
    /// The entry after holds of it have expired, if any have. It is used instead of `entry` where that is stored.
    expired: Option<Entry>,
    /// The migrated state of each limit, if the entry was written under another policy; else empty.
    migrated: Vec<MigratedState>,
    entry: &'a mut Option<Entry>,
    /// Of the ledger of the entry as it is.
    expiries: KnownExpiries,
}

impl<'a> KeyState<'a> {
    pub(crate) fn new(policy: &'a Policy, entry: &'a mut Option<Entry>, now: Timestamp) -> Self {
        // A change would leave its empty ledger beside a state, where none may be.
        entry.take_if(|entry| entry.is_idle());
        let has_expired = |entry: &&Entry| entry.ledger().is_some_and(|it| it.has_expired(now));
        let expired = entry
            .as_ref()
            .filter(has_expired)
            .map(|entry| entry.after_expiries(now).unwrap_or_else(|| Entry::unused(policy)));
        let other = expired.as_ref().or(entry.as_ref());
        let other = other.filter(|entry| !entry.policy.decides_like(policy));
        let migrated = other.map_or_else(Vec::new, |entry| migrated_states(entry, policy, now));
        Self { policy, now, expired, migrated, entry, expiries: KnownExpiries::default() }
    }

    /// The entry of the key, after the expired holds.
    pub(crate) fn entry(&self) -> Option<&Entry> {
        self.expired.as_ref().or(self.entry.as_ref())
    }

    /// The open holds of the key.
    fn holds(&self) -> OpenHolds<'_> {
        OpenHolds::new(self.entry().and_then(Entry::ledger), &self.expiries)
    }

    /// Each limit with its state.
    fn limits(&self) -> impl Iterator<Item = (&Limit, &State)> {
        let states = self.entry().map_or(&[] as &[State], |entry| &entry.states);
        self.policy.limits().iter().enumerate().map(move |(at, limit)| {
            match self.migrated.get(at) {
                None => (limit, states.get(at).unwrap_or(&State::None)),
                Some(MigratedState::State(state)) => (limit, state),
                Some(MigratedState::Log(reader, index)) => (reader, &states[*index]),
            }
        })
    }

    /// The units in use, for a check.
    #[cfg(debug_assertions)]
    pub(crate) fn in_use(&self) -> InUse {
        InUse::new(self.limits(), self.entry(), self.now)
    }

    /// Changes the state of every limit and keeps the outcome. The operation stores the entry.
    fn store(&mut self, change: impl Fn(&Limit, &mut State)) -> &Self {
        self.store_entry(|entry| {
            for (limit, state) in entry.policy.limits().iter().zip(&mut entry.states) {
                change(limit, state);
            }
        })
    }

    /// Changes the entry, after it was migrated to the policy, and stores the result. A policy of only `concurrency`
    /// limits leaves the policy of the entry as it is.
    pub(crate) fn store_entry(&mut self, change: impl FnOnce(&mut Entry)) -> &Self {
        self.expiries = KnownExpiries::default();
        if self.migrated.is_empty()
            && self.expired.is_none()
            && let Some(entry) = &mut *self.entry
        {
            if !entry.policy.ptr_eq(self.policy) {
                entry.policy = self.policy.clone();
            }
            change(entry);
            if entry.is_unused() {
                *self.entry = None;
            }
            return self;
        }
        let keeps_policy = |entry: &Entry| entry.keeps_policy(self.policy);
        let entry = self.expired.take().or_else(|| self.entry.take());
        let mut kept = match entry {
            None => Entry::unused(self.policy),
            Some(entry) if self.migrated.is_empty() || keeps_policy(&entry) => entry,
            Some(entry) => migrate(entry, self.policy, self.now),
        };
        let keeps_policy = keeps_policy(&kept);
        reached!(PolicyStaysUnderConcurrency if keeps_policy);
        if !keeps_policy {
            self.migrated.clear();
            kept.policy = self.policy.clone();
        }
        change(&mut kept);
        *self.entry = (!kept.is_unused()).then_some(kept);
        self
    }

    fn take(&mut self, cost: u32) -> Decision {
        #[cfg(debug_assertions)]
        let before = self.in_use();
        if !self.passes(cost) {
            self.record_denial(cost);
            #[cfg(debug_assertions)]
            before.check_denied(&self.in_use(), self.policy);
            return self.denial(cost);
        }
        let delay = self.delay();
        self.charge(cost);
        #[cfg(debug_assertions)]
        before.check_taken(&self.in_use(), self.policy, cost);
        self.allowed(delay)
    }

    pub(crate) fn charge(&mut self, cost: u32) -> &Self {
        let now = self.now;
        self.store(|limit, state| limit.charge(state, now, cost))
    }

    /// Records a request of `cost` that was denied, where that counts, and stores the migrated state and the expired
    /// holds.
    pub(crate) fn record_denial(&mut self, cost: u32) {
        let now = self.now;
        if self.policy.records_denials() {
            reached!(DenialIsRecorded);
            self.store(|limit, state| {
                if limit.count_all() {
                    limit.charge(state, now, cost);
                }
            });
        } else if !self.migrated.is_empty() || self.expired.is_some() {
            reached!(DenialStoresMigration if !self.migrated.is_empty());
            self.store(|_, _| {});
        }
    }

    /// Whether every limit passes a request of `cost`.
    pub(crate) fn passes(&self, cost: u32) -> bool {
        let holds = self.holds();
        self.limits().all(|(limit, state)| holds.passes(limit, state, self.now, cost))
    }

    /// The delay of a request that passes.
    pub(crate) fn delay(&self) -> Duration {
        let delays = self.limits().map(|(limit, state)| limit.delay(state, self.now));
        Duration::from_micros(delays.max().unwrap_or(0))
    }

    fn reserve(&mut self, cost: u32, max_wait: u64) -> Decision {
        let (now, holds) = (self.now, self.holds());
        // The wait of each limit: until it would pass and, in a queue, until the requests before it have gone.
        let needs = |(limit, state): (&Limit, &State)| {
            if cost > limit.capacity() {
                return Retry::Never;
            }
            holds.wait(limit, state, now, cost).max(Retry::after_micros(limit.delay(state, now)))
        };
        let needed = self.limits().map(needs).max().unwrap_or(Retry::NOW);
        match needed {
            Retry::After(delay) if as_micros(delay) <= max_wait => {
                reached!(ReserveIsDelayed if !delay.is_zero());
                self.charge(cost);
                self.allowed(delay)
            }
            _ => {
                let wait = |(limit, state): (&Limit, &State)| {
                    holds.reserve_wait(limit, state, now, cost, max_wait)
                };
                let binding = first_greatest(self.limits().map(wait));
                let retry = self.limits().map(wait).max().unwrap_or(Retry::NOW);
                reached!(ReserveIsDenied);
                self.record_denial(cost);
                self.decision_of(Outcome::Deny { retry }, binding)
            }
        }
    }

    /// Allowed, with the current state of the key.
    pub(crate) fn answer(&self) -> Decision {
        self.allowed(Duration::ZERO)
    }

    /// Allowed with this delay, with the current state of the key.
    pub(crate) fn allowed(&self, delay: Duration) -> Decision {
        self.decision_of(Outcome::Allow { delay }, self.least_remaining())
    }

    /// The denial of a request of `cost`, which some limit does not pass, with the current state of the key.
    pub(crate) fn denial(&self, cost: u32) -> Decision {
        let holds = self.holds();
        let wait = |(limit, state): (&Limit, &State)| holds.wait(limit, state, self.now, cost);
        let waits: SmallVec<[Retry; 4]> = self.limits().map(wait).collect();
        let retry = waits.iter().copied().max().unwrap_or(Retry::NOW);
        self.decision_of(Outcome::Deny { retry }, first_greatest(waits.into_iter()))
    }

    /// The index of the limit with the least remaining.
    pub(crate) fn least_remaining(&self) -> usize {
        let (holds, now) = (self.holds(), self.now);
        first_greatest(
            self.limits().map(|(limit, state)| u32::MAX - holds.remaining(limit, state, now)),
        )
    }

    /// `outcome`, which the limit at `binding` determined, with the current state of the key.
    pub(crate) fn decision_of(&self, outcome: Outcome, binding: usize) -> Decision {
        let (holds, now) = (self.holds(), self.now);
        let limits = || self.limits();
        let remaining = limits().map(|(limit, state)| holds.remaining(limit, state, now)).min();
        let reset = limits().map(|(limit, state)| holds.reset_after(limit, state, now)).max();
        let reset = reset.max(Some(holds.all_expired(now)));
        Decision {
            outcome,
            limit: self.policy.limits().get(binding).map_or(0, Limit::capacity),
            remaining: remaining.unwrap_or(0),
            reset_after: Duration::from_micros(reset.unwrap_or(0)),
            binding,
        }
    }
}

/// The index of the first of the greatest.
pub(crate) fn first_greatest<T: Ord>(values: impl Iterator<Item = T>) -> usize {
    let mut greatest: Option<(usize, T)> = None;
    for (index, value) in values.enumerate() {
        if greatest.as_ref().is_none_or(|(_, most)| value > *most) {
            greatest = Some((index, value));
        }
    }
    greatest.map_or(0, |(index, _)| index)
}

// Holds: units that are taken now, and charged when the real usage is known.
//
// A hold is a request in flight, a stream of tokens, a job. It ends when it is settled, or expires; a metered one
// that expires is charged in full. Therefore a process that dies blocks units for a bounded time, and never causes
// an excess.

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
            debug_assert!(expires > now.as_micros(), "a hold that is open expires later");
            ledger.open(id, units, expires, !limit.counts_holds());
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
    debug_assert_eq!(remaining, holds.remaining(limit, state, now), "two formulas");
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
        #[cfg(debug_assertions)]
        let before = self.in_use();
        if self.passes(cost) {
            self.check_room()?;
            self.open(id, cost, ttl);
            #[cfg(debug_assertions)]
            before.check_held(&self.in_use(), cost);
            return Ok(self.answer());
        }
        self.record_denial(cost);
        #[cfg(debug_assertions)]
        before.check_denied(&self.in_use(), self.policy);
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
        debug_assert!(self.find(id).is_none(), "an id is open twice");
        self.store_entry(|entry| {
            entry.change_ledger(|ledger| ledger.open(id, units, expires, metered));
        });
    }

    /// Ends the hold at `at` of the ledger.
    pub(crate) fn settle(&mut self, at: RecordPosition, used: Option<u32>) -> &Self {
        let (now, policy) = (self.now, self.policy);
        self.store_entry(|entry| {
            let settled = entry.change_ledger(|ledger| ledger.remove(at));
            debug_assert!(settled.is_some(), "the hold was found");
            let Some((held, true)) = settled else { return };
            let units = used.unwrap_or(held);
            reached!(SettleBeyondHold if units > held);
            reached!(SettleBelowHold if units < held);
            reached!(SettleChargesOtherPolicy if !entry.policy.ptr_eq(policy) && !entry.policy.decides_like(policy));
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
