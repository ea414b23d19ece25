//! Operations on holds. Entries with open holds are never in slots, so these take the general path.

use sluicegate_core::{Decision, HoldError, HoldOperation, Policy, Timestamp};

use crate::{MemoryStore, NumberedPolicy};

impl MemoryStore {
    /// Applies `operation` to a hold of `key` under `policy` at `now`, atomically.
    ///
    /// ```
    /// use sluicegate_core::{Clock, HoldOperation};
    /// use sluicegate_memory::{MemoryStore, SystemClock};
    ///
    /// let (store, clock) = (MemoryStore::new(), SystemClock::new());
    /// let policy = "concurrency:1/30s".parse()?;
    /// let hold = |id| HoldOperation::Hold { id, cost: 1, ttl: None };
    /// assert!(store.apply_hold(b"user7", &policy, clock.now(), hold(b"a"))?.allowed());
    /// assert!(!store.apply_hold(b"user7", &policy, clock.now(), hold(b"b"))?.allowed());
    /// let settle = HoldOperation::Settle { id: b"a", used: None };
    /// assert!(store.apply_hold(b"user7", &policy, clock.now(), settle)?.allowed());
    /// assert!(store.apply_hold(b"user7", &policy, clock.now(), hold(b"b"))?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`HoldError`]; nothing is changed.
    pub fn apply_hold(
        &self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: HoldOperation<'_>,
    ) -> Result<Decision, HoldError> {
        self.apply_hold_numbered(key, &self.prepare(policy, now), now, operation)
    }

    /// [`MemoryStore::apply_hold`] under a policy that is looked up already.
    ///
    /// # Errors
    /// As [`MemoryStore::apply_hold`].
    pub fn apply_hold_numbered(
        &self,
        key: &[u8],
        policy: &NumberedPolicy,
        now: Timestamp,
        operation: HoldOperation<'_>,
    ) -> Result<Decision, HoldError> {
        let _ = self.since_set_base(now);
        self.apply_locked(self.hash(key), policy, now, operation)
    }
}
