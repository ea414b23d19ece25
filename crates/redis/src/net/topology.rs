//! Which server holds which key.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, RwLock};
use redis::Value;
use tokio::{sync::watch, time::sleep};

use super::{
    context::{Context, Place},
    keeper::jitter,
    link::{Deadline, Link},
    report::Report,
    url::{Address, Kind},
};
use crate::{StoreError, slot::SLOTS};

/// How long one node may take to tell which node holds what.
const ASKING: Duration = Duration::from_millis(500);
/// How long after the map was read it is not read again.
const SETTLING: Duration = Duration::from_millis(50);
/// The same where no node has told it, more or less.
const AGAIN: Duration = Duration::from_millis(250);

/// Which server holds which key.
#[derive(Debug)]
pub(crate) enum Topology {
    /// One server holds all.
    One(Arc<Link>),
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
                reading: watch::channel(Reading::Never).0,
                report: Mutex::new(Report::new()),
            })),
            Kind::Single => {
                Self::One(Link::new(Place::At(url.hosts[0].clone()), Arc::clone(context)))
            }
            Kind::Sentinel(name) => {
                let place = Place::Primary { sentinels: url.hosts.clone(), name: name.clone() };
                Self::One(Link::new(place, Arc::clone(context)))
            }
        }
    }

    /// The connection to the server that holds a slot.
    pub(crate) async fn link(
        &self,
        slot: u16,
        deadline: Deadline,
    ) -> Result<Arc<Link>, StoreError> {
        let cluster = match self {
            Self::One(link) => return Ok(Arc::clone(link)),
            Self::Cluster(cluster) => cluster,
        };
        if let Some(link) = cluster.known(slot) {
            return Ok(link);
        }
        cluster.refresh();
        if cluster.has_no_map() {
            // The first questions need it. Where it could not be read, others see to that.
            let mut watcher = cluster.reading.subscribe();
            let read = watcher.wait_for(|it| *it != Reading::Never);
            if let Ok(Reading::Failed(why)) = deadline.within(read).await?.as_deref() {
                return Err(StoreError::Unavailable(why.clone()));
            }
        }
        cluster.known(slot).ok_or_else(|| {
            StoreError::Unavailable(format!("no node of the cluster holds slot {slot}"))
        })
    }

    /// The map may be old: it is read again behind the scenes.
    pub(crate) fn refresh(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.refresh();
        }
    }

    /// A node says that another one holds the slot: now and from now on (`moved`), or for this
    /// question (`ASK`).
    pub(crate) fn redirected(
        &self,
        slot: u16,
        to: &str,
        from: &Link,
        moved: bool,
    ) -> Option<Arc<Link>> {
        let Self::Cluster(cluster) = self else { return None };
        let (host, port) = to.rsplit_once(':')?;
        // An empty host is that of the node that says so.
        let host = match (host, from.place()) {
            ("", Place::At(address)) => address.host.clone(),
            _ => host.trim_matches(['[', ']']).to_owned(),
        };
        let address = Address { host, port: port.parse().ok()? };
        let mut map = cluster.map.write();
        let link = map.node(address, &cluster.context);
        if moved {
            map.assign(slot, slot, &link);
            drop(map);
            cluster.refresh();
        }
        Some(link)
    }

    /// Every server.
    pub(crate) async fn all(&self, deadline: Deadline) -> Result<Vec<Arc<Link>>, StoreError> {
        match self {
            Self::One(link) => Ok(vec![Arc::clone(link)]),
            Self::Cluster(cluster) => {
                deadline.within(cluster.read_map()).await??;
                Ok(cluster.links())
            }
        }
    }
}

/// The nodes of a cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    context: Arc<Context>,
    map: RwLock<Map>,
    /// Whether somebody reads the map.
    refreshing: AtomicBool,
    /// What became of the first map.
    reading: watch::Sender<Reading>,
    report: Mutex<Report>,
}

/// What became of the first map of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Reading {
    /// It was not read yet.
    Never,
    /// No node has it.
    Failed(String),
    Done,
}

#[derive(Debug, Default)]
struct Map {
    nodes: HashMap<Address, Arc<Link>>,
    /// By slot; empty at first.
    slots: Vec<Option<Arc<Link>>>,
}

impl Map {
    fn node(&mut self, address: Address, context: &Arc<Context>) -> Arc<Link> {
        let place = Place::At(address.clone());
        let new = || Link::new(place, Arc::clone(context));
        Arc::clone(self.nodes.entry(address).or_insert_with(new))
    }

    fn assign(&mut self, first: u16, last: u16, link: &Arc<Link>) {
        self.slots.resize(usize::from(SLOTS), None);
        for slot in first..=last.min(SLOTS - 1) {
            self.slots[usize::from(slot)] = Some(Arc::clone(link));
        }
    }
}

