//! The maps of the nodes of a cluster: the owner of each slot, migrations, and redirections of clients.

use parking_lot::Mutex;
use sluicegate_resp::Writer;
use tokio::time::Instant;

use super::slots::{SlotMap, slot_of};

/// The port of the first node. The others follow it.
pub(super) const FIRST_PORT: u16 = 7000;
pub(super) const HOST: &str = "127.0.0.1";

/// The maps of the nodes of a cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    /// Whether no node serves any key while a shard has no primary; otherwise only its keys are not served.
    pub(super) needs_all: bool,
    pub(super) state: Mutex<ClusterState>,
}

#[derive(Debug)]
pub(super) struct ClusterState {
    pub(super) map: SlotMap,
    pub(super) migrations: Vec<Migration>,
    pub(super) last_migration: u64,
    /// The maps of nodes that do not get later changes, and until when.
    stale: Vec<Option<(Instant, SlotMap)>>,
}

/// A slot whose keys move to another shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Migration {
    pub(super) number: u64,
    pub(super) slot: u16,
    pub(super) from: usize,
    pub(super) to: usize,
}

/// The action of a node on a command that has keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    Serve,
    /// Another node has the slot.
    Moved(u16, usize),
    /// Another node gets the key.
    Ask(u16, usize),
    TryAgain,
    CrossSlot,
    Down,
    NotServed,
}

impl Cluster {
    /// Each shard has two nodes: `n`, the primary at first, and `n + shards`.
    pub(super) fn new(shards: usize, needs_all: bool) -> Self {
        let state = ClusterState {
            map: SlotMap::new(shards),
            migrations: Vec::new(),
            last_migration: 0,
            stale: vec![None; 2 * shards],
        };
        Self { needs_all, state: Mutex::new(state) }
    }
}

impl ClusterState {
    pub(super) fn shards(&self) -> usize {
        self.map.primaries.len()
    }

    /// The shard that a node belongs to.
    pub(super) fn shard(&self, node: usize) -> usize {
        node % self.shards()
    }

    /// The other node of a shard.
    pub(super) fn replica(&self, shard: usize) -> usize {
        let primary = self.map.primaries[shard];
        (primary + self.shards()) % (2 * self.shards())
    }

    pub(super) fn is_primary(&self, node: usize) -> bool {
        self.map.primaries.contains(&node)
    }

    /// The node gets no change until then.
    pub(super) fn freeze(&mut self, node: usize, until: Instant) {
        self.stale[node] = Some((until, self.map.clone()));
    }

    /// Until when some node has an old map.
    pub(super) fn stale_until(&self) -> Instant {
        let until = self.stale.iter().flatten().map(|it| it.0);
        until.max().unwrap_or_else(Instant::now)
    }

    /// The map that the node has.
    fn map_of(&self, node: usize) -> &SlotMap {
        match &self.stale[node] {
            Some((until, map)) if Instant::now() < *until => map,
            _ => &self.map,
        }
    }

    /// The action of a node on a command on `keys`. `has` is whether it has a key, `is_lost` whether a shard is known to have
    /// no primary.
    pub(super) fn route(
        &self,
        node: usize,
        is_asking: bool,
        needs_all: bool,
        keys: &[&[u8]],
        has: impl Fn(&[u8]) -> bool,
        is_lost: impl Fn(usize) -> bool,
    ) -> Route {
        let Some(slot) = keys.first().map(|key| slot_of(key)) else { return Route::Serve };
        let shard = self.map.shard_of(slot);
        if !needs_all && is_lost(shard) {
            return Route::NotServed;
        }
        if keys.iter().any(|key| slot_of(key) != slot) {
            return Route::CrossSlot;
        }
        if needs_all && (0..self.shards()).any(is_lost) {
            return Route::Down;
        }
        let missing = keys.iter().filter(|key| !has(key)).count();
        let mine = self.map.node_of(slot) == node;
        if let Some(migration) = self.migrations.iter().find(|it| it.slot == slot) {
            let target = self.map.primaries[migration.to];
            if mine && missing > 0 {
                let has_some = missing < keys.len();
                return if has_some { Route::TryAgain } else { Route::Ask(slot, target) };
            }
            if node == target && is_asking {
                let lacks = keys.len() > 1 && missing > 0;
                return if lacks { Route::TryAgain } else { Route::Serve };
            }
        }
        if mine {
            return Route::Serve;
        }
        let known = self.map_of(node).node_of(slot);
        // A node always knows its own slots, and the nodes that have taken them.
        Route::Moved(slot, if known == node { self.map.node_of(slot) } else { known })
    }

