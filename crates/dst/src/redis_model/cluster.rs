//! The maps of the nodes of a cluster: the owner of each slot, migrations, and redirections of clients.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;
use sluicegate_resp::{Arguments, Parser, Version, Writer};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::{Instant, sleep, sleep_until},
};

use super::{
    server::{KeyMoment, RedisModel},
    session::Session,
};
use crate::{check::Checks, event_log::EventLog, network::Stream};

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

// All servers that processes share: one, or the nodes of a cluster.

/// After this time without its primary, the others know that a shard has none.
const DETECTED: Duration = Duration::from_millis(100);

/// All servers.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(super) nodes: Vec<Arc<RedisModel>>,
    pub(super) cluster: Option<Cluster>,
    /// The keys of the plan.
    pub(super) keys: Vec<Vec<u8>>,
    /// The node that decides on each key of a cluster.
    owners: Mutex<BTreeMap<Vec<u8>, usize>>,
    /// Commands that a node of a cluster did not run.
    redirects: AtomicU64,
    pub(super) log: Arc<EventLog>,
    pub(super) checks: Arc<Checks>,
}

impl Servers {
    /// One server.
    pub(crate) fn single(node: Arc<RedisModel>, keys: Vec<Vec<u8>>) -> Arc<Self> {
        let (log, checks) = (Arc::clone(&node.log), Arc::clone(&node.checks));
        let (nodes, owners) = (vec![node], Mutex::default());
        let redirects = AtomicU64::new(0);
        Arc::new(Self { nodes, cluster: None, keys, owners, redirects, log, checks })
    }

    /// The nodes of a cluster: primaries, and a replica for each.
    pub(crate) fn cluster(
        nodes: Vec<Arc<RedisModel>>,
        needs_all: bool,
        keys: Vec<Vec<u8>>,
    ) -> Arc<Self> {
        let (log, checks) = (Arc::clone(&nodes[0].log), Arc::clone(&nodes[0].checks));
        let cluster = Cluster::new(nodes.len() / 2, needs_all);
        let map = cluster.state.lock().map.clone();
        let owners = keys.iter().map(|key| (key.clone(), map.node_of(slot_of(key)))).collect();
        let (owners, redirects) = (Mutex::new(owners), AtomicU64::new(0));
        Arc::new(Self { nodes, cluster: Some(cluster), keys, owners, redirects, log, checks })
    }

    /// How processes name them.
    pub(crate) fn url(&self) -> String {
        if self.cluster.is_none() {
            return "redis://server".to_owned();
        }
        let host = |node| format!("{HOST}:{}", usize::from(FIRST_PORT) + node);
        let hosts: Vec<_> = (0..self.nodes.len()).map(host).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The node at an address.
    pub(crate) fn node_at(&self, port: u16) -> usize {
        match self.cluster {
            Some(_) => usize::from(port.saturating_sub(FIRST_PORT)).min(self.nodes.len() - 1),
            None => 0,
        }
    }

    pub(crate) const fn is_cluster(&self) -> bool {
        self.cluster.is_some()
    }

    pub(crate) fn node(&self, node: usize) -> &Arc<RedisModel> {
        &self.nodes[node]
    }

    pub(crate) fn nodes(&self) -> impl Iterator<Item = &Arc<RedisModel>> {
        self.nodes.iter()
    }

    /// Whether one command can have all these keys.
    pub(crate) fn fit_one_command<'a>(&self, mut keys: impl Iterator<Item = &'a [u8]>) -> bool {
        let Some(first) = keys.next() else { return true };
        self.cluster.is_none() || keys.all(|key| slot_of(key) == slot_of(first))
    }

    /// The node that decides on a key.
    pub(crate) fn owner(&self, key: &[u8]) -> usize {
        self.owners.lock().get(key).copied().unwrap_or_default()
    }

    /// The node decides on the key from now on, by its own clock.
    pub(super) fn set_owner(&self, key: &[u8], node: usize) {
        let before = self.owner(key);
        if before != node && self.owners.lock().insert(key.to_vec(), node).is_some() {
            let (from, to) = (self.nodes[before].clock.now(), self.nodes[node].clock.now());
            self.checks.clock_stepped(key, from, to);
        }
    }

