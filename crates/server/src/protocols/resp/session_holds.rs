//! Holds that end with their connection (`SG.HOLD ... SESSION`): what a client still holds when it disconnects, for whatever
//! reason, is settled with 0.

use std::{cell::RefCell, collections::HashMap};

use sluicegate_core::{HoldOperation, PreparedPolicy, Timestamp};
use tokio::task::yield_now;

use crate::{
    budgets::buffers::{NO_MEMORY, Reservation},
    decide::Decider,
};

/// The most holds of one connection.
const MAX_HOLDS: usize = 1024;
/// Approximate bytes of a hold beside those of its key and its id.
const HOLD_BYTES: usize = 160;
/// Settles after which other clients go first.
const SETTLES: usize = 16;

/// The open holds of a connection.
#[derive(Debug, Default)]
pub(super) struct SessionHolds(RefCell<Option<Box<OpenHolds>>>);

#[derive(Debug)]
struct OpenHolds {
    holds: HashMap<HoldName, SessionHold>,
    reserved: Reservation,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct HoldName {
    key: Box<[u8]>,
    id: Box<[u8]>,
}

#[derive(Debug)]
struct SessionHold {
    policy: PreparedPolicy,
    expires: Timestamp,
}

impl HoldName {
    fn of(key: &[u8], id: &[u8]) -> Self {
        Self { key: key.into(), id: id.into() }
    }
}

impl OpenHolds {
    /// Reserves memory for what is kept.
    fn reserve(&mut self) -> bool {
        let bytes = |name: &HoldName| name.key.len() + name.id.len() + HOLD_BYTES;
        self.reserved.resize(self.holds.keys().map(bytes).sum())
    }
}

impl SessionHolds {
    /// Adds a hold that is about to be opened until `expires`. Returns whether it is new, or the error reply.
    pub(super) fn add(
        &self,
        decider: &Decider,
        (key, id): (&[u8], &[u8]),
        policy: &PreparedPolicy,
        expires: Timestamp,
    ) -> Result<bool, String> {
        let mut open = self.0.borrow_mut();
        let open = open.get_or_insert_with(|| {
            let reserved = decider.buffers.reserve_nothing();
            Box::new(OpenHolds { holds: HashMap::new(), reserved })
        });
        if open.holds.len() >= MAX_HOLDS {
            let now = decider.now();
            open.holds.retain(|_, hold| hold.expires > now);
        }
        let name = HoldName::of(key, id);
        if open.holds.contains_key(&name) {
            return Ok(false);
        } else if open.holds.len() >= MAX_HOLDS {
            return Err(format!(
                "ERR too many holds of this connection: expected at most {MAX_HOLDS} with SESSION"
            ));
        }
        open.holds.insert(name.clone(), SessionHold { policy: policy.clone(), expires });
        if open.reserve() {
            return Ok(true);
        }
        open.holds.remove(&name);
        Err(NO_MEMORY.to_owned())
    }

    /// The hold is not open any longer.
    pub(super) fn remove(&self, key: &[u8], id: &[u8]) {
        if let Some(open) = &mut *self.0.borrow_mut()
            && open.holds.remove(&HoldName::of(key, id)).is_some()
        {
            // Less is always granted.
            open.reserve();
        }
    }

    /// The hold is open until `expires`.
    pub(super) fn renew(&self, key: &[u8], id: &[u8], expires: Timestamp) {
        if let Some(open) = &mut *self.0.borrow_mut()
            && let Some(hold) = open.holds.get_mut(&HoldName::of(key, id))
        {
            hold.expires = expires;
        }
    }

    /// Settles what is still open with 0, because the connection has ended. What cannot be settled expires.
    pub(super) async fn settle(&self, decider: &Decider) {
        let Some(open) = self.0.take() else { return };
        // In an order that does not depend on hashes, so that requests that wait are woken in the same order in equal runs.
        let mut holds: Vec<_> = open.holds.into_iter().collect();
        holds.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        for (index, (HoldName { key, id }, hold)) in holds.into_iter().enumerate() {
            if index % SETTLES == SETTLES - 1 {
                yield_now().await;
            }
            let settle = HoldOperation::Settle { id: &id, used: Some(0) };
            let _ = decider.decide_hold(&key, &hold.policy, settle, decider.now()).await;
        }
    }
}
