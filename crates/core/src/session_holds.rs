//! Holds that end with the connection of their client (`SG.HOLD ... SESSION`).
//!
//! A hold ends with the last connection that asked for it: a client that has lost its connection repeats the hold on
//! another one, and keeps it when the server notices the end of the first. A hold that was settled or has expired ends
//! with none, so that one that is opened later under the same id is left alone.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use crate::{HoldOperation, Timestamp};

/// Maximum number of holds of one connection.
const MAX_SESSION_HOLDS: usize = 1024;

/// A hold of a key of one database.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldName {
    /// The number of the database.
    pub database: i32,
    /// The key.
    pub key: Box<[u8]>,
    /// The id of the hold.
    pub id: Box<[u8]>,
}

/// The holds of all connections that end with one, each with its policy `P`. A connection is identified by a number.
///
/// Invariants:
/// - an operation takes logarithmic time, except for the [`end`](Self::end) of a connection, the [`reset`](Self::reset) of
///   a key, and one look at all holds of a connection that has as many as it may, after one of them has expired;
/// - a hold ends with the connection that has its name.
#[derive(Debug)]
pub struct SessionHolds<P> {
    /// In the order of their names: those of one key are neighbors.
    holds: BTreeMap<Arc<HoldName>, SessionHold<P>>,
    connections: HashMap<u64, ConnectionHolds>,
}

#[derive(Debug)]
struct SessionHold<P> {
    connection: u64,
    policy: P,
    /// Whether its request waits.
    waits: bool,
    /// When the hold with this name expires that is open or was at last.
    expires: Timestamp,
}

impl<P> SessionHold<P> {
    fn is_over(&self, now: Timestamp) -> bool {
        !self.waits && self.expires <= now
    }
}

/// The names of the holds of a connection. Some may have expired.
#[derive(Debug, Default)]
struct ConnectionHolds {
    names: HashSet<Arc<HoldName>>,
    /// Bytes of all keys and ids.
    bytes: usize,
    /// None of them expires before that.
    unexpired_until: Timestamp,
}

impl ConnectionHolds {
    fn remove(&mut self, name: &HoldName) {
        if self.names.remove(name) {
            self.bytes -= name.len();
        }
    }
}

impl HoldName {
    fn len(&self) -> usize {
        self.key.len() + self.id.len()
    }
}

/// A connection has as many holds as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyHolds;

impl fmt::Display for TooManyHolds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "too many holds of this connection: expected at most {MAX_SESSION_HOLDS} with SESSION"
        )
    }
}

impl std::error::Error for TooManyHolds {}

impl<P> Default for SessionHolds<P> {
    fn default() -> Self {
        Self { holds: BTreeMap::new(), connections: HashMap::new() }
    }
}

impl<P> SessionHolds<P> {
    /// Whether no hold ends with a connection.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Adds a hold that ends with `connection` and is about to be opened until `expires`, or waits (`None`) until it is
    /// [`opened`](Self::opened) or [`denied`](Self::denied). Returns whether it did not end with it before.
    ///
    /// # Errors
    /// [`TooManyHolds`] if 1024 open holds end with the connection.
    pub fn add(
        &mut self,
        connection: u64,
        name: HoldName,
        policy: P,
        (now, expires): (Timestamp, Option<Timestamp>),
    ) -> Result<bool, TooManyHolds> {
        let before = self.holds.get(&name).map(|hold| (hold.connection, !hold.is_over(now)));
        if before == Some((connection, true)) {
            return Ok(false);
        }
        if before.is_none_or(|(other, _)| other != connection) {
            self.make_space(connection, now)?;
        }
        // It may be open already, for longer than it would be now.
        let expires_at_least = self.holds.get(&name).map_or(Timestamp::EPOCH, |it| it.expires);
        self.remove(&name);
        let (waits, name) = (expires.is_none(), Arc::new(name));
        let expires = expires.unwrap_or(Timestamp::EPOCH).max(expires_at_least);
        let own = self.connections.entry(connection).or_default();
        own.names.insert(Arc::clone(&name));
        own.bytes += name.len();
        if !waits {
            own.unexpired_until = own.unexpired_until.min(expires);
        }
        self.holds.insert(name, SessionHold { connection, policy, waits, expires });
        Ok(true)
    }

