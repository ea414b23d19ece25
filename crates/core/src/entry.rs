//! All that is kept of a key, and its byte form outside a process.
//!
//! The bytes are laid out so that Lua reads them with `struct.unpack` and exact doubles: all numbers are little-endian, and earlier
//! fields determine their width. `docs/state-format.md` is the specification, byte by byte. Decoding an encoded entry
//! gives an equal one; any bytes decode to an entry or to an error, never to a guess; a length that the bytes merely
//! claim allocates nothing.

use std::time::Duration;

use smallvec::{SmallVec, smallvec};

#[cfg(debug_assertions)]
use crate::ledger::FEW_HOLDS;
use crate::{
    algorithm::{Limit, State, WindowState},
    bytes::{FLAGS, Head, Reader, StateError, Writer},
    ledger::{Hold, Ledger},
    look_ahead::{KnownExpiries, OpenHolds},
    policy::Policy,
    reached,
    text::MAX_LIMITS,
    time::Timestamp,
};

/// Usage of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Units in use, those that are held included, rounded up.
    pub used: u64,
    /// The units of open holds among them.
    pub held: u64,
    /// Number of requests of cost 1 that this limit would still pass at once.
    pub remaining: u32,
    /// The time until nothing is in use.
    pub reset_after: Duration,
    /// Of a limit that estimates by two windows: the units counted in the window before the current one, and in that.
    pub window_counts: Option<(u64, u64)>,
}

/// States of limits. Most policies have one, which needs no memory of its own.
pub(crate) type States = SmallVec<[State; 1]>;

/// All state of a key, with the policy that it was written under.
///
/// Only [`apply`](crate::apply) makes one. Stores store it as it is, or as bytes
/// ([`Entry::encode`](crate::Entry::encode)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub(crate) policy: Policy,
    /// As many as the policy has limits; behind them [`State::Holds`], if holds are open or the entry is
    /// [idle](Entry::is_idle).
    pub(crate) states: States,
}

impl Entry {
    /// The entry of an unused key, for stores that store bytes: no [`apply`](crate::apply) makes one.
    #[must_use]
    pub fn unused(policy: &Policy) -> Self {
        Self { policy: policy.clone(), states: smallvec![State::None; policy.limits().len()] }
    }

    /// The entry of an unused key under a policy of one limit, for its first hold.
    pub(crate) fn with_ledger(policy: &Policy) -> Self {
        let states = smallvec![State::None, State::Holds(Box::default())];
        Self { policy: policy.clone(), states }
    }

    /// The policy that the state was last written under.
    #[must_use]
    pub const fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Each limit of the policy with its usage at `now`, in the order written.
    pub fn usage(&self, now: Timestamp) -> impl Iterator<Item = (&Limit, Usage)> {
        let charged = self.has_expired_holds(now).then(|| self.after_expiries(now));
        let charged = charged.map(|entry| entry.unwrap_or_else(|| Self::unused(&self.policy)));
        let entry = charged.as_ref().unwrap_or(self);
        let expiries = KnownExpiries::default();
        let holds = OpenHolds::new(entry.ledger(), &expiries);
        let usage = entry.limits().map(|(limit, state)| {
            let reset_after = holds.reset_after(limit, state, now).max(holds.all_expired(now));
            let held = holds.held(limit);
            Usage {
                used: limit.used(state, now) + held,
                held,
                remaining: holds.remaining(limit, state, now),
                reset_after: Duration::from_micros(reset_after),
                window_counts: limit.window_counts(state, now),
            }
        });
        let usage: SmallVec<[Usage; 1]> = usage.collect();
        self.policy.limits().iter().zip(usage)
    }

