//! The store on Redis or Valkey.

use std::{borrow::Cow, collections::HashMap, fmt, sync::Arc};

use parking_lot::RwLock;
use sluicegate_core::{
    KeyLengthError, MAX_KEY, Operation, PolicySettings, PreparedPolicy, StoreError, StoreId,
    Timestamp,
};

use crate::{
    Options, PlannedPolicy,
    local::{denial_cache::DenialCache, fallback::LocalFallback, lease::Leases},
    net::{context::Context, node_connection::Deadline, topology::Topology, url::Url},
    script::TEST_PREFIX,
};

/// Maximum number of planned policies that the store itself keeps.
const MAX_PLANNED: usize = 1024;

/// Limits in Redis or Valkey: one decision is one script call on one key, by the server's own clock.
///
/// Cheap to clone; all clones are the same store. Needs a tokio runtime. Each operation on units is sent once, within its
/// deadline; holds, settles and renews, which count once however often they arrive, up to three times. After the deadline, or if the
/// caller drops the future, the server may still apply it: less is admitted then, never more.
///
/// ```no_run
/// use sluicegate_core::{PreparedPolicy, Store};
/// use sluicegate_redis::RedisStore;
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let policy: PreparedPolicy = "gcra:30/60s:burst=16".parse()?;
/// let answer = store.take(b"user7", &policy, 1).await?;
/// println!("{} by the {}", answer.allowed(), answer.source.as_str());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisStore(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    pub(crate) topology: Topology,
    pub(crate) denials: DenialCache,
    pub(crate) leases: Leases,
    pub(crate) local: LocalFallback,
    id: StoreId,
    /// Any policy, for resets: all policies reset alike.
    pub(crate) any_policy: PreparedPolicy,
    /// Planned policies by text and settings.
    planned: RwLock<HashMap<(String, PolicySettings), PlannedPolicy>>,
}

impl RedisStore {
    /// Connects to the store at `url`, and logs its problems.
    ///
    /// `redis://[[user]:password@]host[:port][/database]`; with `rediss` over TLS; with
    /// `redis+cluster` any nodes of a cluster, joined by commas; with `redis+sentinel` any sentinels,
    /// and behind them `/NAME` of the primary.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for an invalid URL, [`StoreError::Unavailable`] if no server replies.
    ///
    /// # Panics
    /// It is awaited outside of a tokio runtime with timers and I/O.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, Options::default()).await
    }

    /// [`RedisStore::connect`] with other options.
    ///
    /// ```no_run
    /// use sluicegate_redis::{Options, RedisStore};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let mut options = Options::default();
    /// options.tls.ca = Some("ca.pem".into());
    /// let store = RedisStore::connect_with("rediss://limiter:password@redis.example/", options).await?;
    /// assert_eq!(store.unavailable(), None);
    /// # Ok::<(), sluicegate_core::StoreError>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`RedisStore::connect`], and [`StoreError::Settings`] for invalid options.
    ///
    /// # Panics
    /// As [`RedisStore::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, StoreError> {
        let store = Self::new(url, options)?;
        let patience = Deadline::after(store.0.context.options.connect_timeout.saturating_mul(2));
        for node in store.0.topology.all(patience).await? {
            let pong = node.command(&redis::cmd("PING"), patience).await?;
            if let redis::Value::ServerError(error) = pong {
                let words = format!("{} {}", error.code(), error.details().unwrap_or_default());
                return Err(StoreError::Unavailable(words));
            }
        }
        for problem in store.inspect().await?.problems() {
            tracing::warn!("{problem}");
        }
        Ok(store)
    }

    /// The store at `url`, which connects at its first operation.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for an invalid URL or invalid options.
    pub fn new(url: &str, options: Options) -> Result<Self, StoreError> {
        if options.deadline.is_zero() {
            return Err(StoreError::Settings(
                "invalid deadline `0s`: expected at least 1ms, such as `15ms`".to_owned(),
            ));
        }
        if options.test_clock.is_some() && !options.prefix.is_empty() {
            return Err(StoreError::Settings(
                "invalid key prefix together with a test clock: its keys have the prefix `sg:test:`"
                    .to_owned(),
            ));
        }
        if options.prefix.len() >= MAX_KEY {
            return Err(StoreError::Settings(format!(
                "invalid key prefix of {} bytes: expected up to {} bytes",
                options.prefix.len(),
                MAX_KEY - 1
            )));
        }
        let url = Url::parse(url)?;
        let has_certificates = options.tls.ca.is_some() || options.tls.client.is_some();
        if has_certificates && !url.tls {
            return Err(StoreError::Settings(
                "invalid store URL for certificates: expected TLS, such as `rediss://`".to_owned(),
            ));
        }
        let context = Context::new(url, options)?;
        let options = &context.options;
        Ok(Self(Arc::new(Inner {
            topology: Topology::new(&context),
            denials: DenialCache::new(
                options.max_known_keys,
                options.max_denial_cache,
                [context.hasher(), context.hasher()],
            ),
            leases: Leases::new(options.max_leases, options.lease_lifetime, context.hasher()),
            local: LocalFallback::new(options.max_local_memory),
            id: StoreId::new(),
            any_policy: "gcra:1/1s".parse().expect("it is a policy"),
            planned: RwLock::default(),
            context,
        })))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    /// The options of the store.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.0.context.options
    }
}