    /// The keys that a node decides on.
    pub(super) fn keys_of(&self, node: usize) -> Vec<Vec<u8>> {
        self.keys.iter().filter(|key| self.owner(key) == node).cloned().collect()
    }

    /// The time by which a key is decided.
    pub(crate) fn time_of(&self, key: &[u8]) -> Timestamp {
        self.nodes[self.owner(key)].clock.now()
    }

    /// The state of a key now, as the oracle knows it.
    pub(crate) fn moment(&self, key: &[u8]) -> KeyMoment {
        self.nodes[self.owner(key)].moment(key)
    }

    /// The ids of the open holds of a key.
    pub(crate) fn open_holds(&self, key: &[u8]) -> Vec<Vec<u8>> {
        self.nodes[self.owner(key)].open_holds(key)
    }

    /// Runs a command that a node gets, and writes its reply.
    pub(super) fn run(
        &self,
        node: usize,
        session: &mut Session,
        arguments: &[&[u8]],
        out: &mut Vec<u8>,
    ) {
        if let Some(cluster) = &self.cluster {
            let is_asking = std::mem::take(&mut session.is_asking);
            let mut writer = Writer::new(out, Version::Resp3);
            match arguments {
                [b"ASKING"] => {
                    session.is_asking = true;
                    return writer.simple("OK");
                }
                [b"CLUSTER", b"SLOTS"] if !self.nodes[node].is_busy() => {
                    return cluster.state.lock().write_slots(node, &mut writer);
                }
                [b"GET", key] => {
                    if let Some(error) = self.route(cluster, node, is_asking, b"1", &[key]) {
                        return writer.error(error);
                    }
                }
                [b"EVAL" | b"EVALSHA", _, b"0", key] => {
                    if let Some(error) = self.why_not_written(cluster, node, key) {
                        return writer.error(error);
                    }
                }
                [b"EVAL" | b"EVALSHA", _, count, rest @ ..] => {
                    if let Some(error) = self.route(cluster, node, is_asking, count, rest) {
                        return writer.error(error);
                    }
                }
                _ => {}
            }
        }
        self.nodes[node].run(session, arguments, out);
    }

    /// The error of a node that does not decide on these keys.
    fn route(
        &self,
        cluster: &Cluster,
        node: usize,
        is_asking: bool,
        count: &[u8],
        rest: &[&[u8]],
    ) -> Option<String> {
        let count = str::from_utf8(count).ok()?.parse().ok()?;
        let keys = rest.get(..count)?;
        let has = |key: &[u8]| self.nodes[node].has(key);
        let state = cluster.state.lock();
        let route = state.route(node, is_asking, cluster.needs_all, keys, has, |shard| {
            let primary = state.map.primaries[shard];
            primary != node && self.nodes[primary].down_for() >= DETECTED
        });
        drop(state);
        match route {
            Route::Serve => keys.iter().for_each(|key| self.set_owner(key, node)),
            Route::CrossSlot => {
                let what = format_args!("exactness: a command on keys of several slots");
                self.checks.violation(what);
            }
            _ => {
                self.redirects.fetch_add(1, Ordering::Relaxed);
                let keys: Vec<_> = keys.iter().map(|it| it.escape_ascii().to_string()).collect();
                self.log.add(format_args!("node {node}: {route:?} of {keys:?}"));
            }
        }
        route.error()
    }

    /// Why a script without keys cannot write this key on a node.
    fn why_not_written(&self, cluster: &Cluster, node: usize, key: &[u8]) -> Option<String> {
        let state = cluster.state.lock();
        let model = &self.nodes[node];
        if model.is_busy() {
            return None;
        }
        if !state.is_primary(node) {
            return Some("READONLY You can't write against a read only replica.".to_owned());
        }
        if let Some(refusal) = model.state.lock().refusal() {
            return Some(refusal.text().to_owned());
        }
        let is_lost = |primary: &usize| self.nodes[*primary].down_for() >= DETECTED;
        if cluster.needs_all && state.map.primaries.iter().any(is_lost) {
            let what = "ERR Script attempted to execute a command while the cluster is down";
            return Some(what.to_owned());
        }
        (state.map.node_of(slot_of(key)) != node)
            .then(|| "ERR Script attempted to access a non local key in a cluster node".to_owned())
    }