    /// The holds that are open at `now`, in the order in which they expire.
    pub fn holds(&self, now: Timestamp) -> impl Iterator<Item = Hold<'_>> {
        let holds = self.ledger().into_iter().flat_map(Ledger::iter);
        holds.filter(move |hold| hold.expires > now.as_micros())
    }

    /// How long the entry must be stored from `now` on; zero when it may be dropped.
    ///
    /// This is the `reset_after` of its policy, and longer for a log that stores events for a later
    /// policy (`keep`).
    #[must_use]
    pub fn lifetime(&self, now: Timestamp) -> Duration {
        if self.ledger().is_some_and(|ledger| ledger.has_expired(now)) {
            return self.after_expiries(now).map_or(Duration::ZERO, |it| it.lifetime(now));
        }
        let expiries = KnownExpiries::default();
        let holds = OpenHolds::new(self.ledger(), &expiries);
        let lifetime = |(limit, state)| holds.lifetime(limit, state, now);
        let micros = self.limits().map(lifetime).max().unwrap_or(0);
        Duration::from_micros(micros.max(holds.all_expired(now)))
    }

    /// The entry of a key that owes `debt` ticks at `now`, under a policy of one limit of the gcra
    /// family ([`Gcra::try_take`](crate::Gcra::try_take)); `None` under any other, and where nothing is
    /// owed.
    #[must_use]
    pub fn with_debt(policy: &Policy, now: Timestamp, debt: u128) -> Option<Self> {
        let state = policy.as_gcra()?.with_debt(now, debt)?;
        Some(Self { policy: policy.clone(), states: smallvec![State::Gcra(state)] })
    }

    /// The ticks that the key owes at `now`, under a policy of one limit of the gcra family and without open holds.
    #[must_use]
    pub fn debt(&self, now: Timestamp) -> Option<u128> {
        let gcra = self.policy.as_gcra()?;
        match &self.states[..] {
            [State::Gcra(state)] => Some(gcra.debt(Some(state), now)),
            [_, State::Holds(_)] => None,
            _ => Some(0),
        }
    }

    /// The entry of a key that has used `used` units in a window that began at `start`, under a policy of one fixed
    /// window ([`FixedWindow::try_take`](crate::FixedWindow::try_take)); `None` under any other, and if nothing is
    /// used.
    #[must_use]
    pub fn with_window(policy: &Policy, start: Timestamp, used: u64) -> Option<Self> {
        policy.as_window().filter(|_| used > 0)?;
        let state = State::FixedWindow(WindowState { start: start.as_micros(), used });
        Some(Self { policy: policy.clone(), states: smallvec![state] })
    }

    /// When the window of the key began, and the units used in it, under a policy of one fixed window and without open holds.
    #[must_use]
    pub fn window(&self) -> Option<(Timestamp, u64)> {
        match &self.states[..] {
            [State::FixedWindow(state)] => {
                Some((Timestamp::saturating_from_micros(state.start), state.used))
            }
            _ => None,
        }
    }

    /// The window of `now` that all fixed windows of the policy have in common: the latest of their starts, and the earliest
    /// of their ends. `None` if it has none.
    #[must_use]
    pub fn common_window(&self, now: Timestamp) -> Option<(Timestamp, Timestamp)> {
        let windows = self.limits().filter_map(|(limit, state)| limit.window_at(state, now));
        let (start, end) = windows.reduce(|one, other| (one.0.max(other.0), one.1.min(other.1)))?;
        Some((Timestamp::ahead(start), Timestamp::ahead(end)))
    }

    /// The same entry under an equal policy, so that both are one object.
    #[must_use]
    pub fn under(self, policy: &Policy) -> Self {
        if self.policy == *policy { Self { policy: policy.clone(), ..self } } else { self }
    }

    /// Whether a hold of that id is open at `now`.
    #[must_use]
    pub fn has_open_hold(&self, id: &[u8], now: Timestamp) -> bool {
        let open = self.ledger().and_then(|ledger| ledger.get(id));
        open.is_some_and(|hold| hold.expires > now.as_micros())
    }

    /// Number of open holds, with those that have expired and are not charged yet.
    #[must_use]
    pub fn open_holds(&self) -> usize {
        self.ledger().map_or(0, Ledger::len)
    }

    /// Whether the entry may be forgotten: its [`lifetime`](Self::lifetime) is over.
    #[must_use]
    pub fn is_over(&self, now: Timestamp) -> bool {
        // An open hold alone keeps the entry.
        self.ledger().is_none_or(|ledger| ledger.last_expiry() <= now.as_micros())
            && self.lifetime(now).is_zero()
    }

    /// Whether nothing is in use and no hold is open, and only the memory of a ledger is left
    /// ([`apply_in_place`](crate::apply_in_place)).
    #[must_use]
    pub fn is_idle(&self) -> bool {
        matches!(&self.states[..], [State::None, State::Holds(ledger)] if ledger.is_empty())
    }

    /// Whether a request under `policy` leaves the policy of the entry: one of only `concurrency` limits replaces no other.
    pub(crate) fn keeps_policy(&self, policy: &Policy) -> bool {
        policy.is_concurrency() && !self.policy.is_concurrency()
    }

    /// Whether a request under `policy`, denied or not, stores the entry under that policy in place of another one.
    #[must_use]
    pub fn changes_policy(&self, policy: &Policy) -> bool {
        !self.policy.decides_like(policy) && !self.keeps_policy(policy)
    }

    /// Whether holds have expired by `now`, which the next operation that changes the entry charges.
    #[must_use]
    pub fn has_expired_holds(&self, now: Timestamp) -> bool {
        self.ledger().is_some_and(|ledger| ledger.has_expired(now))
    }

    /// Whether it grows with every request, up to its limit: a log does.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.policy.grows()
    }

    /// A copy whose cost does not depend on the length of a log: later copies share its events. It takes no more memory than
    /// the entry.
    #[must_use]
    pub fn share(&mut self) -> Self {
        // Collected, they would take more: the number is rounded up.
        let mut states = States::with_capacity(self.states.len());
        states.extend(self.states.iter_mut().map(State::share));
        Self { policy: self.policy.clone(), states }
    }

    /// The bytes of each piece of memory that the entry holds, its policy aside: that is shared.
    #[inline]
    pub fn allocations(&self) -> impl Iterator<Item = usize> {
        let capacity = if self.states.spilled() { self.states.capacity() } else { 0 };
        let states = capacity * size_of::<State>();
        std::iter::once(states).chain(self.states.iter().map(State::heap_size))
    }

    pub(crate) fn limits(&self) -> impl Iterator<Item = (&Limit, &State)> {
        self.policy.limits().iter().zip(&self.states)
    }

    /// The open holds, if there are any. Some may have expired: [`Entry::after_expiries`].
    pub(crate) fn ledger(&self) -> Option<&Ledger> {
        match self.states.last() {
            Some(State::Holds(ledger)) => Some(ledger),
            _ => None,
        }
    }

    /// Changes the open holds.
    pub(crate) fn change_ledger<R>(&mut self, change: impl FnOnce(&mut Ledger) -> R) -> R {
        if self.ledger().is_none() {
            self.states.push(State::Holds(Box::default()));
        }
        let Some(State::Holds(ledger)) = self.states.last_mut() else { unreachable!() };
        let changed = change(ledger);
        if ledger.is_empty() {
            self.states.pop();
        }
        changed
    }

    /// The entry once the holds that have expired at `now` are charged; `None` if nothing is left in use. Each is
    /// charged at the time at which it expired. An operation answers the same on either, unless it comes before `now`.
    #[must_use]
    pub fn after_expiries(&self, now: Timestamp) -> Option<Self> {
        let mut entry = self.clone();
        let expired = entry.change_ledger(|ledger| ledger.remove_expired(now));
        reached!(MeteredHoldExpires if !expired.is_empty());
        reached!(UnmeteredHoldExpires if expired.is_empty());
        for (limit, state) in entry.policy.limits().iter().zip(&mut entry.states) {
            limit.charge_all(state, &expired);
        }
        debug_assert!(!entry.has_expired_holds(now), "an expired hold is charged again");
        #[cfg(debug_assertions)]
        self.check_expired(&entry, now);
        (!entry.is_unused()).then_some(entry)
    }

    /// Charges `units`, at least 1, to every limit of its policy.
    pub(crate) fn charge(&mut self, at: Timestamp, units: u32) {
        for (limit, state) in self.policy.limits().iter().zip(&mut self.states) {
            limit.charge(state, at, units);
        }
    }

    pub(crate) fn is_unused(&self) -> bool {
        self.states.iter().all(|state| *state == State::None)
    }
}

