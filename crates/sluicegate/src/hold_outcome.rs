//! The results of holds.

use std::{borrow::Borrow, sync::Arc, time::Duration};

use sluicegate_core::{Answer, PreparedPolicy, Store, StoreError};
use sluicegate_holds::{HoldGuard, HoldId};

use crate::Permit;

/// The result of a hold: a guard of the units, or a denial. On several keys, it is a permit of each key, in the order of
/// the keys, or the denial of all.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{HoldOutcome, LocalLimiter, PreparedPolicy};
///
/// let limiter = LocalLimiter::new();
/// let policy: PreparedPolicy = "concurrency:1/30s".parse()?;
/// let HoldOutcome::Allowed(permit) = limiter.hold("report", &policy, 1, None)? else {
///     panic!("the key is unused");
/// };
/// match limiter.hold("report", &policy, 1, None)? {
///     HoldOutcome::Allowed(_) => panic!("one report is in progress"),
///     HoldOutcome::Denied(answer) => println!("retry after {:?} at the latest", answer.retry()),
/// }
/// drop(permit);
/// assert!(limiter.hold("report", &policy, 1, None)?.allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[must_use = "units are held only until the permit is dropped"]
#[derive(Debug)]
pub enum HoldOutcome<P = Permit> {
    /// The units are held.
    Allowed(P),
    /// The units are not available.
    Denied(Answer),
}

impl<P> HoldOutcome<P> {
    /// Whether the units are held.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The permit; `None` if denied.
    #[must_use = "units are held only until the permit is dropped"]
    pub fn into_permit(self) -> Option<P> {
        match self {
            Self::Allowed(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }
}

/// The permit of a hold, or its denial.
pub(crate) fn decided<S>(mut guard: HoldGuard<S>, answer: Answer) -> HoldOutcome<Permit<S>>
where
    S: Store<Error = StoreError> + ?Sized,
{
    if guard.decide(&answer) {
        HoldOutcome::Allowed(Permit { guard, answer })
    } else {
        HoldOutcome::Denied(answer)
    }
}

/// The guards of holds under one id on each of the keys, which the caller sends to the store. `is_later`: whether the store
/// answers later.
pub(crate) fn guards<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>, S: Store + ?Sized>(
    store: &Arc<S>,
    keys: &[(K, P, u32)],
    id: &HoldId,
    ttl: Option<Duration>,
    is_later: bool,
) -> Vec<HoldGuard<S>> {
    let mut guards: Vec<HoldGuard<S>> = Vec::with_capacity(keys.len());
    for (key, policy, _) in keys {
        let key = key.as_ref();
        if guards.iter().all(|guard| guard.key() != key) {
            let mut guard = HoldGuard::new(store, key, policy.borrow(), id.clone(), ttl);
            guard.opened_by_caller(is_later);
            guards.push(guard);
        }
    }
    guards
}

/// The permits of holds on several keys, or their denial.
pub(crate) fn all_decided<S>(
    guards: Vec<HoldGuard<S>>,
    answer: Answer,
) -> HoldOutcome<Vec<Permit<S>>>
where
    S: Store<Error = StoreError> + ?Sized,
{
    let (allowed, source) = (answer.decision.allowed(), answer.source);
    let each = guards.into_iter().zip(answer.each()).map(|(mut guard, decision)| {
        guard.record(allowed, source);
        Permit { guard, answer: Answer::new(*decision, source) }
    });
    let permits: Vec<_> = each.collect();
    if allowed { HoldOutcome::Allowed(permits) } else { HoldOutcome::Denied(answer) }
}
