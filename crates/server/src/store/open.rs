//! Opening the store.

use std::{io, sync::Arc};

use sluicegate_core::Timestamp;
use sluicegate_memory::{ClockedStore, MemoryStore};
use sluicegate_redis::{RedisStore, TestClock};
use tokio::runtime::Handle;

use crate::{
    Config, StoreConfig,
    store::{ServerStore, request_clock::RequestClock, snapshot_file},
};

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
        Some(store) => Ok(OpenStore { store: Arc::new(redis(config, store).await?), local: None }),
    }
}

fn local(config: &Config, now: Timestamp) -> io::Result<MemoryStore> {
    let store = snapshot_file::load(config, now)?;
    Ok(if config.test_clock { store.without_forgetting() } else { store })
}

async fn redis(config: &Config, settings: &StoreConfig) -> io::Result<RedisStore> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    if config.memory.state_file.is_some() {
        let both = "invalid --state-file together with --store: the store keeps the state; remove one of \
                    them";
        return Err(invalid(both.to_owned()));
    }
    let mut options = settings.options.clone();
    options.runtime = Some(Handle::current());
    options.on_error = settings.on_error;
    if config.test_clock {
        if !options.prefix.is_empty() {
            let both = "invalid --store-prefix together with --test-clock: keys of a test clock have the \
                        prefix `sg:test:`; remove one of them";
            return Err(invalid(both.to_owned()));
        }
        options.test_clock = Some(TestClock::new(Arc::new(RequestClock)));
    }
    let store =
        RedisStore::new(&settings.url, options).map_err(|error| invalid(error.to_string()))?;
    match store.inspect().await {
        Ok(status) => status.problems().for_each(|problem| tracing::warn!("store: {problem}")),
        // The store has logged that it is unavailable.
        Err(_) if store.unavailable().is_some() => {}
        Err(error) => tracing::warn!(%error, "cannot check the store"),
    }
    Ok(store)
}

/// A store in this process, in the time of its requests.
impl From<MemoryStore> for OpenStore {
    fn from(store: MemoryStore) -> Self {
        let local = Arc::new(ClockedStore::new(store, RequestClock));
        Self { store: local.clone(), local: Some(local) }
    }
}