    /// How many commands nodes of a cluster did not run.
    pub(crate) fn redirects(&self) -> u64 {
        self.redirects.load(Ordering::Relaxed)
    }

    /// The clock of a node is set.
    pub(crate) fn step_clock(&self, node: usize, millis: i64) {
        let from = self.nodes[node].clock.now();
        self.nodes[node].step_clock(millis);
        let to = self.nodes[node].clock.now();
        for key in self.keys_of(node) {
            self.checks.clock_stepped(&key, from, to);
        }
    }

    /// The clock of a node stands still.
    pub(crate) fn stop_clock(&self, node: usize, millis: u64) {
        self.nodes[node].clock.stop(millis);
        for key in self.keys_of(node) {
            self.checks.clock_stops(&key, millis);
        }
    }

    /// Until when a node gets no change of the map.
    pub(crate) fn freeze_map(&self, node: usize, span: Duration) {
        if let Some(cluster) = &self.cluster {
            cluster.state.lock().freeze(node, Instant::now() + span);
        }
    }
}

// Changes of the shards of a cluster: replicas take over, and slots move.

/// Time until a key is moved again when one of the nodes did not run.
const MOVE_AGAIN: Duration = Duration::from_millis(10);

/// Time within which a replica takes over.
const MAX_ELECTION: Duration = Duration::from_millis(500);

impl Servers {
    /// A node ends, and starts again after `span` without the writes of the last `lost`.
    pub(crate) fn restart(&self, node: usize, span: Duration, lost: Duration) {
        self.finish_migrations_of(node);
        self.nodes[node].restart(span, lost);
    }

    /// Another server takes over, without the writes of the last `lost`: of a cluster, the replica of each shard.
    pub(crate) fn fail_over_all(&self, lost: Duration) {
        let Some(cluster) = &self.cluster else { return self.nodes[0].fail_over(lost) };
        let primaries = cluster.state.lock().map.primaries.clone();
        primaries.into_iter().for_each(|primary| self.fail_over(primary, lost));
    }

    /// The replica of the shard of `node` takes over, without what its primary wrote in the last `lost`. The primary becomes
    /// its replica.
    pub(crate) fn fail_over(&self, node: usize, lost: Duration) {
        let since = Instant::now().checked_sub(lost);
        self.promote(node, since);
    }

    fn promote(&self, node: usize, since: Option<Instant>) {
        let Some(cluster) = &self.cluster else { return };
        let (shard, primary, replica) = {
            let state = cluster.state.lock();
            let shard = state.shard(node);
            (shard, state.map.primaries[shard], state.replica(shard))
        };
        if !self.nodes[replica].runs() {
            return;
        }
        self.finish_migrations_of(node);
        let keys = self.keys_of(primary);
        self.nodes[primary].hand_over(&self.nodes[replica], since);
        cluster.state.lock().map.primaries[shard] = replica;
        self.log.add(format_args!("node {replica} takes over from node {primary}"));
        keys.iter().for_each(|key| self.set_owner(key, replica));
    }

    /// The primary of the shard of `node` ends, and starts again after `span`. After half of it, but soon, its replica has taken over,
    /// without what was written in the last `lost` before the end. Returns the primary.
    pub(crate) fn lose_primary(
        self: &Arc<Self>,
        node: usize,
        span: Duration,
        lost: Duration,
    ) -> usize {
        let Some(cluster) = &self.cluster else { return node };
        let shard = cluster.state.lock().shard(node);
        let primary = cluster.state.lock().map.primaries[shard];
        self.finish_migrations_of(node);
        let begin = Instant::now();
        self.nodes[primary].restart(span, Duration::ZERO);
        let elected = (span / 2).min(MAX_ELECTION);
        self.checks.disturbed(millis(elected));
        let (servers, since) = (Arc::clone(self), begin.checked_sub(lost));
        tokio::spawn(async move {
            sleep(elected).await;
            let Some(cluster) = &servers.cluster else { return };
            let is_primary = || cluster.state.lock().map.primaries[shard] == primary;
            if is_primary() {
                servers.promote(primary, since);
            }
            // Without a new primary, or while a node sends clients to the old one, keys are not available.
            let until = if is_primary() { begin + span } else { begin };
            let until = until.max(cluster.state.lock().stale_until());
            servers.checks.disturbed(millis(until.saturating_duration_since(Instant::now())));
        });
        primary
    }

