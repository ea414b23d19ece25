//! Checks of decisions in builds with debug assertions: what relates a decision to the state that it leaves, by formulas
//! other than those that made it.

use smallvec::SmallVec;

use crate::{
    algorithm::Limit,
    apply::{KeyState, apply_in_general},
    bytes::MAX_COUNT,
    decision::{Decision, Operation, Outcome, Retry},
    entry::Entry,
    policy::Policy,
    time::{Timestamp, as_micros},
};

/// Number of open holds up to which a check repeats a decision.
const FEW_HOLDS: usize = 8;
/// Number of open holds up to which a check reads all of them.
pub(crate) const SOME_HOLDS: usize = 64;
/// Times up to which a check looks ahead, because later ones saturate.
const LATEST: u64 = crate::bytes::MAX_TIME / 2;

/// Checks `decision`, and the entry that it left, against each other.
pub(crate) fn check_decision(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
    decision: &Decision,
) {
    check_fields(policy, operation, decision);
    match entry {
        None => {
            assert!(decision.reset_after.is_zero(), "an unused key has nothing to reset");
            let least = policy.limits().iter().map(Limit::capacity).min();
            assert_eq!(Some(decision.remaining), least, "an unused key has its full quota");
        }
        Some(entry) => {
            entry.check();
            if entry.policy.decides_like(policy) && entry.open_holds() <= SOME_HOLDS {
                assert!(entry.lifetime(now) >= decision.reset_after, "it is forgotten early");
                let over = entry.is_over(now);
                assert_eq!(over, entry.lifetime(now).is_zero(), "two ways to be over");
            }
        }
    }
    if let Outcome::Deny { retry: Retry::After(wait) } = decision.outcome
        && let Operation::Take(cost) | Operation::Peek(cost) | Operation::Hold { cost, .. } =
            operation
        && can_look_ahead(policy, entry.as_ref(), now)
    {
        let mut passes = |wait: u64| {
            let later = Timestamp::ahead(now.as_micros() + wait);
            apply_in_general(policy, entry, later, Operation::Peek(cost), 0)
                .is_ok_and(|it| it.allowed())
        };
        let wait = as_micros(wait);
        if now.as_micros() + wait <= LATEST {
            assert!(passes(wait), "it is denied after waiting for `retry_after`");
            assert!(!passes(wait - 1), "it passes before `retry_after`");
        }
    }
}

/// Checks the fields of a decision against each other and against the policy.
pub(crate) fn check_fields(policy: &Policy, operation: Operation, decision: &Decision) {
    let Decision { outcome, limit, remaining, reset_after, binding } = *decision;
    let bound = policy.limits().get(binding).map(Limit::capacity);
    assert_eq!(bound, Some(limit), "the limit is that of the binding one");
    let capacities = policy.limits().iter().map(Limit::capacity);
    assert!(capacities.clone().all(|capacity| remaining <= capacity), "more is left than fits");
    match outcome {
        Outcome::Allow { delay } => {
            assert!(delay <= reset_after, "a unit departs before its state recovers");
            if let Operation::Reserve { max_wait, .. } = operation {
                assert!(delay <= max_wait, "a reserve waits longer than it may");
            } else {
                let has_queue = policy.limits().iter().any(Limit::is_queue);
                assert!(delay.is_zero() || has_queue, "only a queue delays a take");
            }
            if let Operation::Take(1..) | Operation::Hold { cost: 1.., .. } = operation {
                assert!(!reset_after.is_zero(), "units were taken");
            }
        }
        Outcome::Deny { retry: Retry::After(wait) } => {
            assert!(!wait.is_zero(), "a request that is denied does not pass now");
            assert!(wait <= reset_after, "an unused key passes what may pass at all");
        }
        Outcome::Deny { retry: Retry::Never } => {
            let mut fits = capacities.zip(policy.limits()).map(|(capacity, limit)| {
                limit.borrow() && !matches!(operation, Operation::Reserve { .. })
                    || operation.cost() <= capacity
            });
            let is_not_open =
                matches!(operation, Operation::Settle { .. } | Operation::Renew { .. });
            assert!(is_not_open || !fits.all(|it| it), "a cost that fits passes some time");
        }
    }
}

