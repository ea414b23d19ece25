//! Holds that end with a connection.

use std::{collections::BTreeMap, time::Duration};

use sluicegate_core::{PreparedPolicy, Timestamp};

/// The key and the id of a hold.
pub(super) type Name = (usize, u64);

/// The holds that end with a connection, each with the last one that asked for it.
#[derive(Clone, Debug, Default)]
pub(super) struct SessionHolds(BTreeMap<Name, SessionHold>);

#[derive(Clone, Debug)]
struct SessionHold {
    connection: usize,
    policy: PreparedPolicy,
    /// Whether its request waits.
    waits: bool,
    /// When the hold with this name expires that is open or was at last.
    expires: Timestamp,
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
        let is_new = before.is_none_or(|it| it.connection != connection || it.is_over(now));
        if is_new {
            let (policy, expires) = (policy.clone(), before.map_or(now, |it| it.expires));
            self.0.insert(name, SessionHold { connection, policy, waits: true, expires });
        }
        is_new
    }

    /// A hold was allowed, for `ttl` milliseconds if it is new.
    pub(super) fn opened(&mut self, name: Name, (now, ttl): (Timestamp, u64)) {
        self.drop_expired(name, now);
        if let Some(hold) = self.0.get_mut(&name).filter(|it| it.waits) {
            hold.waits = false;
            hold.expires = hold.expires.max(now + Duration::from_millis(ttl));
        }
    }

    /// A hold was renewed, for `ttl` milliseconds.
    pub(super) fn renewed(&mut self, name: Name, (now, ttl): (Timestamp, u64)) {
        self.drop_expired(name, now);
        if let Some(hold) = self.0.get_mut(&name) {
            hold.expires = now + Duration::from_millis(ttl);
        }
    }

    /// A hold with the name of an expired one is another one, which does not end with the connection.
    fn drop_expired(&mut self, name: Name, now: Timestamp) {
        self.0.extract_if(name..=name, |_, it| it.is_over(now)).for_each(drop);
    }

    /// A hold was settled: not the one that waits.
    pub(super) fn settled(&mut self, name: Name) {
        self.0.extract_if(name..=name, |_, it| !it.waits).for_each(drop);
        if let Some(hold) = self.0.get_mut(&name) {
            hold.expires = Timestamp::EPOCH;
        }
    }

    /// A request that waited for a new hold was denied.
    pub(super) fn denied(&mut self, connection: usize, name: Name) {
        self.0.extract_if(name..=name, |_, it| it.connection == connection).for_each(drop);
    }

    /// Removes a hold of a connection that has ended, and returns its policy if it is open and ends with no other connection by
    /// now.
    pub(super) fn take(&mut self, hold: &Unsettled) -> Option<PreparedPolicy> {
        let &Unsettled { name, connection, now } = hold;
        let own = self.0.extract_if(name..=name, |_, it| it.connection == connection).next();
        own.filter(|(_, hold)| !hold.is_over(now)).map(|(_, hold)| hold.policy)
    }

    /// The names of the holds of a connection.
    pub(super) fn of(&self, connection: usize) -> Vec<Name> {
        let own = self.0.iter().filter(|(_, it)| it.connection == connection);
        own.map(|(name, _)| *name).collect()
    }
}

impl SessionHold {
    fn is_over(&self, now: Timestamp) -> bool {
        !self.waits && self.expires <= now
    }
}

/// A hold whose connection has ended.
#[derive(Debug)]
pub(super) struct Unsettled {
    pub(super) name: Name,
    pub(super) connection: usize,
    pub(super) now: Timestamp,
}