    /// The slot of a key moves to the shard of `node`, key by key, within `span`.
    pub(crate) fn migrate(self: &Arc<Self>, key: usize, node: usize, span: Duration) {
        let (Some(cluster), Some(key)) = (&self.cluster, self.keys.get(key)) else { return };
        let slot = slot_of(key);
        let mut state = cluster.state.lock();
        let (from, to) = (state.map.shard_of(slot), state.shard(node));
        if from == to || state.migrations.iter().any(|it| it.slot == slot) {
            return;
        }
        state.last_migration += 1;
        let migration = Migration { number: state.last_migration, slot, from, to };
        state.migrations.push(migration);
        drop(state);
        let keys = self.keys_in(slot);
        keys.iter().for_each(|key| self.checks.migrates(key, true));
        let pause = span / u32::try_from(keys.len() + 1).unwrap_or(1);
        let servers = Arc::clone(self);
        tokio::spawn(async move {
            for key in keys {
                sleep(pause).await;
                while servers.is_under_way(migration) && !servers.can_move(migration) {
                    sleep(MOVE_AGAIN).await;
                }
                if servers.is_under_way(migration) {
                    servers.move_key(migration, &key);
                }
            }
            sleep(pause).await;
            servers.finish(migration);
        });
    }

    /// Whether a slot moves.
    pub(crate) fn is_migrating(&self) -> bool {
        self.cluster.as_ref().is_some_and(|it| !it.state.lock().migrations.is_empty())
    }

    fn keys_in(&self, slot: u16) -> Vec<Vec<u8>> {
        self.keys.iter().filter(|key| slot_of(key) == slot).cloned().collect()
    }

    fn is_under_way(&self, migration: Migration) -> bool {
        let contains = |it: &Cluster| it.state.lock().migrations.contains(&migration);
        self.cluster.as_ref().is_some_and(contains)
    }

    /// The primaries of both shards.
    fn ends(&self, migration: Migration) -> Option<(usize, usize)> {
        let state = self.cluster.as_ref()?.state.lock();
        Some((state.map.primaries[migration.from], state.map.primaries[migration.to]))
    }

    fn can_move(&self, migration: Migration) -> bool {
        let runs = |node: usize| self.nodes[node].runs();
        self.ends(migration).is_some_and(|(from, to)| runs(from) && runs(to))
    }

    fn move_key(&self, migration: Migration, key: &[u8]) {
        let Some((from, to)) = self.ends(migration) else { return };
        if self.nodes[from].move_key(&self.nodes[to], key) {
            self.log.add(format_args!("{} moves to node {to}", key.escape_ascii()));
            self.set_owner(key, to);
        }
    }

    /// The rest of the keys moves at once, and the slot with them.
    fn finish(&self, migration: Migration) {
        let (true, Some(cluster)) = (self.is_under_way(migration), &self.cluster) else { return };
        let keys = self.keys_in(migration.slot);
        keys.iter().for_each(|key| self.move_key(migration, key));
        let mut state = cluster.state.lock();
        state.migrations.retain(|it| *it != migration);
        state.map.assign(migration.slot, migration.to);
        let node = state.map.primaries[migration.to];
        drop(state);
        self.log.add(format_args!("slot {} is at node {node}", migration.slot));
        for key in keys {
            self.checks.migrates(&key, false);
            self.set_owner(&key, node);
        }
    }

