//! Checks of decisions in builds with debug assertions: what relates a decision to the state that it leaves, by formulas
//! other than those that made it.

use smallvec::SmallVec;

use crate::{
    algorithm::{Limit, State},
    bytes::MAX_COUNT,
    decision::{Decision, Operation, Outcome, Retry},
    entry::Entry,
    ledger::{FEW_HOLDS, SOME_HOLDS},
    policy::Policy,
    time::{Timestamp, as_micros},
};

/// Times up to which a check looks ahead, because later ones saturate.
const LATEST: u64 = crate::bytes::MAX_TIME / 2;

/// Checks `decision`, and the entry that it left, against each other. `peek` is whether a peek at that entry passes, of that
/// cost and at that time.
pub(crate) fn check_decision(
    policy: &Policy,
    entry: &mut Option<Entry>,
    now: Timestamp,
    operation: Operation,
    decision: &Decision,
    peek: impl Fn(&mut Option<Entry>, Timestamp, u32) -> bool,
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
                // After the clock was set back, a peek takes later times as `now`, but stores nothing.
                let is_kept = entry.lifetime(now) >= decision.reset_after;
                assert!(is_kept || !is_in_order(entry, now), "it is forgotten early");
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
        let mut passes = |wait: u64| peek(entry, Timestamp::ahead(now.as_micros() + wait), cost);
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
        && is_in_order(entry, now)
}

/// Whether no limit stores a time later than `now`.
fn is_in_order(entry: &Entry, now: Timestamp) -> bool {
    entry.limits().all(|(limit, state)| limit.latest(state) <= now.as_micros())
}

/// Units in use under each limit of a key, and those that are held.
pub(crate) struct InUse {
    used: SmallVec<[u64; 4]>,
    held: u64,
    /// Whether no limit stores a time later than `now`.
    is_in_order: bool,
}

impl InUse {
    pub(crate) fn new<'a>(
        limits: impl Iterator<Item = (&'a Limit, &'a State)>,
        entry: Option<&Entry>,
        now: Timestamp,
    ) -> Self {
        let mut this =
            Self { used: SmallVec::new(), held: entry.map_or(0, Entry::held), is_in_order: true };
        for (limit, state) in limits {
            this.used.push(limit.used(state, now));
            this.is_in_order &= limit.latest(state) <= now.as_micros();
        }
        this
    }

    /// Checks that every limit has charged exactly `cost`. All of them passed it.
    pub(crate) fn check_taken(&self, after: &Self, policy: &Policy, cost: u32) {
        for ((before, after), limit) in self.used.iter().zip(&after.used).zip(policy.limits()) {
            let expected = (before + u64::from(cost)).min(MAX_COUNT);
            assert!(*after == expected || limit.borrow(), "{limit} charged {before} to {after}");
        }
        assert_eq!(self.held, after.held, "a take holds nothing");
    }

    /// Checks that `units` are held, and nothing was charged.
    pub(crate) fn check_held(&self, after: &Self, units: u32) {
        assert_eq!(self.held + u64::from(units), after.held, "the units of the hold are held");
        assert!(self.used == after.used, "a hold charges nothing");
    }

    /// Checks a denial: limits charge it only if they record it.
    pub(crate) fn check_denied(&self, after: &Self, policy: &Policy) {
        assert_eq!(self.held, after.held, "a denied request holds nothing");
        for ((before, after), limit) in self.used.iter().zip(&after.used).zip(policy.limits()) {
            assert!(before == after || limit.count_all(), "{limit} charged a denied request");
        }
    }

    /// Checks that no limit has more in use than before, and none less by more than `cost`.
    pub(crate) fn check_refunded(&self, after: &Self, cost: u32) {
        // A refund of an event later than `now` lets older ones count again that `keep` has kept.
        if !self.is_in_order {
            return;
        }
        for (before, after) in self.used.iter().zip(&after.used) {
            assert!(after <= before, "a refund takes units");
            assert!(before - after <= u64::from(cost), "a refund gives back more than its cost");
        }
    }
}

/// A copy of an entry before the fast path, if it is small.
pub(crate) fn small_copy(policy: &Policy, entry: &Option<Entry>) -> Option<Option<Entry>> {
    let is_small = |entry: &Entry| entry.open_holds() <= FEW_HOLDS && !entry.grows();
    (!policy.grows() && entry.as_ref().is_none_or(is_small)).then(|| entry.clone())
}
