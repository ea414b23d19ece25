//! What all connections have in common.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use sluicegate_core::{Clock, Timestamp};
use sluicegate_memory::{MemoryStore, SystemClock};
use sluicegate_resp::Version;
use subtle::ConstantTimeEq;
use tokio::sync::{Notify, watch};

use crate::{Config, stats::Stats, wait::Lines};

/// What all connections have in common.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) store: MemoryStore,
    pub(crate) clock: SystemClock,
    pub(crate) lines: Lines,
    pub(crate) stats: Stats,
    pub(crate) clients: Clients,
    pub(crate) config: Config,
    /// Where the server really listens.
    pub(crate) address: SocketAddr,
    password: Option<[u8; 32]>,
}

impl Shared {
    pub(crate) fn new(mut config: Config, address: SocketAddr) -> Self {
        let mut store = MemoryStore::new();
        if config.test_clock {
            store = store.without_forgetting();
        }
        Self {
            store,
            clock: SystemClock::new(),
            lines: Lines::default(),
            stats: Stats::default(),
            clients: Clients::default(),
            password: config.requirepass.take().map(|password| Sha256::digest(password).into()),
            config,
            address,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether clients must give a password.
    pub(crate) const fn asks_for_password(&self) -> bool {
        self.password.is_some()
    }

    /// Whether `password` is the one. What it takes to tell does not depend on how much is right.
    pub(crate) fn knows(&self, password: &[u8]) -> bool {
        let given: [u8; 32] = Sha256::digest(password).into();
        self.password.is_none_or(|expected| expected.ct_eq(&given).into())
    }
}

/// Who is connected.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    last_id: AtomicU64,
    connected: Mutex<HashMap<u64, Arc<Client>>>,
}

/// A client, as others see it.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) address: SocketAddr,
    pub(crate) since: Timestamp,
    pub(crate) details: Mutex<Details>,
    /// Its last command, as a place in the table of commands.
    pub(crate) command: AtomicUsize,
    /// Told once, when somebody closes the client.
    pub(crate) killed: Notify,
}

/// What a client has said of itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Details {
    pub(crate) name: Vec<u8>,
    pub(crate) library: Vec<u8>,
    pub(crate) library_version: Vec<u8>,
    pub(crate) version: Version,
}

impl Clients {
    /// Takes in a client, unless there are `most` already.
    pub(crate) fn enter(
        &self,
        address: SocketAddr,
        since: Timestamp,
        most: usize,
    ) -> Option<Arc<Client>> {
        let mut connected = self.connected.lock();
        if connected.len() >= most {
            return None;
        }
        let id = self.last_id.fetch_add(1, Ordering::Relaxed) + 1;
        let client = Client {
            id,
            address,
            since,
            details: Mutex::default(),
            command: AtomicUsize::new(usize::MAX),
            killed: Notify::new(),
        };
        let client = Arc::new(client);
        connected.insert(id, Arc::clone(&client));
        Some(client)
    }

    pub(crate) fn leave(&self, id: u64) {
        self.connected.lock().remove(&id);
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.lock().len()
    }

    /// All of them, the oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Client>> {
        let mut clients: Vec<_> = self.connected.lock().values().cloned().collect();
        clients.sort_unstable_by_key(|client| client.id);
        clients
    }
}

/// Ready once the server is to stop.
pub(crate) async fn stopped(stopping: &mut watch::Receiver<bool>) {
    // The sender is gone when the server was dropped instead.
    let _ = stopping.wait_for(|&stop| stop).await;
}