impl Cluster {
    /// Every node that is known.
    pub(crate) fn links(&self) -> Vec<Arc<Link>> {
        let mut links: Vec<_> = self.map.read().nodes.values().cloned().collect();
        links.sort_by_key(|link| link.place().to_string());
        links
    }

    fn known(&self, slot: u16) -> Option<Arc<Link>> {
        self.map.read().slots.get(usize::from(slot)).cloned().flatten()
    }

    fn has_no_map(&self) -> bool {
        self.map.read().nodes.is_empty()
    }

    fn refresh(self: &Arc<Self>) {
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
                    // Not again at once: a cluster takes its time to settle.
                    sleep(if read.is_ok() { SETTLING } else { jitter(AGAIN) }).await;
                    cluster.refreshing.store(false, Ordering::Relaxed);
                    return;
                }
                drop(cluster);
                sleep(jitter(AGAIN)).await;
            }
        });
    }

    /// Why no node can be asked, where that is so.
    pub(crate) fn unavailable(&self) -> Option<String> {
        if let Reading::Failed(why) = &*self.reading.borrow() {
            return Some(why.clone());
        }
        let links = self.links();
        let reasons: Option<Vec<_>> = links.iter().map(|link| link.why_unavailable()).collect();
        reasons?.into_iter().next()
    }

    /// Reads the map, and logs whether there is one.
    async fn read_map(&self) -> Result<(), StoreError> {
        let read = self.ask_nodes().await;
        let (now, mut report) = (self.context.now(), self.report.lock());
        let line = match &read {
            Ok(()) => {
                self.reading.send_replace(Reading::Done);
                report.change(false, now)
            }
            // Each node that is known logs its own.
            Err(_) if !self.has_no_map() => None,
            Err(error) => {
                let why = match error {
                    StoreError::Unavailable(why) => why.clone(),
                    error => error.to_string(),
                };
                self.reading.send_replace(Reading::Failed(why));
                report.change(true, now)
            }
        };
        let line = line.or_else(|| report.due(now));
        drop(report);
        if let Some(line) = line {
            let why = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
            self.context.say(&"cluster", line, &why);
        }
        read
    }

    /// Asks one node after the other for the map.
    async fn ask_nodes(&self) -> Result<(), StoreError> {
        let known: Vec<_> = self.map.read().nodes.values().cloned().collect();
        let seeds = self.context.url.hosts.iter().cloned();
        let seeds = seeds.map(|seed| Link::seed(Place::At(seed), Arc::clone(&self.context)));
        let mut command = redis::cmd("CLUSTER");
        command.arg("SLOTS");
        let mut error = StoreError::Unavailable("the cluster has no nodes".to_owned());
        for link in known.into_iter().chain(seeds) {
            match link.command(&command, Deadline::after(ASKING)).await {
                Ok(Value::ServerError(refusal)) => {
                    let words = refusal.details().unwrap_or_default();
                    error = StoreError::Unavailable(format!("{}: {words}", link.place()));
                }
                Ok(value) => {
                    if let Some(ranges) = ranges(&value, &link).filter(|it| !it.is_empty()) {
                        self.take_in(ranges);
                        return Ok(());
                    }
                    error = StoreError::Unavailable(format!("{} holds no slots", link.place()));
                }
                Err(failure) => error = failure,
            }
        }
        Err(error)
    }

    fn take_in(&self, ranges: Vec<(u16, u16, Address)>) {
        let mut map = self.map.write();
        let mut old = std::mem::take(&mut *map);
        for (first, last, address) in ranges {
            if let Some(link) = old.nodes.remove(&address) {
                map.nodes.insert(address.clone(), link);
            }
            let link = map.node(address, &self.context);
            map.assign(first, last, &link);
        }
        old.nodes.values().for_each(|link| link.retire());
    }
}

/// What `CLUSTER SLOTS` says: first and last slot, and the primary that holds them.
fn ranges(value: &Value, from: &Link) -> Option<Vec<(u16, u16, Address)>> {
    let Value::Array(entries) = value else { return None };
    let range = |entry: &Value| {
        let Value::Array(parts) = entry else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = &parts[..] else {
            return None;
        };
        let [host, Value::Int(port), ..] = &primary[..] else { return None };
        let host = match host {
            Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok()?,
            Value::SimpleString(text) => text.clone(),
            Value::Nil => String::new(),
            _ => return None,
        };
        // A node that does not know its own address says nothing: it is where we asked.
        let host = match from.place() {
            Place::At(address) if host.is_empty() || host == "?" => address.host.clone(),
            _ => host,
        };
        let address = Address { host, port: u16::try_from(*port).ok()? };
        Some((u16::try_from(*first).ok()?, u16::try_from(*last).ok()?, address))
    };
    entries.iter().map(range).collect()
}
