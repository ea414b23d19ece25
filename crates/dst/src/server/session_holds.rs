//! Holds of connections that have ended: the server settles some of them, and others go first before it goes on.

use std::collections::BTreeMap;

use sluicegate_core::{HoldOperation, PreparedPolicy, Timestamp};

use super::{
    command::hold_id,
    ledger::{Key, Ledger, Unsettled},
};
use crate::{
    oracle::decide,
    redis_model::{ScriptCall, ScriptOperation},
};

/// Holds of a connection that the server settles before others go first, as its `session_holds` says.
const SETTLES: usize = 16;

impl Ledger {
    /// Settles the holds of a connection that ends now: some at once.
    pub(super) fn settle_all(
        &mut self,
        holds: BTreeMap<(usize, u64), PreparedPolicy>,
        now: Timestamp,
    ) {
        let mut holds: Vec<_> = holds
            .into_iter()
            .map(|((key, id), policy)| Unsettled { key, id: hold_id(id), policy, now })
            .collect();
        holds.sort_unstable_by(|one, other| (one.key, &one.id).cmp(&(other.key, &other.id)));
        let at_once = holds.len().min(SETTLES - 1);
        holds.drain(..at_once).for_each(|it| self.settle(&it));
        self.unsettled.extend(holds);
    }

    fn settle(&mut self, hold: &Unsettled) {
        let Key { state, .. } = &mut self.keys[hold.key];
        let settle = HoldOperation::Settle { id: &hold.id, used: Some(0) };
        let call =
            ScriptCall { policy: hold.policy.policy(), operation: ScriptOperation::OnHold(settle) };
        // It may have expired.
        let _ = decide(state, call, hold.now);
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
