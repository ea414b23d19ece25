//! The map from keys to servers.

use sluicegate_core::{StoreError, reached};
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use redis::{Value, from_redis_value_ref};
use tokio::{sync::watch, time::sleep};

use super::{
    context::{Context, Endpoint},
    node_connection::{Deadline, NodeConnection},
    report::OutageLog,
    url::{Address, Kind},
};
use crate::slot::SLOTS;

/// Maximum time to read the map from one node.
const MAP_TIMEOUT: Duration = Duration::from_millis(500);
/// Minimum time between two reads of the map.
const SETTLING: Duration = Duration::from_millis(50);
/// Time until the map is read again after a failure, and while a node is unavailable, with jitter.
const RETRY_PAUSE: Duration = Duration::from_millis(250);

/// The map from keys to servers.
pub(crate) enum Topology {
    /// One server holds all keys.
    One(Arc<NodeConnection>),
    Cluster(Arc<Cluster>),
}

impl Topology {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        let url = &context.url;
        match &url.kind {
            Kind::Cluster => Self::Cluster(Arc::new(Cluster {
                context: Arc::clone(context),
                map: RwLock::default(),
                refreshing: AtomicBool::new(false),
                is_watched: AtomicBool::new(false),
                first_map: watch::channel(None).0,
                report: Mutex::new(OutageLog::new()),
            })),
            Kind::Single | Kind::Unix => {
                let endpoint = Endpoint::At(url.hosts[0].clone());
                Self::One(NodeConnection::new(endpoint, context, true))
            }
            Kind::Sentinel(name) => {
                let (sentinels, name) = (url.hosts.clone(), name.clone());
                let endpoint = Endpoint::Primary { sentinels, name };
                Self::One(NodeConnection::new(endpoint, context, true))
            }
        }
    }

    /// The connection to the server that holds a slot.
    pub(crate) async fn node(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Arc<NodeConnection>, StoreError> {
        let cluster = match self {
            Self::One(node) => return Ok(Arc::clone(node)),
            Self::Cluster(cluster) => cluster,
        };
        if let Some(node) = cluster.node_of(slot) {
            return Ok(node);
        }
        reached!(SlotHasNoNode);
        cluster.refresh();
        if cluster.has_no_map() {
            // The first commands need the map. If it cannot be read, the background task retries.
            let mut watcher = cluster.first_map.subscribe();
            let read = watcher.wait_for(Option::is_some);
            if let Ok(Some(Err(why))) = deadline.within(read).await?.as_deref() {
                return Err(StoreError::Unavailable(why.clone()));
            }
        }
        cluster.node_of(slot).ok_or_else(|| {
            StoreError::Unavailable(format!("no node of the cluster holds slot {slot}"))
        })
    }

    /// Reads the map again in the background, because it may be old.
    pub(crate) fn refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.refresh();
        }
    }

    /// The node of a redirect: permanently (`moved`), or for this command (`ASK`).
    pub(crate) fn redirected(
        &self,
        slot: u16,
        to: &str,
        from: &NodeConnection,
        moved: bool,
    ) -> Result<Arc<NodeConnection>, StoreError> {
        let address = || {
            let (host, port) = to.rsplit_once(':')?;
            // An empty host is that of the node that replied.
            let host = match (host, &from.endpoint) {
                ("", Endpoint::At(address)) => address.host.clone(),
                _ => host.trim_matches(['[', ']']).to_owned(),
            };
            Some(Address { host, port: port.parse().ok()? })
        };
        let invalid = |what: &str| {
            Err(StoreError::Unavailable(format!(
                "invalid redirect of slot {slot} to `{to}`: {what}"
            )))
        };
        let Self::Cluster(cluster) = self else {
            return invalid("the store is a cluster, expected a URL with `redis+cluster://`");
        };
        let Some(address) = address() else { return invalid("expected a host and a port") };
        let mut map = cluster.map.write();
        let node = map.node(address, &cluster.context);
        if moved {
            map.assign(slot, slot, &node);
            #[cfg(debug_assertions)]
            map.check();
            drop(map);
            cluster.refresh();
        }
        Ok(node)
    }

    /// Every server.
    pub(crate) async fn all(
        &self,
        deadline: Deadline,
    ) -> Result<Vec<Arc<NodeConnection>>, StoreError> {
        match self {
            Self::One(node) => Ok(vec![Arc::clone(node)]),
            Self::Cluster(cluster) => {
                deadline.within(cluster.read_map()).await??;
                Ok(cluster.nodes())
            }
        }
    }
}

