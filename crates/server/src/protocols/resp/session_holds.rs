//! Holds that end with their connection (`SG.HOLD ... SESSION`): what a client still holds when it disconnects, for whatever
//! reason, is settled with 0.

use std::{cell::RefCell, time::Duration};

use sluicegate_core::{Answer, HoldOperation, PreparedPolicy, Source, Timestamp};
use tokio::task::yield_now;

use crate::{
    budgets::buffers::{BufferReservation, NO_MEMORY},
    decide::{Decider, session_holds::name},
};

/// Approximate bytes of a hold beside those of its key and its id.
const HOLD_BYTES: usize = 160;
/// Settles after which other clients go first.
const SETTLES: usize = 16;

/// The holds of a connection.
pub(super) struct ConnectionHolds<'a> {
    decider: &'a Decider,
    connection: u64,
    /// Memory for the holds, if there were any.
    reserved: RefCell<Option<BufferReservation>>,
}

impl<'a> ConnectionHolds<'a> {
    pub(super) fn new(decider: &'a Decider, connection: u64) -> Self {
        Self { decider, connection, reserved: RefCell::default() }
    }

    /// Adds the hold that `operation` is about to open, or for which it `waits`. Returns its lifetime if it is new, or
    /// the error reply.
    pub(super) fn add(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: HoldOperation<'_>,
        (now, waits): (Timestamp, bool),
    ) -> Result<Option<Duration>, String> {
        let (HoldOperation::Hold { id, cost: 1.., .. }, Ok(ttl)) =
            (operation, policy.policy().check_hold(&operation))
        else {
            // An invalid one gets its error later.
            return Ok(None);
        };
        let Self { decider, connection, reserved } = self;
        reserved.borrow_mut().get_or_insert_with(|| decider.buffers.reserve_nothing());
        let ttl = Duration::from_micros(ttl);
        let expires = (!waits).then(|| now + ttl);
        let added = decider
            .session_holds
            .locked(|holds| holds.add(*connection, name(key, id), policy.clone(), (now, expires)));
        let is_new = added.map_err(|error| format!("ERR {error}"))?;
        if is_new && !self.reserve() {
            self.denied((key, id));
            return Err(NO_MEMORY.to_owned());
        }
        Ok(is_new.then_some(ttl))
    }

    /// A new hold was requested. If the answer is an error (`None`) or a fallback, a store elsewhere may have opened the
    /// hold.
    pub(super) fn requested(&self, hold: (&[u8], &[u8]), ttl: Duration, answer: Option<&Answer>) {
        let is_known =
            self.decider.is_local() || answer.is_some_and(|it| it.source == Source::Store);
        if answer.is_some_and(|it| it.allowed()) {
            // The table has it already.
        } else if is_known {
            self.denied(hold);
        } else {
            let now = self.decider.now();
            let name = name(hold.0, hold.1);
            self.decider.session_holds.locked(|holds| holds.opened(&name, (now, now + ttl)));
        }
    }

    /// The hold was not opened.
    fn denied(&self, (key, id): (&[u8], &[u8])) {
        let name = name(key, id);
        self.decider.session_holds.locked(|holds| holds.denied(self.connection, &name));
        self.shrink();
    }

    /// Gives back the memory of holds that are not open any longer.
    pub(super) fn shrink(&self) {
        // Less is always granted.
        self.reserve();
    }

    /// Reserves memory for the holds.
    fn reserve(&self) -> bool {
        let mut reserved = self.reserved.borrow_mut();
        reserved.as_mut().is_none_or(|reserved| {
            let (count, bytes) =
                self.decider.session_holds.locked(|holds| holds.size(self.connection));
            reserved.resize(count * HOLD_BYTES + bytes)
        })
    }

    /// Settles what is still open with 0, because the connection has ended. What cannot be settled expires.
    pub(super) async fn settle(self) {
        let Self { decider, connection, .. } = self;
        // In an order that does not depend on hashes, so that requests that wait are woken in the same order in equal runs.
        let names = decider.session_holds.locked(|holds| holds.end(connection));
        for (index, name) in names.into_iter().enumerate() {
            if index % SETTLES == SETTLES - 1 {
                yield_now().await;
            }
            let now = decider.now();
            let policy = decider.session_holds.locked(|holds| holds.take(connection, &name, now));
            if let Some(policy) = policy {
                let settle = HoldOperation::Settle { id: &name.id, used: Some(0) };
                let _ = decider.decide_hold(&name.key, &policy, settle, now).await;
            }
        }
    }
}
