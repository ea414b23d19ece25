//! One decision on several keys: a user, its tenant, and all users.
//!
//! It equals the decision of one policy of all their limits on one key: all are evaluated at the same time; it is
//! allowed if every one allows; otherwise none is charged, but limits with `count=all` record, also those of a key
//! that alone would have allowed.

use std::time::Duration;

use crate::{
    apply::{KeyState, OperationError, first_greatest},
    decision::{Decision, Operation, Outcome, Retry},
    entry::Entry,
    holds::{HoldError, HoldOperation},
    policy::Policy,
    time::Timestamp,
};

/// Maximum number of keys of one decision.
pub const MAX_KEYS_PER_TAKE: usize = 8;

/// One key of a multi-key take.
#[derive(Debug)]
pub struct EntryTake<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The entry of the key.
    pub entry: &'a mut Option<Entry>,
    /// Units to take: `0..=u32::MAX`. A cost of 0 is always allowed, and nothing is stored.
    pub cost: u32,
}

/// An operation on several keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MultiKeyOperation<'a> {
    /// Take from all of them or from none.
    Take,
    /// Return what `Take` or `Hold` would return, and store nothing: a denial as if it was not recorded.
    Peek,
    /// Hold units of all of them or of none, under one id. A key in which the id is open is allowed, and does not change.
    /// Each key is settled by itself.
    Hold {
        /// The id; see [`HoldOperation`].
        id: &'a [u8],
        /// How long the holds are open; see [`HoldOperation::Hold`].
        ttl: Option<Duration>,
    },
}

/// The decision on several keys.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiKeyDecision {
    /// The decision: `remaining` is the least of all keys, `retry`, `reset_after` and `delay` the greatest; `limit`
    /// and `binding` are those of the binding key.
    pub decision: Decision,
    /// The binding key, from 0: if denied, the one that takes longest to pass; if allowed, the one with the least
    /// remaining; among equals, the first.
    pub key: usize,
    /// The decision on each key: allowed, or when it would be. If any is denied, none is charged.
    pub each: Vec<Decision>,
}

impl MultiKeyDecision {
    /// Combines the decisions on the keys. `None` for no key.
    #[must_use]
    pub fn of(each: Vec<Decision>) -> Option<Self> {
        let wait = |it: &Decision| it.retry().unwrap_or(Retry::NOW);
        let (longest, delay, remaining, reset_after) = (
            each.iter().map(wait).max()?,
            each.iter().map(Decision::delay).max()?,
            each.iter().map(|it| it.remaining).min()?,
            each.iter().map(|it| it.reset_after).max()?,
        );
        let allowed = each.iter().all(Decision::allowed);
        let key = if allowed {
            first_greatest(each.iter().map(|it| u32::MAX - it.remaining))
        } else {
            first_greatest(each.iter().map(wait))
        };
        let outcome =
            if allowed { Outcome::Allow { delay } } else { Outcome::Deny { retry: longest } };
        let Decision { limit, binding, .. } = *each.get(key)?;
        let decision = Decision { outcome, limit, remaining, reset_after, binding };
        Some(Self { decision, key, each })
    }

    /// Whether all keys allow the request.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        self.decision.allowed()
    }

    /// The longest delay of a key; zero if denied.
    #[must_use]
    pub const fn delay(&self) -> Duration {
        self.decision.delay()
    }

    /// When to try again; `None` if allowed.
    #[must_use]
    pub const fn retry(&self) -> Option<Retry> {
        self.decision.retry()
    }
}

