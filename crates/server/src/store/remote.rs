//! Stores outside of this process, found by the scheme of a URL: Redis and Valkey.

use std::{pin::Pin, sync::Arc};

use sluicegate_core::StoreError;
use sluicegate_redis::{RedisStore, SCHEMES, TestClock, URL_FORMS};
use tokio::runtime::Handle;

use super::ServerStore;
use crate::StoreConfig;
use crate::clock::RequestClock;

/// How a store outside of this process is opened.
pub(super) struct RemoteStore {
    /// What its URLs begin with, up to `://` or `+`.
    pub(super) schemes: &'static [&'static str],
    /// The usual forms of its URLs, for error texts.
    pub(super) forms: &'static str,
    /// Opens the store. With a test clock its time is that of the requests.
    pub(super) open: for<'a> fn(&'a StoreConfig, test_clock: bool) -> Opening<'a>,
}

/// A store that is being opened.
pub(super) type Opening<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<ServerStore>, StoreError>> + Send + 'a>>;

/// Opens the one of `stores` that the URL in `settings` names.
///
/// # Errors
/// An invalid URL, or other invalid settings.
pub(super) async fn open(
    stores: &[&RemoteStore],
    settings: &StoreConfig,
    test_clock: bool,
) -> Result<Arc<ServerStore>, StoreError> {
    // The URL is not quoted: it can have a password.
    let invalid = |what: String| StoreError::Settings(format!("invalid store URL: {what}"));
    let forms: Vec<_> = stores.iter().map(|store| store.forms).collect();
    let forms = forms.join(", or ");
    let (scheme, _) = settings
        .url
        .split_once("://")
        .ok_or_else(|| invalid(format!("missing `://`: expected {forms}")))?;
    let base = scheme.split('+').next().unwrap_or(scheme);
    let store = stores
        .iter()
        .find(|store| store.schemes.contains(&base))
        .ok_or_else(|| invalid(format!("unknown scheme `{scheme}`: expected {forms}")))?;
    (store.open)(settings, test_clock).await
}

pub(super) const REDIS: RemoteStore = RemoteStore {
    schemes: &SCHEMES,
    forms: URL_FORMS,
    open: |settings, test_clock| Box::pin(open_redis(settings, test_clock)),
};

/// A store that is unavailable is logged, and used once it is available.
async fn open_redis(
    settings: &StoreConfig,
    test_clock: bool,
) -> Result<Arc<ServerStore>, StoreError> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn error(url: &str) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let settings = StoreConfig::new(url);
        runtime.block_on(open(&[&REDIS], &settings, false)).unwrap_err().to_string()
    }

    #[test]
    fn open_unknown_scheme_names_the_known_ones_and_no_password() {
        let unknown = error("etcd://:secret@host");
        let expected =
            format!("invalid store URL: unknown scheme `etcd`: expected {}", REDIS.forms);
        assert_eq!(unknown, expected);
        let missing = error(":secret@host");
        assert!(missing.starts_with("invalid store URL: missing `://`: expected redis://HOST,"));
        assert!(!missing.contains("secret"), "{missing}");
    }

    #[test]
    fn open_known_scheme_leaves_the_rest_of_the_url_to_the_store() {
        let expected = format!("unknown scheme `redis+ring`: expected {}", REDIS.forms);
        assert_eq!(error("redis+ring://host"), format!("invalid store URL: {expected}"));
    }
}