    /// Writes the reply to `CLUSTER SLOTS`.
    pub(super) fn write_slots(&self, node: usize, writer: &mut Writer<'_>) {
        let map = self.map_of(node);
        let ranges = map.ranges();
        writer.array(ranges.len());
        for (first, last, shard) in ranges {
            let primary = map.primaries[shard];
            let replica = (primary + self.shards()) % (2 * self.shards());
            writer.array(4);
            writer.integer(first.into());
            writer.integer(last.into());
            for node in [primary, replica] {
                writer.array(4);
                writer.bulk(HOST);
                writer.integer(i64::from(FIRST_PORT) + node as i64);
                writer.bulk(format!("{node:040x}"));
                writer.map(0);
            }
        }
    }
}

impl Route {
    /// The error of the reply, as Redis 7.0 writes it; none if the node runs the command.
    pub(super) fn error(self) -> Option<String> {
        let at = |node: usize| format!("{HOST}:{}", usize::from(FIRST_PORT) + node);
        Some(match self {
            Self::Serve => return None,
            Self::Moved(slot, node) => format!("MOVED {slot} {}", at(node)),
            Self::Ask(slot, node) => format!("ASK {slot} {}", at(node)),
            Self::TryAgain => "TRYAGAIN Multiple keys request during rehashing of slot".to_owned(),
            Self::CrossSlot => "CROSSSLOT Keys in request don't hash to the same slot".to_owned(),
            Self::Down => "CLUSTERDOWN The cluster is down".to_owned(),
            Self::NotServed => "CLUSTERDOWN Hash slot not served".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn route_of_migrating_slot_depends_on_keys() {
        let cluster = Cluster::new(2, true);
        let mut state = cluster.state.lock();
        let keys: [&[u8]; 2] = [b"{a}1", b"{a}2"];
        let slot = slot_of(b"a");
        let from = state.map.shard_of(slot);
        let (to, other) = (1 - from, from + 2);
        state.migrations.push(Migration { number: 1, slot, from, to });
        let route = |node, is_asking, keys: &[&[u8]], here: &[&[u8]]| {
            state.route(node, is_asking, true, keys, |key| here.contains(&key), |_| false)
        };
        assert_eq!(route(from, false, &keys, &keys), Route::Serve);
        assert_eq!(route(from, false, &keys, &keys[..1]), Route::TryAgain);
        assert_eq!(route(from, false, &keys, &[]), Route::Ask(slot, to));
        assert_eq!(route(from, false, &keys[..1], &keys[1..]), Route::Ask(slot, to));
        assert_eq!(route(to, false, &keys[..1], &[]), Route::Moved(slot, from));
        assert_eq!(route(to, true, &keys[..1], &[]), Route::Serve);
        assert_eq!(route(to, true, &keys, &keys[..1]), Route::TryAgain);
        assert_eq!(route(other, false, &keys, &[]), Route::Moved(slot, from));
        assert_eq!(route(from, false, &[b"{a}", b"b"], &[]), Route::CrossSlot);
        let moved = Route::Moved(3999, 1).error();
        assert_eq!(moved.as_deref(), Some("MOVED 3999 127.0.0.1:7001"));
    }
}
