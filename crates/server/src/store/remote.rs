//! Stores outside of this process, found by the scheme of a URL.

use std::{pin::Pin, sync::Arc};

use sluicegate_core::StoreError;

use super::ServerStore;
use crate::StoreConfig;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::REDIS;

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
