//! Settles the holds of connections that have ended: the server settles some of them, and others go first before it goes on.

use sluicegate_core::{HoldOperation, Timestamp};

use super::{
    command::hold_id,
    ledger::{Key, Ledger},
    session_holds::{Name, Unsettled},
};
use crate::{
    oracle::decide,
    redis_model::{ScriptCall, ScriptOperation},
};

/// Holds of a connection that the server settles before others go first, as its `session_holds` says.
const SETTLES: usize = 16;

impl Ledger {
    /// Settles the holds of a connection that ends now: some at once.
    pub(super) fn settle_all(&mut self, connection: usize, holds: Vec<Name>, now: Timestamp) {
        let hold = |name| Unsettled { name, connection, now };
        let mut holds: Vec<_> = holds.into_iter().map(hold).collect();
        holds.sort_unstable_by_key(|it| (it.name.0, hold_id(it.name.1)));
        let at_once = holds.len().min(SETTLES - 1);
        holds.drain(..at_once).for_each(|it| self.settle(&it));
        self.unsettled.extend(holds);
    }

    /// Settles a hold that is open and ends with no other connection by now.
    fn settle(&mut self, hold: &Unsettled) {
        let Some(policy) = self.session_holds.take(hold) else { return };
        let (Key { state, .. }, id) = (&mut self.keys[hold.name.0], hold_id(hold.name.1));
        let settle = HoldOperation::Settle { id: &id, used: Some(0) };
        let operation = ScriptOperation::OnHold(settle);
        // Its request may have waited.
        let _ = decide(state, ScriptCall { policy: policy.policy(), operation }, hold.now);
    }

    /// The server settles holds until others go first.
    pub(super) fn settle_some(&mut self) {
        let count = self.unsettled.len().min(SETTLES);
        let holds: Vec<_> = self.unsettled.drain(..count).collect();
        holds.iter().for_each(|it| self.settle(it));
    }

    /// Holds whose connection ended before now are settled.
    pub(super) fn settle_before(&mut self, now: Timestamp) {
        while self.unsettled.front().is_some_and(|it| it.now < now) {
            self.settle_some();
        }
    }
}