#[cfg(debug_assertions)]
impl Entry {
    /// Units of all open holds.
    pub(crate) fn held(&self) -> u64 {
        self.ledger().map_or(0, |ledger| ledger.held(false))
    }

    /// Checks the states against the policy.
    pub(crate) fn check(&self) {
        let limits = self.policy.limits();
        let holds = usize::from(self.ledger().is_some());
        assert_eq!(self.states.len(), limits.len() + holds, "one state for each limit");
        for (limit, state) in self.limits() {
            limit.check_state(state);
        }
        if let Some(ledger) = self.ledger() {
            ledger.check();
            assert!(!ledger.is_empty() || self.is_idle(), "an empty ledger stays beside a state");
        }
    }

    /// Checks the entry `after` the holds that have expired at `now` are charged: each of them once.
    pub(crate) fn check_expired(&self, after: &Self, now: Timestamp) {
        let Some(ledger) = self.ledger().filter(|it| it.len() <= FEW_HOLDS && !self.grows()) else {
            return;
        };
        // One after the other, in the order in which they expire.
        let mut holds: SmallVec<[_; FEW_HOLDS]> = ledger.iter().collect();
        holds.sort_by_key(|hold| hold.expires);
        let mut states = self.states[..self.policy.limits().len()].to_vec();
        let mut open = 0;
        for hold in holds {
            if hold.expires > now.as_micros() {
                open += u64::from(hold.units);
            } else if hold.metered {
                for (limit, state) in self.policy.limits().iter().zip(&mut states) {
                    limit.charge(state, Timestamp::ahead(hold.expires), hold.units);
                }
            }
        }
        assert_eq!(open, after.held(), "the units of the open holds stay");
        assert_eq!(states[..], after.states[..states.len()], "each is charged when it expires");
    }
}

/// The version of the byte form of an entry with open holds, or with a limit that counts them.
const VERSION: u8 = 4;
/// The version of all other entries, which takes less space.
const WITHOUT_HOLDS: u8 = 2;
/// Versions to come end here, so that a value whose first byte is a letter, a digit or a tab is known
/// to be of another program.
const LAST_VERSION: u8 = 7;