    /// Drops holds that have expired, if there are as many as there may be.
    fn make_space(&mut self, connection: u64, now: Timestamp) -> Result<(), TooManyHolds> {
        let Some(own) = self.connections.get_mut(&connection) else { return Ok(()) };
        if own.names.len() < MAX_SESSION_HOLDS {
            return Ok(());
        }
        if now < own.unexpired_until {
            return Err(TooManyHolds);
        }
        own.unexpired_until = Timestamp::MAX;
        let ConnectionHolds { names, bytes, unexpired_until } = own;
        names.retain(|name| {
            if let Some(hold) = self.holds.get(name).filter(|hold| !hold.is_over(now)) {
                if !hold.waits {
                    *unexpired_until = hold.expires.min(*unexpired_until);
                }
                return true;
            }
            self.holds.remove(name);
            *bytes -= name.len();
            false
        });
        if names.len() < MAX_SESSION_HOLDS { Ok(()) } else { Err(TooManyHolds) }
    }

    /// An operation of any client was applied to a hold at `now`; `ttl` in microseconds.
    pub fn applied(
        &mut self,
        name: &HoldName,
        operation: HoldOperation<'_>,
        is_allowed: bool,
        (now, ttl): (Timestamp, u64),
    ) {
        let times = (now, now + Duration::from_micros(ttl));
        match operation {
            HoldOperation::Settle { .. } => self.settled(name),
            HoldOperation::Hold { cost: 1.., .. } if is_allowed => self.opened(name, times),
            HoldOperation::Renew { .. } if is_allowed => self.renewed(name, times),
            HoldOperation::Hold { .. } | HoldOperation::Renew { .. } => {}
        }
    }

    /// A hold was allowed at `now`: a new one is open until `expires`. One that had expired was another one.
    pub fn opened(&mut self, name: &HoldName, (now, expires): (Timestamp, Timestamp)) {
        let Some(hold) = self.holds.get(name) else { return };
        if hold.is_over(now) {
            self.remove(name);
        } else if hold.waits {
            self.expires(name, expires.max(hold.expires));
        }
    }

    /// An open hold was renewed: it is open until `expires`.
    fn renewed(&mut self, name: &HoldName, (now, expires): (Timestamp, Timestamp)) {
        match self.holds.get_mut(name) {
            Some(hold) if hold.is_over(now) => self.remove(name),
            Some(hold) if hold.waits => hold.expires = expires,
            Some(_) => self.expires(name, expires),
            None => {}
        }
    }

    fn expires(&mut self, name: &HoldName, expires: Timestamp) {
        let Some(hold) = self.holds.get_mut(name) else { return };
        (hold.waits, hold.expires) = (false, expires);
        if let Some(own) = self.connections.get_mut(&hold.connection) {
            own.unexpired_until = own.unexpired_until.min(expires);
        }
    }

    /// The hold is not open any longer. One that waits under the same name is another one.
    fn settled(&mut self, name: &HoldName) {
        match self.holds.get_mut(name) {
            Some(hold) if hold.waits => hold.expires = Timestamp::EPOCH,
            _ => self.remove(name),
        }
    }

    /// The key was reset: none of its holds is open any longer.
    pub fn reset(&mut self, database: i32, key: &[u8]) {
        let first = HoldName { database, key: key.into(), id: Box::default() };
        let names = self.holds.range(first..).map(|(name, _)| name);
        let of_key = names.take_while(|it| it.database == database && *it.key == *key);
        for name in of_key.map(Arc::clone).collect::<Vec<_>>() {
            self.settled(&name);
        }
    }