impl Inner {
    /// The key of an operation on units, as it is in the store.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Result<Cow<'a, [u8]>, StoreError> {
        if key.is_empty() {
            return Err(StoreError::Key(KeyLengthError(0).to_string()));
        }
        self.key_or_empty(key)
    }

    /// The same for a key that is only read or reset.
    pub(crate) fn key_or_empty<'a>(&self, key: &'a [u8]) -> Result<Cow<'a, [u8]>, StoreError> {
        let Options { prefix, test_clock, .. } = &self.context.options;
        if let Err(error) = KeyLengthError::check_or_empty(prefix.len() + key.len()) {
            let with = if prefix.is_empty() { "" } else { " with the prefix of the store" };
            return Err(StoreError::Key(format!("{error}{with}")));
        }
        let prefix = if test_clock.is_some() { TEST_PREFIX } else { prefix };
        Ok(if prefix.is_empty() { key.into() } else { [prefix, key].concat().into() })
    }

    /// The key of `operation`, as it is in the store.
    pub(crate) fn key_of<'a>(
        &self,
        key: &'a [u8],
        operation: Operation,
    ) -> Result<Cow<'a, [u8]>, StoreError> {
        if operation == Operation::Reset { self.key_or_empty(key) } else { self.key(key) }
    }

    /// The time to send with operations, for a store with a test clock.
    pub(crate) fn given_time(&self) -> Option<Timestamp> {
        self.context.options.test_clock.as_ref().map(|clock| clock.now())
    }

    /// The store's data for `policy`. Policies with the same text and settings share it, and thereby their cached
    /// denials.
    pub(crate) fn planned<'a>(&self, policy: &'a PreparedPolicy) -> Cow<'a, PlannedPolicy> {
        let find = || self.find_planned(policy);
        policy.attached(&self.id, find).map_or_else(|| Cow::Owned(find()), Cow::Borrowed)
    }

    fn find_planned(&self, policy: &PreparedPolicy) -> PlannedPolicy {
        let by = (policy.policy().to_string(), policy.settings());
        if let Some(planned) = self.planned.read().get(&by) {
            return planned.clone();
        }
        let mut planned = self.planned.write();
        if planned.len() >= MAX_PLANNED {
            // Bounded, because clients may send a new policy with each request.
            planned.clear();
        }
        planned.entry(by).or_insert_with(|| PlannedPolicy::new(policy)).clone()
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("RedisStore")
            .field("url", &self.0.context.url)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The certificates say that TLS is wanted: a password must not be sent without it.
    #[test]
    fn new_certificates_without_tls_is_an_error() {
        let mut options = Options::default();
        options.tls.ca = Some("ca.pem".into());
        let mut client = Options::default();
        client.tls.client = Some(("cert.pem".into(), "key.pem".into()));
        for options in [options, client] {
            let error = RedisStore::new("redis://:password@127.0.0.1/", options).unwrap_err();
            let expected = "invalid store URL for certificates: expected TLS, such as `rediss://`";
            assert_eq!(error, StoreError::Settings(expected.to_owned()));
        }
    }
}
