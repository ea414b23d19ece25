//! Opening a store in Redis or Valkey.

use std::sync::Arc;

use sluicegate_core::StoreError;
use sluicegate_redis::{RedisStore, SCHEMES, TestClock, URL_FORMS};
use tokio::runtime::Handle;

use super::{ServerStore, remote::RemoteStore, request_clock::RequestClock};
use crate::StoreConfig;

pub(super) const REDIS: RemoteStore = RemoteStore {
    schemes: &SCHEMES,
    forms: URL_FORMS,
    open: |settings, test_clock| Box::pin(open(settings, test_clock)),
};

/// A store that is unavailable is logged, and used once it is available.
async fn open(settings: &StoreConfig, test_clock: bool) -> Result<Arc<ServerStore>, StoreError> {
    let mut options = settings.redis.clone();
    options.runtime = Some(Handle::current());
    options.on_error = settings.on_error;
    if test_clock {
        if !options.prefix.is_empty() {
            let both = "invalid --store-prefix together with --test-clock: keys of a test clock have the \
                        prefix `sg:test:`; remove one of them";
            return Err(StoreError::Settings(both.to_owned()));
        }
        options.test_clock = Some(TestClock::new(Arc::new(RequestClock)));
    }
    let store = RedisStore::new(&settings.url, options)?;
    match store.inspect().await {
        Ok(status) => status.problems().for_each(|problem| tracing::warn!("store: {problem}")),
        // The store has logged that it is unavailable.
        Err(_) if store.unavailable().is_some() => {}
        Err(error) => tracing::warn!(%error, "cannot check the store"),
    }
    Ok(Arc::new(store))
}
