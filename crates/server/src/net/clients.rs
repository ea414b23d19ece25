//! The connected clients: their number, their workers, and the properties that they set.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sluicegate_core::Timestamp;
use sluicegate_resp::Version;
use tokio::sync::Notify;

use crate::net::protocol::Protocol;

/// The clients that are connected.
#[derive(Debug)]
pub(crate) struct Clients {
    /// Maximum number of clients at a time.
    pub(crate) max: usize,
    workers: usize,
    last_id: AtomicU64,
    connected: Mutex<ClientTable>,
}

/// Clients of HTTP that are accepted besides `--max-clients`, to check the health of the server.
pub(crate) const RESERVED_CLIENTS: usize = 16;

/// The connected clients, and the number on each worker.
#[derive(Debug, Default)]
struct ClientTable {
    clients: HashMap<u64, Arc<Client>>,
    /// The ones beyond `--max-clients`, oldest first.
    reserved: VecDeque<Arc<Client>>,
    /// The number of clients of each worker.
    of_worker: Vec<usize>,
    /// The worker of the newest client.
    last: usize,
}

/// The right of a client to be connected, until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPermit {
    clients: Arc<Clients>,
    pub(crate) client: Arc<Client>,
}

#[cfg(debug_assertions)]
impl ClientTable {
    /// Checks the numbers against the clients.
    fn check(&self) {
        let count = self.clients.len();
        assert_eq!(self.of_worker.iter().sum::<usize>(), count, "each client is of one worker");
        let is_known = |it: &Arc<Client>| it.reserved && self.clients.contains_key(&it.id);
        assert!(self.reserved.iter().all(is_known), "a client that has left is reserved");
        assert!(self.reserved.len() <= RESERVED_CLIENTS, "too many clients are reserved");
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let client = &*self.client;
        let mut connected = self.clients.connected.lock();
        if connected.clients.remove(&client.id).is_some() {
            connected.of_worker[client.worker] -= 1;
            if client.reserved {
                connected.reserved.retain(|it| it.id != client.id);
            }
        }
        #[cfg(debug_assertions)]
        connected.check();
    }
}

/// A client, visible to other connections.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    /// Whether it may only check the health of the server, because there are too many others.
    pub(crate) reserved: bool,
    /// Its address, as text.
    pub(crate) address: String,
    /// The worker that serves it.
    pub(crate) worker: usize,
    pub(crate) since: Timestamp,
    pub(crate) details: Mutex<Details>,
    /// Its last command, as an index of the table of commands.
    pub(crate) command: AtomicUsize,
    killed: AtomicBool,
    kill: Notify,
}

impl Client {
    /// Closes the client.
    pub(crate) fn kill(&self) {
        self.killed.store(true, Ordering::Release);
        self.kill.notify_one();
    }

    /// Whether the client is to be closed.
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Acquire)
    }

    /// Ready once the client is to be closed.
    pub(crate) async fn killed(&self) {
        self.kill.notified().await;
    }
}

/// Properties that a client sets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) version: Version,
}

impl Clients {
    /// `max`: most clients at a time. `workers`: the number of workers among which they are distributed.
    pub(crate) fn new(max: usize, workers: usize) -> Self {
        let connected = ClientTable { of_worker: vec![0; workers], ..ClientTable::default() };
        Self { max, workers, last_id: AtomicU64::new(0), connected: Mutex::new(connected) }
    }

    /// Accepts a client for the worker that has the fewest, unless there are too many already. A few
    /// clients of HTTP are accepted even then, to check the health: the newest, so that none can keep
    /// others out.
    pub(crate) fn try_admit(
        self: &Arc<Self>,
        protocol: &'static Protocol,
        address: String,
        now: Timestamp,
    ) -> Option<ConnectionPermit> {
        let mut connected = self.connected.lock();
        let others = connected.clients.len() - connected.reserved.len();
        let reserved = others >= self.max;
        if reserved && !protocol.reserves_health {
            return None;
        }
        if reserved
            && connected.reserved.len() >= RESERVED_CLIENTS
            && let Some(oldest) = connected.reserved.pop_front()
        {
            oldest.kill();
        }
        // Among workers with equally few, the next one in turn.
        let turns = (1..=self.workers).map(|turn| (connected.last + turn) % self.workers);
        let worker = turns.min_by_key(|&worker| connected.of_worker[worker]).unwrap_or(0);
        connected.of_worker[worker] += 1;
        connected.last = worker;
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Arc::new(Client {
            id,
            reserved,
            address,
            worker,
            since: now,
            details: Mutex::default(),
            command: AtomicUsize::new(usize::MAX),
            killed: AtomicBool::new(false),
            kill: Notify::new(),
        });
        connected.clients.insert(id, Arc::clone(&client));
        if reserved {
            connected.reserved.push_back(Arc::clone(&client));
        }
        #[cfg(debug_assertions)]
        connected.check();
        Some(ConnectionPermit { clients: Arc::clone(self), client })
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.lock().clients.len()
    }

    /// The number of clients of the worker at `index`.
    pub(crate) fn of_worker(&self, index: usize) -> usize {
        self.connected.lock().of_worker.get(index).copied().unwrap_or(0)
    }

    /// All clients, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        let mut clients: Vec<_> = self.connected.lock().clients.values().cloned().collect();
        clients.sort_unstable_by_key(|client| client.id);
        clients
    }
}