/// The nodes of a cluster.
pub(crate) struct Cluster {
    context: Arc<Context>,
    map: RwLock<Map>,
    /// Whether a task reads the map.
    refreshing: AtomicBool,
    /// Whether a task reads the map again while nodes are unavailable.
    is_watched: AtomicBool,
    /// Whether there is a map, or why no node returned the first one; `None` before it is read.
    first_map: watch::Sender<Option<Result<(), String>>>,
    report: Mutex<OutageLog>,
}

#[derive(Default)]
struct Map {
    nodes: BTreeMap<Address, Arc<NodeConnection>>,
    /// By slot; empty at first.
    slots: Vec<Option<Arc<NodeConnection>>>,
}

impl Map {
    fn node(&mut self, address: Address, context: &Arc<Context>) -> Arc<NodeConnection> {
        let endpoint = Endpoint::At(address.clone());
        let new = || NodeConnection::new(endpoint, context, true);
        Arc::clone(self.nodes.entry(address).or_insert_with(new))
    }

    fn assign(&mut self, first: u16, last: u16, node: &Arc<NodeConnection>) {
        self.slots.resize(usize::from(SLOTS), None);
        for slot in first..=last.min(SLOTS - 1) {
            self.slots[usize::from(slot)] = Some(Arc::clone(node));
        }
    }

    /// Checks that every slot has one of the nodes.
    #[cfg(debug_assertions)]
    fn check(&self) {
        assert!(
            self.slots.is_empty() || self.slots.len() == usize::from(SLOTS),
            "a slot is missing"
        );
        let mut last = None;
        for node in self.slots.iter().flatten() {
            if last.is_none_or(|last| !Arc::ptr_eq(last, node)) {
                let is_it = |other: &Arc<NodeConnection>| Arc::ptr_eq(node, other);
                assert!(self.nodes.values().any(is_it), "a slot leads to a node that is not kept");
                last = Some(node);
            }
        }
    }
}

impl Cluster {
    /// Every known node.
    pub(crate) fn nodes(&self) -> Vec<Arc<NodeConnection>> {
        let mut nodes: Vec<_> = self.map.read().nodes.values().cloned().collect();
        nodes.sort_by_key(|node| node.endpoint.to_string());
        nodes
    }

    fn node_of(&self, slot: u16) -> Option<Arc<NodeConnection>> {
        self.map.read().slots.get(usize::from(slot)).cloned().flatten()
    }

    fn has_no_map(&self) -> bool {
        self.map.read().nodes.is_empty()
    }

    fn refresh(self: &Arc<Self>) {
        self.watch();
        if self.refreshing.swap(true, Ordering::Relaxed) {
            return;
        }
        let cluster = Arc::downgrade(self);
        self.context.spawn(async move {
            loop {
                let Some(cluster) = cluster.upgrade() else { return };
                let read = cluster.read_map().await;
                if let Err(error) = &read {
                    tracing::debug!(%error, "cannot read the slots of the cluster");
                }
                if !cluster.has_no_map() {
                    // A cluster takes some time to settle after a change.
                    sleep(if read.is_ok() {
                        SETTLING
                    } else {
                        cluster.context.jitter(RETRY_PAUSE)
                    })
                    .await;
                    cluster.refreshing.store(false, Ordering::Relaxed);
                    return;
                }
                let pause = cluster.context.jitter(RETRY_PAUSE);
                drop(cluster);
                sleep(pause).await;
            }
        });
    }

    /// Starts the task that reads the map again while nodes are unavailable, unless it runs.
    fn watch(self: &Arc<Self>) {
        if self.is_watched.swap(true, Ordering::Relaxed) {
            return;
        }
        let (cluster, context) = (Arc::downgrade(self), Arc::clone(&self.context));
        self.context.spawn(async move {
            loop {
                context.node_unavailable.notified().await;
                let Some(cluster) = cluster.upgrade() else { return };
                cluster.refresh();
                drop(cluster);
                sleep(context.jitter(RETRY_PAUSE)).await;
            }
        });
    }