/// An operation on several keys that is invalid, or that a policy does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MultiKeyError {
    /// There is no key.
    #[error("missing key: expected at least one")]
    MissingKey,
    /// A policy does not support a take.
    #[error(transparent)]
    Operation(#[from] OperationError),
    /// A policy does not support the hold, or it is invalid.
    #[error(transparent)]
    Hold(#[from] HoldError),
}

/// Applies `operation` to several keys at `now`. The entries must be of different keys.
///
/// ```
/// use sluicegate_core::{EntryTake, MultiKeyOperation, Policy, Timestamp, apply_multi_key};
///
/// let [user, tenant]: [Policy; 2] = ["gcra:5/1m".parse()?, "fixed-window:6/1h".parse()?];
/// let (mut anna, mut ben, mut acme) = (None, None, None);
/// let mut take = |entry: &mut _, cost| {
///     let parts = &mut [
///         EntryTake { policy: &user, entry, cost },
///         EntryTake { policy: &tenant, entry: &mut acme, cost },
///     ];
///     apply_multi_key(MultiKeyOperation::Take, parts, Timestamp::EPOCH).expect("two keys")
/// };
/// assert!(take(&mut anna, 4).allowed());
/// let denied = take(&mut anna, 2);
/// assert_eq!((denied.key, denied.decision.remaining), (0, 1), "her own limit is binding");
/// // The denied request has cost the tenant nothing.
/// assert!(take(&mut ben, 2).allowed());
/// assert_eq!(take(&mut ben, 1).key, 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`MultiKeyError`]: no key, or a policy does not support the operation. Nothing is changed.
pub fn apply_multi_key(
    operation: MultiKeyOperation<'_>,
    parts: &mut [EntryTake<'_>],
    now: Timestamp,
) -> Result<MultiKeyDecision, MultiKeyError> {
    let ttls = parts.iter().map(|part| part.policy.check_multi_key(operation, part.cost));
    let ttls = ttls.collect::<Result<Vec<_>, _>>()?;
    let mut parts: Vec<_> =
        parts.iter_mut().map(|part| EvaluatedTake::new(part, now, operation)).collect();
    let delays = delays(&parts);
    if let (MultiKeyOperation::Hold { .. }, Some(_)) = (operation, &delays) {
        parts.iter().filter(|part| part.takes_units).try_for_each(|part| part.key.check_room())?;
    }
    let each = parts.iter_mut().enumerate().map(|(index, part)| {
        match operation {
            MultiKeyOperation::Peek => {}
            _ if !part.takes_units => {}
            _ if delays.is_none() => part.key.record_denial(part.cost),
            MultiKeyOperation::Take => _ = part.key.charge(part.cost),
            MultiKeyOperation::Hold { id, .. } => part.key.open(id, part.cost, ttls[index]),
        }
        decide_key(part, delays.as_ref().map(|delays| delays[index]))
    });
    let each = each.collect();
    MultiKeyDecision::of(each).ok_or(MultiKeyError::MissingKey)
}

impl Policy {
    /// Checks that the policy of one of the keys supports the operation, and returns the lifetime of the hold, in
    /// microseconds; 0 without a hold.
    ///
    /// # Errors
    /// [`MultiKeyError`]: it does not.
    pub fn check_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        cost: u32,
    ) -> Result<u64, MultiKeyError> {
        match operation {
            MultiKeyOperation::Take => self.check_operation(Operation::Take(cost))?,
            MultiKeyOperation::Peek => {}
            MultiKeyOperation::Hold { id, ttl } => {
                return Ok(self.check_hold(&HoldOperation::Hold { id, cost, ttl })?);
            }
        }
        Ok(0)
    }
}

/// The take of one key, with the state of the key.
struct EvaluatedTake<'a> {
    key: KeyState<'a>,
    cost: u32,
    /// Whether units are taken from it. Otherwise it is allowed without a change.
    takes_units: bool,
}

impl<'a> EvaluatedTake<'a> {
    fn new(part: &'a mut EntryTake<'_>, now: Timestamp, operation: MultiKeyOperation<'_>) -> Self {
        let EntryTake { policy, entry, cost } = part;
        let key = KeyState::new(policy, entry, now);
        let is_open = match operation {
            MultiKeyOperation::Hold { id, .. } => key.find(id).is_some(),
            MultiKeyOperation::Take | MultiKeyOperation::Peek => false,
        };
        Self { key, cost: *cost, takes_units: *cost > 0 && !is_open }
    }
}

/// The delay of each key, if every one passes.
fn delays(parts: &[EvaluatedTake<'_>]) -> Option<Vec<Duration>> {
    let delay = |part: &EvaluatedTake<'_>| match part {
        EvaluatedTake { takes_units: false, .. } => Some(Duration::ZERO),
        EvaluatedTake { key, cost, .. } => key.passes(*cost).then(|| key.delay()),
    };
    parts.iter().map(delay).collect()
}

/// The decision on one key: allowed with all others, with a `delay`, or not charged because one denies.
fn decide_key(
    EvaluatedTake { key, cost, takes_units }: &EvaluatedTake<'_>,
    delay: Option<Duration>,
) -> Decision {
    match delay {
        _ if !takes_units => key.answer(),
        Some(delay) => key.allowed(delay),
        None if key.passes(*cost) => key.answer(),
        None => key.denial(*cost),
    }
}
