//! The results of holds.

use std::{borrow::Borrow, sync::Arc, time::Duration};

use sluicegate_core::{Answer, Decision, PreparedPolicy, Store, StoreError};
use sluicegate_holds::{Guards, HoldGuard, HoldId, PendingRequest, WaitOptions};

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

/// A hold is tried once.
pub(crate) const NO_WAIT: WaitOptions = WaitOptions::up_to(Duration::ZERO);

/// A request that holds units of all keys, or of none, and waits for them. Of a key that is given twice, the first cost
/// counts.
pub(crate) fn holding<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>, S: Store + ?Sized + 'static>(
    store: &Arc<S>,
    keys: &[(K, P, u32)],
    id: &HoldId,
    ttl: Option<Duration>,
    wait: WaitOptions,
) -> PendingRequest<S> {
    let (mut guards, mut costs) = (Guards::new(), Vec::with_capacity(keys.len()));
    for (key, policy, cost) in keys {
        let key = key.as_ref();
        if guards.iter().all(|guard: &HoldGuard<S>| guard.key() != key) {
            guards.push(HoldGuard::new(store, key, policy.borrow(), id.clone(), ttl));
            costs.push(*cost);
        }
    }
    PendingRequest::hold(store, guards, costs, wait, false)
}

/// The permits of a hold of several keys, or its denial.
pub(crate) fn all_decided<S>((answer, guards): (Answer, Guards<S>)) -> HoldOutcome<Vec<Permit<S>>>
where
    S: Store<Error = StoreError> + ?Sized,
{
    if !answer.allowed() {
        return HoldOutcome::Denied(answer);
    }
    let each = guards.into_iter().zip(answer.each());
    let permit = |(guard, decision): (_, &Decision)| Permit {
        guard,
        answer: Answer::new(*decision, answer.source),
    };
    HoldOutcome::Allowed(each.map(permit).collect())
}

/// The permit of a hold of one key, or its denial.
pub(crate) fn decided<S>((answer, mut guards): (Answer, Guards<S>)) -> HoldOutcome<Permit<S>>
where
    S: Store<Error = StoreError> + ?Sized,
{
    match guards.pop().filter(|_| answer.allowed()) {
        Some(guard) => HoldOutcome::Allowed(Permit { guard, answer }),
        None => HoldOutcome::Denied(answer),
    }
}