    /// Nodes that migrate a slot do not end before they are done. (In Redis 7.0, the new primary forgets the migration,
    /// and an operator has to repair it.)
    fn finish_migrations_of(&self, node: usize) {
        let Some(cluster) = &self.cluster else { return };
        let shard = cluster.state.lock().shard(node);
        let migrations = cluster.state.lock().migrations.clone();
        let concerned = migrations.into_iter().filter(|it| it.from == shard || it.to == shard);
        concerned.for_each(|migration| self.finish(migration));
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

// Slots of a cluster, and which node holds each.

/// Slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: CRC-16 of what is between its first brace and the next closing one, or of all of it.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.split(|byte| *byte == b'{').nth(1).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..end).filter(|tag| !tag.is_empty())
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Which shard has each slot, and which node is the primary of each shard.
#[derive(Clone, Debug)]
pub(super) struct SlotMap {
    /// Slots that have moved from the shard that they had at first.
    moved: BTreeMap<u16, usize>,
    pub(super) primaries: Vec<usize>,
}

impl SlotMap {
    /// Equal parts. The first nodes are primaries.
    pub(super) fn new(shards: usize) -> Self {
        Self { moved: BTreeMap::new(), primaries: (0..shards).collect() }
    }

    pub(super) fn shard_of(&self, slot: u16) -> usize {
        let first = usize::from(slot) * self.primaries.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(first)
    }

    /// The primary that has the slot.
    pub(super) fn node_of(&self, slot: u16) -> usize {
        self.primaries[self.shard_of(slot)]
    }

    pub(super) fn assign(&mut self, slot: u16, shard: usize) {
        self.moved.insert(slot, shard);
    }

    /// First and last slots with their shard, in order.
    pub(super) fn ranges(&self) -> Vec<(u16, u16, usize)> {
        let (shards, slots) = (self.primaries.len(), usize::from(SLOTS));
        // Where a shard may begin: at its first slot, and at each slot that has moved, or behind one.
        let first = |shard: usize| u16::try_from((shard * slots).div_ceil(shards)).unwrap_or(SLOTS);
        let moved = self.moved.keys().flat_map(|slot| [*slot, *slot + 1]);
        let begins: BTreeSet<_> = (0..shards).map(first).chain(moved).chain([SLOTS]).collect();
        let begins: Vec<_> = begins.into_iter().collect();
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for pair in begins.windows(2) {
            let (shard, last) = (self.shard_of(pair[0]), pair[1] - 1);
            match ranges.last_mut() {
                Some((_, end, same)) if *same == shard => *end = last,
                _ => ranges.push((pair[0], last, shard)),
            }
        }
        ranges
    }
}

// A connection to a server: commands in, replies out.

/// Serves a connection of `process` to a node, until it ends.
pub(crate) async fn serve(
    servers: Arc<Servers>,
    node: usize,
    process: (usize, u64),
    mut stream: Stream,
) {
    let server = Arc::clone(servers.node(node));
    let mut session = server.new_session(process);
    let start = server.state.lock().start;
    let (mut unread, mut parser) = (Vec::new(), Parser::default());
    loop {
        let (mut out, mut received) = (Vec::new(), std::mem::take(&mut unread));
        let mut rest = &mut received[..];
        let mut arguments = Arguments::new();
        while let Ok(true) = parser.parse(&mut rest, &mut arguments) {
            // A paused server runs nothing; what has arrived is run when it continues.
            wait(&server, session.number, false).await;
            if server.state.lock().start != start || !server.is_up() {
                return stream.reset();
            }
            servers.run(node, &mut session, &arguments, &mut out);
        }
        unread = rest.to_vec();
        if !out.is_empty() {
            wait(&server, session.number, true).await;
        }
        if stream.write_all(&out).await.is_err() {
            return;
        }
        if !matches!(stream.read_buf(&mut unread).await, Ok(1..)) {
            return;
        }
    }
}

/// Waits while the server runs no command of the session, or does not reply to it.
async fn wait(server: &RedisModel, session: u64, replies: bool) {
    loop {
        let until = server.waits_until(session, replies);
        if Instant::now() >= until {
            return;
        }
        sleep_until(until).await;
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

    #[test]
    fn slot_of_key_is_that_of_its_tag() {
        // Replies of `CLUSTER KEYSLOT` of Redis 7.0.
        for (key, expected) in
            [(&b"foo"[..], 12182), (b"", 0), (b"user:{42}:take", 8000), (b"{}x", 10595)]
        {
            assert_eq!(slot_of(key), expected, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn ranges_of_moved_slot_are_split() {
        let mut map = SlotMap::new(2);
        assert_eq!(map.ranges(), [(0, 8191, 0), (8192, 16383, 1)]);
        map.assign(100, 1);
        let expected = [(0, 99, 0), (100, 100, 1), (101, 8191, 0), (8192, 16383, 1)];
        assert_eq!(map.ranges(), expected);
    }
}
