//! Holds that end with a connection. When it has ended, the server settles some of them, and others go first before it goes on.

use std::{collections::BTreeMap, time::Duration};

use sluicegate_core::{HoldOperation, PreparedPolicy, Timestamp};

use super::{
    command::hold_id,
    ledger::{Key, Ledger},
};
use crate::{
    oracle::decide,
    redis_model::{ScriptCall, ScriptOperation},
};

/// Holds of a connection that the server settles before others go first, as its `session_holds` says.
const SETTLES: usize = 16;

/// The key and the id of a hold.
type Name = (usize, u64);

/// The holds that end with a connection, each with the last one that asked for it.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionHolds(BTreeMap<Name, SessionHold>);

#[derive(Clone, Debug)]
struct SessionHold {
    connection: usize,
    policy: PreparedPolicy,
    /// `None` while its request waits.
    expires: Option<Timestamp>,
}

impl SessionHolds {
    /// A request for a hold begins to wait. Returns whether the hold did not end with this connection before.
    pub(super) fn add(
        &mut self,
        connection: usize,
        name: Name,
        policy: &PreparedPolicy,
        now: Timestamp,
    ) -> bool {
        let before = self.0.get(&name);
        let is_new = before.is_none_or(|it| it.connection != connection || !it.is_unexpired(now));
        if is_new {
            let policy = policy.clone();
            self.0.insert(name, SessionHold { connection, policy, expires: None });
        }
        is_new
    }

    /// A hold was allowed, for `ttl` milliseconds if it is new.
    pub(super) fn opened(&mut self, name: Name, (now, ttl): (Timestamp, u64)) {
        self.drop_expired(name, now);
        if let Some(hold) = self.0.get_mut(&name) {
            hold.expires.get_or_insert(now + Duration::from_millis(ttl));
        }
    }

    /// A hold was renewed, for `ttl` milliseconds.
    pub(super) fn renewed(&mut self, name: Name, (now, ttl): (Timestamp, u64)) {
        self.drop_expired(name, now);
        if let Some(SessionHold { expires: Some(expires), .. }) = self.0.get_mut(&name) {
            *expires = now + Duration::from_millis(ttl);
        }
    }

    /// A hold with the name of an expired one is another one, which does not end with the connection.
    fn drop_expired(&mut self, name: Name, now: Timestamp) {
        self.0.extract_if(name..=name, |_, it| !it.is_unexpired(now)).for_each(drop);
    }

    /// A hold was settled: not the one that waits.
    pub(super) fn settled(&mut self, name: Name) {
        self.0.extract_if(name..=name, |_, it| it.expires.is_some()).for_each(drop);
    }

    /// A request that waited for a new hold was denied.
    pub(super) fn denied(&mut self, connection: usize, name: Name) {
        self.0.extract_if(name..=name, |_, it| it.connection == connection).for_each(drop);
    }

    /// The names of the holds of a connection.
    pub(super) fn of(&self, connection: usize) -> Vec<Name> {
        let own = self.0.iter().filter(|(_, it)| it.connection == connection);
        own.map(|(name, _)| *name).collect()
    }
}

impl SessionHold {
    fn is_unexpired(&self, now: Timestamp) -> bool {
        self.expires.is_none_or(|expires| expires > now)
    }
}

/// A hold whose connection has ended.
#[derive(Debug)]
pub(super) struct Unsettled {
    name: Name,
    connection: usize,
    now: Timestamp,
}

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
    fn settle(&mut self, &Unsettled { name, connection, now }: &Unsettled) {
        let holds = &mut self.session_holds.0;
        let own = holds.extract_if(name..=name, |_, it| it.connection == connection).next();
        let Some((_, hold)) = own.filter(|(_, hold)| hold.is_unexpired(now)) else { return };
        let (Key { state, .. }, id) = (&mut self.keys[name.0], hold_id(name.1));
        let settle = HoldOperation::Settle { id: &id, used: Some(0) };
        let operation = ScriptOperation::OnHold(settle);
        // Its request may have waited.
        let _ = decide(state, ScriptCall { policy: hold.policy.policy(), operation }, now);
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