impl Entry {
    /// The entry as bytes.
    ///
    /// ```
    /// use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
    ///
    /// let policy: Policy = "gcra:30/60s:burst=16".parse()?;
    /// let mut entry = None;
    /// let now = Timestamp::from_micros(1_700_000_000_000_000)?;
    /// let _ = apply(&policy, &mut entry, now, Operation::Take(1))?;
    ///
    /// let entry = entry.expect("a unit is in use");
    /// let bytes = entry.encode();
    /// assert_eq!(bytes.len(), 24);
    /// assert_eq!(Entry::decode(&bytes), Ok(entry));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = self.head();
        for (limit, state) in self.limits() {
            limit.encode(state, &mut out);
        }
        if let Some(ledger) = self.ledger() {
            ledger.encode(&mut out);
        }
        out.0
    }

    /// The version and the number of limits.
    fn head(&self) -> Writer {
        let has_holds = self.ledger().is_some() || self.policy.counts_holds();
        let mut out = Writer(Vec::with_capacity(24));
        out.uint(if has_holds { VERSION } else { WITHOUT_HOLDS }.into(), 1);
        out.uint(self.policy.limits().len() as u64, 1);
        out
    }

    /// The length of the bytes that [`encode`](Self::encode) returns.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let mut logs = 0;
        let mut out = self.head();
        for (limit, state) in self.limits() {
            let log = state.log_len();
            limit.encode(if log > 0 { &State::None } else { state }, &mut out);
            logs += log;
        }
        out.0.len() + logs + self.ledger().map_or(0, Ledger::encoded_len)
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// [`StateError`] for an entry of a later version, and for any other bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let mut input = Reader(bytes);
        let version = match input.byte() {
            Ok(version @ (WITHOUT_HOLDS | VERSION)) => version,
            Ok(3) => return Err(StateError::Damaged("its version 3 was never released")),
            Ok(version) if (VERSION..=LAST_VERSION).contains(&version) => {
                return Err(StateError::Version(version));
            }
            Ok(_) | Err(_) => return Err(StateError::Foreign),
        };
        let count = usize::from(input.byte()?);
        if !(1..=MAX_LIMITS).contains(&count) {
            return Err(StateError::Damaged("its number of limits is not 1 to 8"));
        }
        let mut limits = Vec::with_capacity(count);
        let mut states = States::with_capacity(count);
        for _ in 0..count {
            let (limit, state) = read_limit(&mut input)?;
            limits.push(limit);
            states.push(state);
        }
        if version == VERSION && !input.0.is_empty() {
            states.push(State::Holds(Box::new(Ledger::decode(&mut input)?)));
        }
        if !input.0.is_empty() {
            return Err(StateError::Damaged("it goes on after its end"));
        }
        let policy =
            Policy::try_from(limits).map_err(|_| StateError::Damaged("it has no limits"))?;
        Ok(Self { policy, states })
    }
}

/// The limit and the state that `input` goes on with.
fn read_limit(input: &mut Reader<'_>) -> Result<(Limit, State), StateError> {
    let first = input.byte()?;
    let (code, flags) = (first & !FLAGS, first & FLAGS);
    let known = Limit::flags(code);
    let known = known.ok_or(StateError::Damaged("a limit is of no known algorithm"))?;
    if flags & !known != 0 {
        return Err(StateError::Damaged("a limit has an unknown flag"));
    }
    let head = Head { code, flags, limit: input.u32()? };
    Limit::decode(head, input)
}

#[cfg(test)]
mod tests {
    use crate::{Operation, apply};

    use super::*;

    #[test]
    fn usage_after_a_hold_has_expired_charges_it_or_frees_its_units() {
        for (policy, expected) in [("concurrency:9/1h", (2, 7)), ("fixed-window:9/1h", (5, 4))] {
            let (policy, mut entry) = (policy.parse().unwrap(), None);
            for (id, cost, millis) in [(b"a", 2, 60_000), (b"b", 3, 1)] {
                let ttl = Some(Duration::from_millis(millis));
                let hold = Operation::Hold { id, cost, ttl };
                assert!(apply(&policy, &mut entry, Timestamp::EPOCH, hold).unwrap().allowed());
            }
            let entry = entry.unwrap();
            let now = Timestamp::from_micros(1000).unwrap();
            let (_, usage) = entry.usage(now).next().unwrap();
            assert_eq!((usage.used, usage.remaining), expected, "{policy}");
            let open: Vec<_> = entry.holds(now).map(|it| (it.id, it.expires_after(now))).collect();
            assert_eq!(open, [(&b"a"[..], Duration::from_millis(59_999))]);
            assert_eq!(entry.holds(Timestamp::EPOCH).map(|it| it.units).sum::<u32>(), 5);
        }
    }
}