/// Whether the answer to a peek at a later time is known from that at `now`: the entry is small, is stored under this policy,
/// and has no time later than `now`; and no hold that expires can make a limit deny again.
fn can_look_ahead(policy: &Policy, entry: Option<&Entry>, now: Timestamp) -> bool {
    let Some(entry) = entry else { return false };
    let holds = entry.open_holds();
    entry.policy.decides_like(policy)
        && !entry.has_expired_holds(now)
        && (holds == 0 || holds <= FEW_HOLDS && policy.limits().len() == 1 && !policy.grows())
        && entry.limits().all(|(limit, state)| limit.latest(state) <= now.as_micros())
}

/// Units in use under each limit of a key, and those that are held.
pub(crate) struct InUse {
    used: SmallVec<[u64; 4]>,
    held: u64,
}

impl InUse {
    pub(crate) fn of(key: &KeyState<'_>) -> Self {
        let used = key.limits().map(|(limit, state)| limit.used(state, key.now)).collect();
        Self { used, held: held(key.entry()) }
    }

    /// Checks that every limit of `key` has charged exactly `cost`. All of them passed it.
    pub(crate) fn check_taken(&self, key: &KeyState<'_>, cost: u32) {
        let after = Self::of(key);
        for ((before, after), limit) in self.used.iter().zip(&after.used).zip(key.policy.limits()) {
            let expected = (before + u64::from(cost)).min(MAX_COUNT);
            assert!(*after == expected || limit.borrow(), "{limit} charged {before} to {after}");
        }
        assert_eq!(self.held, after.held, "a take holds nothing");
    }

    /// Checks that `units` are held, and nothing was charged.
    pub(crate) fn check_held(&self, key: &KeyState<'_>, units: u32) {
        let after = Self::of(key);
        assert_eq!(self.held + u64::from(units), after.held, "the units of the hold are held");
        assert!(self.used == after.used, "a hold charges nothing");
    }

    /// Checks a denial: limits charge it only if they record it.
    pub(crate) fn check_denied(&self, key: &KeyState<'_>) {
        let after = Self::of(key);
        assert_eq!(self.held, after.held, "a denied request holds nothing");
        for ((before, after), limit) in self.used.iter().zip(after.used).zip(key.policy.limits()) {
            assert!(before == &after || limit.count_all(), "{limit} charged a denied request");
        }
    }

    /// Checks that no limit has more in use than before: units were given back.
    pub(crate) fn check_refunded(&self, key: &KeyState<'_>, cost: u32) {
        for (before, after) in self.used.iter().zip(Self::of(key).used) {
            assert!(after <= *before, "a refund takes units");
            assert!(before - after <= u64::from(cost), "a refund gives back more than its cost");
        }
    }
}

fn held(entry: Option<&Entry>) -> u64 {
    entry.and_then(Entry::ledger).map_or(0, |ledger| ledger.held(false))
}

/// A copy of an entry before the fast path, if it is small.
pub(crate) fn small_copy(policy: &Policy, entry: &Option<Entry>) -> Option<Option<Entry>> {
    let is_small = |entry: &Entry| entry.open_holds() <= FEW_HOLDS && !entry.grows();
    (!policy.grows() && entry.as_ref().is_none_or(is_small)).then(|| entry.clone())
}

/// Checks that the fast path decided as the general one does, on a copy of the entry `before` it.
pub(crate) fn check_fast_path(
    policy: &Policy,
    before: Option<Option<Entry>>,
    after: Option<&Entry>,
    now: Timestamp,
    (operation, ttl): (Operation, u64),
    decision: &Decision,
) {
    let Some(mut entry) = before else { return };
    let general = apply_in_general(policy, &mut entry, now, operation, ttl);
    assert_eq!(general.as_ref(), Ok(decision), "the fast path decides differently");
    assert_eq!(
        entry.as_ref(),
        after.filter(|it| !it.is_idle()),
        "the fast path stores another state"
    );
}

impl Entry {
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
        assert_eq!(open, held(Some(after)), "the units of the open holds stay");
        assert_eq!(states[..], after.states[..states.len()], "each is charged when it expires");
    }
}
