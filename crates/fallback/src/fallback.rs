//! Fallback decisions while the store is unavailable.
//!
//! Under `local`, a key has a state in this process. It counts requests that were admitted here over all outages,
//! and no reply of the store lowers it: therefore at most a share `b + r T` is admitted in any time `T`, however
//! often the store fails. Usage that the store reports raises it. The table is bounded, and never evicts a key
//! with active limits: if it is full, new keys are denied.

use std::{borrow::Cow, sync::OnceLock, time::Duration};

use sluicegate_core::{
    Answer, Decision, Entry, KeyedOperation, Limit, OnError, Operation, OperationError, Outcome,
    Policy, Request, Retry, Share, Source, StoreError, Timestamp, apply, reached,
};
use sluicegate_memory::{MemoryStore, NumberedPolicy, WhenFull};

use crate::{DenialCache, FallbackOperation, FallbackPolicy, denial_cache::ReportedUsage};

/// When to try again after a fallback denial.
pub const RETRY_AFTER: Duration = Duration::from_millis(100);

/// The shortest lifetime of a hold.
const MIN_TTL: Duration = Duration::from_millis(1);

/// Decides while the store is unavailable.
#[derive(Debug)]
pub struct LocalFallback {
    /// Created when the store is unavailable for the first time.
    store: OnceLock<MemoryStore>,
    max_bytes: usize,
}

impl LocalFallback {
    /// Local states of up to `max_bytes`.
    #[must_use]
    pub const fn new(max_bytes: usize) -> Self {
        Self { store: OnceLock::new(), max_bytes }
    }

    /// Resets a key that was reset in the store.
    pub fn reset(&self, key: &[u8], now: Timestamp) {
        if let Some(store) = self.store.get() {
            let was_live = store.reset(key, now);
            reached!(FallbackStateIsReset if was_live);
        }
    }

    /// Settles or renews a hold that was decided here. Other operations change nothing.
    pub fn follow_hold(
        &self,
        FallbackOperation { key, policy, operation }: FallbackOperation<'_>,
        now: Timestamp,
    ) {
        let follows = matches!(operation, Operation::Settle { .. } | Operation::Renew { .. });
        if let (true, Some(store), Some((_, local))) = (follows, self.store.get(), &policy.local) {
            // Most holds are not open here, which is a denial that changes nothing.
            let followed = apply_local(store, key, &store.numbered(local, now), now, operation);
            reached!(FallbackHoldEndsWithStore if followed.is_ok_and(|it| it.allowed()));
        }
    }

    /// The fallback decision because of `error`. Operations that only change state (charge, refund, reset,
    /// settle, renew) have none, and return `error`.
    ///
    /// # Errors
    /// `error`, or the policy does not support the operation.
    pub fn decide(
        &self,
        FallbackOperation { key, policy, operation }: FallbackOperation<'_>,
        denials: &DenialCache,
        now: Timestamp,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        match operation {
            Operation::Take(_) | Operation::Peek(_) => {}
            Operation::Reserve { .. } | Operation::Hold { .. } => {}
            Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => return Err(error),
            Operation::Settle { .. } | Operation::Renew { .. } => return Err(error),
        }
        let decision = match self.with_reported(key, policy, denials, now) {
            Some((store, local)) => apply_local(store, key, &local, now, operation)?,
            None => decide_without_state(policy, error)?,
        };
        reached!(FallbackLocalAllows if policy.local.is_some() && decision.allowed());
        reached!(FallbackLocalDenies if policy.local.is_some() && !decision.allowed());
        reached!(FallbackHolds if operation.id().is_some() && decision.allowed());
        Ok(Answer::new(decision, Source::Fallback))
    }

