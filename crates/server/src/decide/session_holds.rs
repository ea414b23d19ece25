//! The holds of all connections that end with one (`SG.HOLD ... SESSION`), for all workers.

use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use sluicegate_core::{HoldName, HoldOperation, PreparedPolicy, SessionHolds, Timestamp};

/// The holds that end with a connection.
#[derive(Debug, Default)]
pub(crate) struct SharedSessionHolds {
    /// Whether there are any: otherwise an operation on a hold pays one relaxed load.
    is_used: AtomicBool,
    holds: Mutex<SessionHolds<PreparedPolicy>>,
}

/// The server has one database.
const DATABASE: i32 = 0;

/// The name of a hold.
pub(crate) fn name(key: &[u8], id: &[u8]) -> HoldName {
    HoldName { database: DATABASE, key: key.into(), id: id.into() }
}

impl SharedSessionHolds {
    /// Runs `body` on the holds, under the lock.
    pub(crate) fn locked<T>(&self, body: impl FnOnce(&mut SessionHolds<PreparedPolicy>) -> T) -> T {
        let mut holds = self.holds.lock();
        let result = body(&mut holds);
        self.is_used.store(!holds.is_empty(), Ordering::Relaxed);
        result
    }

    /// An operation of any client was applied to a hold of `key`.
    pub(super) fn applied(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: HoldOperation<'_>,
        is_allowed: bool,
        now: Timestamp,
    ) {
        if !self.is_used.load(Ordering::Relaxed) {
            return;
        }
        let name = name(key, operation.id());
        let ttl = policy.policy().check_hold(&operation).unwrap_or_default();
        self.locked(|holds| holds.applied(&name, operation, is_allowed, (now, ttl)));
    }

    /// `key` was reset: none of its holds is open any longer.
    pub(super) fn reset(&self, key: &[u8]) {
        if self.is_used.load(Ordering::Relaxed) {
            self.locked(|holds| holds.reset(DATABASE, key));
        }
    }
}
