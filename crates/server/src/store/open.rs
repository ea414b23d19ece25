//! Opening the store.

use std::{io, sync::Arc};

use sluicegate_core::Timestamp;
use sluicegate_memory::{ClockedStore, MemoryStore};

use crate::{
    Config, StoreConfig,
    clock::RequestClock,
    store::{
        ServerStore,
        remote::{self, REDIS, RemoteStore},
        snapshot_file,
    },
};

/// The stores that a URL can name. A new store is a file that opens it, and one line.
const STORES: [&RemoteStore; 1] = [&REDIS];

/// The table of a store in this process.
pub(crate) type LocalStore = ClockedStore<RequestClock>;

/// An open store.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) store: Arc<ServerStore>,
    /// The same store, if it is in this process: for snapshots.
    pub(crate) local: Option<Arc<LocalStore>>,
}

/// Opens the store that `config` names. A remote store that is unavailable is logged, and used once it is available.
///
/// # Errors
/// Settings that are invalid, alone or together, or a state file that cannot be read.
pub(crate) async fn open(config: &Config, now: Timestamp) -> io::Result<OpenStore> {
    match &config.store {
        None => Ok(OpenStore::from(local(config, now)?)),
        Some(store) => Ok(OpenStore { store: remote(config, store).await?, local: None }),
    }
}

fn local(config: &Config, now: Timestamp) -> io::Result<MemoryStore> {
    let store = snapshot_file::load(config, now)?;
    Ok(if config.test_clock { store.without_forgetting() } else { store })
}

async fn remote(config: &Config, settings: &StoreConfig) -> io::Result<Arc<ServerStore>> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if config.memory.state_file.is_some() {
        let both = "invalid --state-file together with --store: the store keeps the state; remove one of \
                    them";
        return Err(invalid(both.to_owned()));
    }
    let opened = remote::open(&STORES, settings, config.test_clock).await;
    opened.map_err(|error| invalid(error.to_string()))
}

/// A store in this process, in the time of its requests.
impl From<MemoryStore> for OpenStore {
    fn from(store: MemoryStore) -> Self {
        let local = Arc::new(ClockedStore::new(store, RequestClock));
        Self { store: local.clone(), local: Some(local) }
    }
}