    /// The fallback decision on each of several keys: all of them or none.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub fn decide_all(
        &self,
        operations: &[FallbackOperation<'_>],
        denials: &DenialCache,
        now: Timestamp,
        error: &StoreError,
    ) -> Result<Vec<Decision>, StoreError> {
        let (mut each, mut local) = (Vec::with_capacity(operations.len()), Vec::new());
        for &FallbackOperation { key, policy, operation } in operations {
            each.push(match &policy.local {
                Some((_, prepared)) => {
                    self.with_reported(key, policy, denials, now);
                    local.push(KeyedOperation { key, policy: prepared, operation });
                    None
                }
                None => Some(decide_without_state(policy, error.clone())?),
            });
        }
        if each.iter().flatten().any(|it| !it.allowed()) {
            local.iter_mut().for_each(|it| it.operation = Operation::Peek(it.operation.cost()));
        }
        let decided = match self.store.get().filter(|_| !local.is_empty()) {
            Some(store) => store.apply_all(Request::of_rules(&local)?, now)?.each().to_vec(),
            None => Vec::new(),
        };
        debug_assert_eq!(decided.len(), local.len(), "one decision for each local state");
        reached!(FallbackDecidesSeveralKeys);
        let mut decided = decided.into_iter();
        let each: Vec<_> =
            each.into_iter().filter_map(|it| it.or_else(|| decided.next())).collect();
        debug_assert_eq!(each.len(), operations.len(), "one decision for each key");
        Ok(each)
    }

    /// The local states, with the usage of `key` that the store reported, and the policy for them. `None`: the policy decides
    /// without a state.
    fn with_reported<'a>(
        &'a self,
        key: &[u8],
        policy: &'a FallbackPolicy,
        denials: &DenialCache,
        now: Timestamp,
    ) -> Option<(&'a MemoryStore, Cow<'a, NumberedPolicy>)> {
        let (share, local) = policy.local.as_ref()?;
        let bounded = || MemoryStore::bounded(self.max_bytes, WhenFull::default());
        let store = self.store.get_or_init(bounded);
        let local = store.numbered(local, now);
        denials.take_usage(key, now, |reported| {
            raise_usage(store, key, &local, *share, reported, now);
        });
        Some((store, local))
    }
}

/// Applies an operation to a local state. It is not inlined, because the function of the table is large, and outages are rare.
#[inline(never)]
fn apply_local(
    store: &MemoryStore,
    key: &[u8],
    local: &NumberedPolicy,
    now: Timestamp,
    operation: Operation<'_>,
) -> Result<Decision, OperationError> {
    store.apply_numbered(key, local, now, operation)
}

/// The fallback decision of a policy that needs no state for it.
fn decide_without_state(
    policy: &FallbackPolicy,
    error: StoreError,
) -> Result<Decision, StoreError> {
    let outcome = match policy.settings.on_error {
        OnError::Allow => {
            reached!(FallbackAllows);
            Outcome::Allow { delay: Duration::ZERO }
        }
        OnError::Fail => {
            reached!(FallbackFails);
            return Err(error);
        }
        _ => {
            reached!(FallbackDenies);
            // The next probe may find the store available.
            Outcome::Deny { retry: Retry::After(RETRY_AFTER) }
        }
    };
    let limit = policy.policy.limits().iter().map(Limit::capacity).min();
    Ok(Decision {
        outcome,
        limit: limit.unwrap_or_default(),
        remaining: 0,
        reset_after: RETRY_AFTER,
        binding: 0,
    })
}

