//! The holds of all connections that end with one (`SG.HOLD ... SESSION`), for all workers.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use sluicegate_commands::{HoldName, SessionHolds};
use sluicegate_core::{HoldOperation, PreparedPolicy, Timestamp};

/// The holds that end with a connection.
#[derive(Debug, Default)]
pub(crate) struct SharedSessionHolds {
    /// Whether there are any: otherwise an operation on a hold pays one relaxed load.
    is_used: AtomicBool,
    holds: Mutex<SessionHolds<PreparedPolicy>>,
}

/// The name of a hold. The server has one database.
fn name(key: &[u8], id: &[u8]) -> HoldName {
    HoldName { database: 0, key: key.into(), id: id.into() }
}

impl SharedSessionHolds {
    fn locked<T>(&self, body: impl FnOnce(&mut SessionHolds<PreparedPolicy>) -> T) -> T {
        let mut holds = self.holds.lock();
        let result = body(&mut holds);
        self.is_used.store(!holds.is_empty(), Ordering::Relaxed);
        result
    }

    /// Adds a hold that is about to be opened; see [`SessionHolds::add`]. The error is a whole reply.
    pub(crate) fn add(
        &self,
        connection: u64,
        (key, id): (&[u8], &[u8]),
        policy: &PreparedPolicy,
        times: (Timestamp, Option<Timestamp>),
    ) -> Result<bool, String> {
        let added =
            self.locked(|holds| holds.add(connection, name(key, id), policy.clone(), times));
        added.map_err(|error| format!("ERR {error}"))
    }

    /// The hold was not opened for this connection.
    pub(crate) fn denied(&self, connection: u64, (key, id): (&[u8], &[u8])) {
        self.locked(|holds| holds.denied(connection, &name(key, id)));
    }

    /// The hold may have been opened; see [`SessionHolds::opened`].
    pub(crate) fn opened(&self, (key, id): (&[u8], &[u8]), times: (Timestamp, Timestamp)) {
        self.locked(|holds| holds.opened(&name(key, id), times));
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

    /// The names of the holds of a connection that has ended, in order.
    pub(crate) fn end(&self, connection: u64) -> Vec<Arc<HoldName>> {
        if self.is_used.load(Ordering::Relaxed) {
            self.locked(|holds| holds.end(connection))
        } else {
            Vec::new()
        }
    }

    /// The policy of a hold that is to be settled because this connection has ended; see [`SessionHolds::take`].
    pub(crate) fn take(
        &self,
        connection: u64,
        name: &HoldName,
        now: Timestamp,
    ) -> Option<PreparedPolicy> {
        self.locked(|holds| holds.take(connection, name, now))
    }

    /// The number of holds that are kept for a connection, and the bytes of their keys and ids.
    pub(crate) fn size(&self, connection: u64) -> (usize, usize) {
        self.holds.lock().size(connection)
    }
}
