//! One decision on several keys: a user, its tenant, and all users.
//!
//! It equals the decision of one policy of all their limits on one key: all are evaluated at the same time; it is
//! allowed if every one allows; otherwise none is charged, but limits with `count=all` record, also those of a key
//! that alone would have allowed.

use std::time::Duration;

#[cfg(debug_assertions)]
use crate::check::check_fields;
use crate::{
    answer::{Answer, Source},
    apply::{KeyState, OperationError},
    decision::{Decision, Operation, RequestError},
    entry::Entry,
    policy::Policy,
    reached,
    time::Timestamp,
};

/// The operation on one of several keys.
#[derive(Debug)]
pub struct EntryOperation<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// The entry of the key.
    pub entry: &'a mut Option<Entry>,
    /// The operation. A cost of 0 is always allowed, and nothing is stored.
    pub operation: Operation<'a>,
}

/// Applies operations to several keys at `now`, all or none. The entries must be of different keys.
///
/// The operations are takes, peeks, or holds under one id, and differ only in their cost. A key in which the id is open
/// is allowed, and does not change; each key is settled by itself. A peek stores nothing: it returns a denial as if it was
/// not recorded.
///
/// ```
/// use sluicegate_core::{EntryOperation, Operation, Policy, Timestamp, apply_all};
///
/// let [user, tenant]: [Policy; 2] = ["gcra:5/1m".parse()?, "fixed-window:6/1h".parse()?];
/// let (mut anna, mut ben, mut acme) = (None, None, None);
/// let mut take = |entry: &mut _, cost| {
///     let operation = Operation::Take(cost);
///     let parts = &mut [
///         EntryOperation { policy: &user, entry, operation },
///         EntryOperation { policy: &tenant, entry: &mut acme, operation },
///     ];
///     apply_all(parts, Timestamp::EPOCH).expect("two keys")
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
/// [`OperationError`]: there is no key, the operations are no request, or a policy does not support its operation. Nothing
/// is changed.
pub fn apply_all(
    parts: &mut [EntryOperation<'_>],
    now: Timestamp,
) -> Result<Answer, OperationError> {
    RequestError::check(parts.iter().map(|part| part.operation))?;
    let ttls = parts.iter().map(|part| part.policy.check_operation(part.operation));
    let ttls = ttls.collect::<Result<Vec<_>, _>>()?;
    let mut parts: Vec<_> = parts.iter_mut().map(|part| EvaluatedPart::new(part, now)).collect();
    let delays = delays(&parts);
    reached!(MultiKeyDeniedByOneKey if delays.is_none() && parts.len() > 1
        && parts.iter().any(|it| it.key.passes(it.operation.cost())));
    reached!(MultiKeyHoldIsOpenOnOneKey if parts.iter().any(|it| it.operation.id().is_some() && !it.takes_units)
        && parts.iter().any(|it| it.takes_units));
    if delays.is_some() {
        let mut held =
            parts.iter().filter(|part| part.takes_units && part.operation.id().is_some());
        held.try_for_each(|part| part.key.check_room())?;
    }
    let each = parts.iter_mut().enumerate().map(|(index, part)| {
        match part.operation {
            Operation::Peek(_) => {}
            _ if !part.takes_units => {}
            operation if delays.is_none() => part.key.record_denial(operation.cost()),
            Operation::Hold { id, cost, .. } => part.key.open(id, cost, ttls[index]),
            operation => {
                #[cfg(debug_assertions)]
                let before = part.key.in_use();
                part.key.charge(operation.cost());
                #[cfg(debug_assertions)]
                before.check_taken(&part.key.in_use(), part.key.policy, operation.cost());
            }
        }
        let decision = decide_key(part, delays.as_ref().map(|delays| delays[index]));
        #[cfg(debug_assertions)]
        {
            let is_taken = part.takes_units && delays.is_some();
            let peek = Operation::Peek(part.operation.cost());
            let operation = if is_taken { part.operation } else { peek };
            check_fields(part.key.policy, operation, &decision);
            part.key.entry().inspect(|entry| entry.check());
        }
        decision
    });
    let answer = Answer::of_all(each.collect(), Source::Store);
    debug_assert!(answer.as_ref().is_none_or(|it| it.allowed() == delays.is_some()));
    answer.ok_or_else(|| RequestError::MissingKey.into())
}

/// The operation on one key, with the state of the key.
struct EvaluatedPart<'a> {
    key: KeyState<'a>,
    operation: Operation<'a>,
    /// Whether units are taken from it. Otherwise it is allowed without a change.
    takes_units: bool,
}

impl<'a> EvaluatedPart<'a> {
    fn new(part: &'a mut EntryOperation<'_>, now: Timestamp) -> Self {
        let EntryOperation { policy, entry, operation } = part;
        let key = KeyState::new(policy, entry, now);
        let is_open = operation.id().is_some_and(|id| key.find(id).is_some());
        Self { key, operation: *operation, takes_units: operation.cost() > 0 && !is_open }
    }
}

/// The delay of each key, if every one passes.
fn delays(parts: &[EvaluatedPart<'_>]) -> Option<Vec<Duration>> {
    let delay = |part: &EvaluatedPart<'_>| match part {
        EvaluatedPart { takes_units: false, .. } => Some(Duration::ZERO),
        EvaluatedPart { key, operation, .. } => key.passes(operation.cost()).then(|| key.delay()),
    };
    parts.iter().map(delay).collect()
}

/// The decision on one key: allowed with all others, with a `delay`, or not charged because one denies.
fn decide_key(
    EvaluatedPart { key, operation, takes_units }: &EvaluatedPart<'_>,
    delay: Option<Duration>,
) -> Decision {
    match delay {
        _ if !takes_units => key.answer(),
        Some(delay) => key.allowed(delay),
        None if key.passes(operation.cost()) => key.answer(),
        None => key.denial(operation.cost()),
    }
}