/// Raises the local usage of `key` to the share of the usage that the store reported, if that is higher.
///
/// Requests that were admitted here stay counted, because the store has not counted them: otherwise each outage would
/// admit the share again.
fn raise_usage(
    store: &MemoryStore,
    key: &[u8],
    local: &NumberedPolicy,
    share: Share,
    ReportedUsage { used, binding, reset_after }: ReportedUsage,
    now: Timestamp,
) {
    let limits = local.policy().limits();
    // The usage under another policy may exceed the capacity of this one.
    let most = limits.iter().map(Limit::capacity).max().unwrap_or_default();
    let reported = share.used(used).min(most);
    let here = store.with_entry(key, |entry| used_under(local.policy(), binding, entry, now));
    let here = u32::try_from(here.unwrap_or_default()).unwrap_or(u32::MAX);
    let more = reported.saturating_sub(here);
    if more > 0 && local.policy().counts_holds() {
        reached!(FallbackHoldsReportedUnits);
        hold_reported(store, key, local, more, reset_after, now);
    } else if more > 0 {
        // A charge cannot be denied. A full table does not store it, and denies the key as well.
        let _ = apply_local(store, key, local, now, Operation::Charge(more));
    }
    #[cfg(debug_assertions)]
    if let [limit] = limits
        && !limit.counts_holds()
    {
        // A full table has no entry, or that from before.
        let used = |entry: &Entry| entry.usage(now).map(|(_, usage)| usage.used).sum::<u64>();
        let is_full = store.usage().table_full > 0;
        let used = store.with_entry(key, used).unwrap_or_default();
        assert!(
            is_full || used >= u64::from(reported),
            "the usage that the store reported is lost"
        );
    }
}

/// The units in use of a limit of `policy`, once the entry is carried over to it.
fn used_under(policy: &Policy, binding: usize, entry: &Entry, now: Timestamp) -> u64 {
    let used = |entry: &Entry| entry.usage(now).nth(binding).map_or(0, |(_, usage)| usage.used);
    if entry.policy() == policy {
        return used(entry);
    }
    // A charge carries the copy over.
    let mut copy = Some(entry.clone());
    match apply(policy, &mut copy, now, Operation::Charge(1)) {
        Ok(_) => copy.as_ref().map_or(0, used).saturating_sub(1),
        // Only `concurrency` limits, under which the other state stays.
        Err(_) => entry.usage(now).map(|(_, usage)| usage.used).min().unwrap_or_default(),
    }
}

/// Holds `units` of a key, as far as they fit, until nothing that the store reported is in use.
fn hold_reported(
    store: &MemoryStore,
    key: &[u8],
    local: &NumberedPolicy,
    units: u32,
    reset_after: Duration,
    now: Timestamp,
) {
    // No client has this id: it names one report.
    let id = format!("reported by the store at {}", now.as_micros());
    let hold = |cost, ttl| Operation::Hold { id: id.as_bytes(), cost, ttl };
    let free = apply_local(store, key, local, now, Operation::Peek(0)).map(|it| it.remaining);
    let longest = local.policy().check_operation(hold(1, None));
    if let (Ok(free @ 1..), Ok(longest)) = (free, longest) {
        let ttl = reset_after.clamp(MIN_TTL, Duration::from_micros(longest));
        let _ = apply_local(store, key, local, now, hold(units.min(free), Some(ttl)));
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_core::PreparedPolicy;

    use super::*;

    /// The change to a shorter window forgets the local usage, and not what the store has reported.
    #[test]
    fn reported_usage_outlasts_a_change_of_the_policy() {
        let store = MemoryStore::new();
        let at =
            |millis| Timestamp::EPOCH + Duration::from_hours(9) + Duration::from_millis(millis);
        let [long, short] = ["fixed-window:9/1d", "fixed-window:26/500ms"]
            .map(|text| text.parse::<PreparedPolicy>().unwrap());
        let long = store.numbered(&long, at(0));
        let _ = store.apply_numbered(b"k", &long, at(0), Operation::Take(9)).unwrap();
        let short = store.numbered(&short, at(2000));
        let reset_after = Duration::from_millis(300);
        let reported = ReportedUsage { used: 5, binding: 0, reset_after };
        raise_usage(&store, b"k", &short, Share::ALL, reported, at(2000));
        let peek = store.apply_numbered(b"k", &short, at(2000), Operation::Peek(0)).unwrap();
        assert_eq!(peek.remaining, 21);
    }
}