    /// Why no node is available, if that is so.
    pub(crate) fn unavailable(&self) -> Option<String> {
        if let Some(Err(why)) = &*self.first_map.borrow() {
            return Some(why.clone());
        }
        let nodes = self.nodes();
        let reasons: Option<Vec<_>> = nodes.iter().map(|node| node.why_unavailable()).collect();
        reasons?.into_iter().next()
    }

    /// Reads the map, and logs whether there is one.
    async fn read_map(&self) -> Result<(), StoreError> {
        let read = self.query_nodes().await;
        let (now, mut report) = (self.context.now(), self.report.lock());
        let line = match &read {
            Ok(()) => {
                self.first_map.send_replace(Some(Ok(())));
                report.change(false, now)
            }
            // Each known node logs its own outage.
            Err(_) if !self.has_no_map() => None,
            Err(error) => {
                let why = match error {
                    StoreError::Unavailable(why) => why.clone(),
                    error => error.to_string(),
                };
                self.first_map.send_replace(Some(Err(why)));
                report.change(true, now)
            }
        };
        let line = line.or_else(|| report.due(now));
        drop(report);
        if let Some(line) = line {
            let why = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
            self.context.log_outage(&"cluster", line, &why);
        }
        read
    }

    /// Reads the map from one node after the other.
    async fn query_nodes(&self) -> Result<(), StoreError> {
        let node_of: Vec<_> = self.map.read().nodes.values().cloned().collect();
        let seeds = self.context.url.hosts.iter().cloned();
        let seeds = seeds.map(|seed| NodeConnection::new(Endpoint::At(seed), &self.context, false));
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut error = StoreError::Unavailable("the cluster has no nodes".to_owned());
        for node in node_of.into_iter().chain(seeds) {
            match node.command(&command, Deadline::after(MAP_TIMEOUT)).await {
                Ok(Value::ServerError(reply)) => {
                    let words = reply.details().unwrap_or_default();
                    let advice = if words.contains("cluster support disabled") {
                        "; the server is not a node of a cluster: use `redis://`"
                    } else {
                        ""
                    };
                    error = StoreError::Unavailable(format!("{}: {words}{advice}", node.endpoint));
                }
                Ok(value) => {
                    if let Some(ranges) = ranges(&value, &node).filter(|it| !it.is_empty()) {
                        self.replace_map(ranges);
                        return Ok(());
                    }
                    error = StoreError::Unavailable(format!("{} holds no slots", node.endpoint));
                }
                Err(failure) => error = failure,
            }
        }
        Err(error)
    }

    fn replace_map(&self, ranges: Vec<(u16, u16, Address)>) {
        let mut map = self.map.write();
        let mut old = std::mem::take(&mut *map);
        for (first, last, address) in ranges {
            if let Some(node) = old.nodes.remove(&address) {
                map.nodes.insert(address.clone(), node);
            }
            let node = map.node(address, &self.context);
            map.assign(first, last, &node);
        }
        #[cfg(debug_assertions)]
        map.check();
        reached!(NodeLeavesCluster if !old.nodes.is_empty());
        old.nodes.values().for_each(|node| node.retire());
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Ends the task that waits for it.
        self.context.node_unavailable.notify_one();
    }
}

/// Parses the reply to `CLUSTER SLOTS`: first and last slot, and the primary that holds them.
fn ranges(value: &Value, from: &NodeConnection) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(entries) = value else { return None };
    let range = |entry: &Value| {
        let Value::Array(parts) = entry else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = from_redis_value_ref::<Option<String>>(host).ok()?.unwrap_or_default();
        // A node that does not know its own address has the one of the connection.
        let host = match &from.endpoint {
            Endpoint::At(address) if host.is_empty() || host == "?" => address.host.clone(),
            _ => host,
        };
        let address = Address { host, port: u16::try_from(*port).ok()? };
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
    };
    entries.iter().map(range).collect()
}