    fn remove(&mut self, name: &HoldName) {
        let Some(SessionHold { connection, .. }) = self.holds.remove(name) else { return };
        if let Some(own) = self.connections.get_mut(&connection) {
            own.remove(name);
            if own.names.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }

    /// The hold was not opened for this connection.
    pub fn denied(&mut self, connection: u64, name: &HoldName) {
        if self.is_of(connection, name) {
            self.remove(name);
        }
    }

    /// The names of the holds of a connection that has ended, in order. Those that [`take`](Self::take) returns are to be
    /// settled.
    pub fn end(&mut self, connection: u64) -> Vec<Arc<HoldName>> {
        let own = self.connections.remove(&connection).unwrap_or_default();
        let mut names = Vec::from_iter(own.names);
        names.sort_unstable();
        names
    }

    /// Removes a hold of a connection that has ended, and returns its policy if it is open and ends with no other
    /// connection by now.
    pub fn take(&mut self, connection: u64, name: &HoldName, now: Timestamp) -> Option<P> {
        let hold = if self.is_of(connection, name) { self.holds.remove(name) } else { None };
        hold.filter(|it| !it.is_over(now)).map(|it| it.policy)
    }

    /// The number of holds that are kept for a connection, and the bytes of their keys and ids.
    #[must_use]
    pub fn size(&self, connection: u64) -> (usize, usize) {
        self.connections.get(&connection).map_or((0, 0), |own| (own.names.len(), own.bytes))
    }

    fn is_of(&self, connection: u64, name: &HoldName) -> bool {
        self.holds.get(name).is_some_and(|hold| hold.connection == connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_secs(seconds)
    }

    fn name(id: &str) -> HoldName {
        HoldName { database: 0, key: b"k".as_slice().into(), id: id.as_bytes().into() }
    }

    /// Ids of the holds that end with a connection.
    fn end(holds: &mut SessionHolds<()>, connection: u64, now: Timestamp) -> Vec<String> {
        let names = holds.end(connection);
        let open = names.iter().filter(|name| holds.take(connection, name, now).is_some());
        open.map(|name| String::from_utf8_lossy(&name.id).into_owned()).collect()
    }

    #[test]
    fn hold_ends_with_the_last_connection_that_asked_for_it() {
        let mut holds = SessionHolds::default();
        for (connection, id) in [(1, "b"), (1, "a"), (2, "b"), (3, "c")] {
            assert_eq!(holds.add(connection, name(id), (), (at(0), Some(at(9)))), Ok(true));
        }
        assert_eq!(
            holds.add(2, name("b"), (), (at(1), Some(at(10)))),
            Ok(false),
            "it does already"
        );
        assert_eq!(end(&mut holds, 1, at(1)), ["a"]);
        assert_eq!(end(&mut holds, 2, at(1)), ["b"]);
        // Another connection asks for it while those of the first are settled.
        let ended = holds.end(3);
        assert_eq!(holds.add(4, name("c"), (), (at(1), Some(at(10)))), Ok(true));
        assert_eq!(holds.take(3, &ended[0], at(1)), None);
        assert_eq!(end(&mut holds, 4, at(1)), ["c"]);
        assert!(holds.is_empty() && holds.connections.is_empty());
    }

    #[test]
    fn hold_that_was_settled_or_denied_or_has_expired_ends_with_none() {
        let mut holds = SessionHolds::default();
        for id in ["again", "denied", "expired", "late", "settled", "waited"] {
            assert_eq!(holds.add(1, name(id), (), (at(0), Some(at(5)))), Ok(true));
        }
        holds.settled(&name("settled"));
        holds.denied(1, &name("denied"));
        holds.renewed(&name("late"), (at(4), at(9)));
        holds.opened(&name("again"), (at(5), at(20)));
        assert_eq!(holds.add(1, name("late"), (), (at(8), Some(at(20)))), Ok(false));
        assert_eq!(
            holds.add(1, name("waited"), (), (at(8), Some(at(20)))),
            Ok(true),
            "it had expired"
        );
        assert_eq!(end(&mut holds, 1, at(8)), ["late", "waited"]);
        assert!(holds.is_empty() && holds.connections.is_empty());
    }

    #[test]
    fn reset_ends_the_open_holds_of_its_key_only() {
        let mut holds = SessionHolds::default();
        let others = [(0, "j"), (0, "ka"), (1, "k")];
        for (database, key) in others.into_iter().chain([(0, "k"), (0, "k")]) {
            let id = holds.size(1).0.to_string().into_bytes().into();
            let name = HoldName { database, key: key.as_bytes().into(), id };
            assert_eq!(holds.add(1, name, (), (at(0), Some(at(9)))), Ok(true));
        }
        assert_eq!(holds.add(1, name("waits"), (), (at(0), None)), Ok(true));
        holds.reset(0, b"k");
        assert_eq!(holds.holds.keys().filter(|it| *it.key == *b"k").count(), 2);
        assert_eq!(end(&mut holds, 1, at(1)), ["0", "waits", "1", "2"]);
        assert!(holds.is_empty() && holds.connections.is_empty());
    }

    #[test]
    fn hold_that_waits_is_none_that_was_settled_or_expires() {
        let mut holds = SessionHolds::default();
        for id in ["denied", "open", "waits"] {
            assert_eq!(holds.add(1, name(id), (), (at(0), None)), Ok(true));
            holds.settled(&name(id));
            holds.renewed(&name(id), (at(1), at(2)));
        }
        holds.denied(1, &name("denied"));
        holds.opened(&name("open"), (at(50), at(60)));
        holds.opened(&name("open"), (at(51), at(70)));
        assert_eq!(holds.holds[&name("open")].expires, at(60), "the second changes nothing");
        assert_eq!(end(&mut holds, 1, at(59)), ["open", "waits"]);
    }

    #[test]
    fn repeated_hold_stays_open_as_long_as_it_would_without() {
        for repeated in [Some(at(5)), None] {
            let mut holds = SessionHolds::default();
            assert_eq!(holds.add(1, name("a"), (), (at(0), Some(at(9)))), Ok(true));
            assert_eq!(holds.add(2, name("a"), (), (at(1), repeated)), Ok(true));
            holds.opened(&name("a"), (at(1), at(5)));
            assert_eq!(end(&mut holds, 2, at(8)), ["a"]);
        }
    }

    #[test]
    fn denial_of_one_connection_leaves_the_hold_to_the_other() {
        let mut holds = SessionHolds::default();
        for connection in [1, 2] {
            assert_eq!(holds.add(connection, name("a"), (), (at(0), Some(at(5)))), Ok(true));
        }
        holds.denied(1, &name("a"));
        assert_eq!(end(&mut holds, 2, at(1)), ["a"]);
        assert!(holds.is_empty() && holds.connections.is_empty());
    }

    #[test]
    fn open_holds_of_a_connection_are_bounded() {
        let mut holds = SessionHolds::default();
        for id in 0..MAX_SESSION_HOLDS {
            assert_eq!(holds.add(1, name(&id.to_string()), (), (at(0), Some(at(5)))), Ok(true));
        }
        assert_eq!(holds.add(1, name("x"), (), (at(0), Some(at(5)))), Err(TooManyHolds));
        assert_eq!(holds.add(1, name("0"), (), (at(0), Some(at(5)))), Ok(false));
        let bytes = holds.size(1).1;
        assert_eq!(holds.add(2, name("1"), (), (at(0), Some(at(5)))), Ok(true));
        assert_eq!(
            holds.add(1, name("x"), (), (at(0), Some(at(5)))),
            Ok(true),
            "one is of another"
        );
        assert_eq!((holds.size(1), holds.size(2)), ((MAX_SESSION_HOLDS, bytes), (1, 2)));
        assert_eq!(holds.add(1, name("y"), (), (at(4), Some(at(9)))), Err(TooManyHolds));
        holds.renewed(&name("7"), (at(1), at(3)));
        assert_eq!(holds.add(1, name("y"), (), (at(4), Some(at(9)))), Ok(true), "one has expired");
        assert_eq!(holds.add(1, name("z"), (), (at(5), Some(at(9)))), Ok(true), "all others have");
        assert_eq!(holds.size(1), (2, 4));
        assert_eq!(end(&mut holds, 1, at(5)), ["y", "z"]);
        assert_eq!(end(&mut holds, 2, at(1)), ["1"]);
    }
}
