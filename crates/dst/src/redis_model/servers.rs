//! All servers that processes share: one, or the nodes of a cluster.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;
use sluicegate_resp::{Version, Writer};
use tokio::time::Instant;

use super::{
    cluster::{Cluster, FIRST_PORT, HOST, Route},
    server::{KeyMoment, RedisModel},
    session::Session,
    slots::slot_of,
};
use crate::{check::Checks, event_log::EventLog};

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
