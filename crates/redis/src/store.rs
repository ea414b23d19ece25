//! The store on Redis or Valkey.

use std::{borrow::Cow, collections::HashMap, fmt, sync::Arc};

use parking_lot::RwLock;
use sluicegate_core::{Decision, Operation, Policy, Timestamp};

use crate::{
    Answer, Counters, OnError, Options, PreparedPolicy, Source, StoreError, call,
    local::{
        denial_cache::{DenialCache, QueryToken},
        fallback::LocalFallback,
        lease::Leases,
    },
    net::{context::Context, node_connection::Deadline, topology::Topology, url::Url},
    script::TEST_PREFIX,
};

/// Maximum number of prepared policies for callers that only have a policy.
const MAX_PREPARED: usize = 1024;

/// Limits in Redis or Valkey: one decision is one script call on one key, by the server's own clock.
///
/// Cheap to clone; all clones are the same store. Needs a tokio runtime. Each operation is sent once, within its
/// deadline. After the deadline, or if the caller drops the future, the server may still apply it: less is
/// admitted then, never more.
///
/// ```no_run
/// use sluicegate_redis::{RedisStore, PreparedPolicy};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let store = RedisStore::connect("redis://127.0.0.1/").await?;
/// let rule: PreparedPolicy = "gcra:30/60s:burst=16".parse()?;
/// let answer = store.take(b"user7", &rule, 1).await?;
/// println!("{} by the {}", answer.allowed(), answer.source.word());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisStore(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) context: Arc<Context>,
    pub(crate) topology: Topology,
    pub(crate) denials: DenialCache,
    pub(crate) leases: Leases,
    pub(crate) local: LocalFallback,
    /// Prepared policies, for callers that only have a policy.
    prepared: RwLock<HashMap<(String, OnError), PreparedPolicy>>,
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
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, Options::default()).await
    }

    /// [`RedisStore::connect`] with other options.
    ///
    /// # Errors
    /// As [`RedisStore::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, StoreError> {
        let store = Self::new(url, options)?;
        let patience = Deadline::after(store.0.context.options.connect_timeout * 2);
        for node in store.0.topology.all(patience).await? {
            let pong = node.command(&redis::cmd("PING"), patience).await?;
            if let redis::Value::ServerError(error) = pong {
                let words = format!("{} {}", error.code(), error.details().unwrap_or_default());
                return Err(StoreError::Unavailable(words));
            }
        }
        for problem in store.status().await?.problems() {
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
        let context = Context::new(Url::parse(url)?, options)?;
        let options = &context.options;
        Ok(Self(Arc::new(Inner {
            topology: Topology::new(&context),
            denials: DenialCache::new(options.max_known_keys, options.max_denial_cache),
            leases: Leases::new(options.max_leases, options.lease_lifetime),
            local: LocalFallback::new(options.max_local_memory),
            prepared: RwLock::default(),
            context,
        })))
    }

    /// Prepares `policy`. All callers get the same prepared policy, and thereby share its cached denials.
    #[must_use]
    pub fn prepare(&self, policy: &Policy, on_error: OnError) -> PreparedPolicy {
        self.0.prepare(policy, on_error)
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }

    pub(crate) const fn shared(&self) -> &Arc<Inner> {
        &self.0
    }

    pub(crate) const fn from_shared(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    /// Takes `cost` units, all or none: from a lease, or from the store, unless its last denial still applies.
    ///
    /// # Errors
    /// As [`RedisStore::ask`].
    pub async fn take(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.ask(key, policy, Operation::Take(cost)).await
    }

    /// Applies `operation` to `key`. While the store is unavailable, the [`OnError`](crate::OnError) of the policy
    /// decides takes, peeks and reserves.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the key holds something else, [`StoreError::Reserve`] for a reserve
    /// that the policy does not support; [`StoreError::Unavailable`] and [`StoreError::Timeout`] for a charge, a
    /// refund and a reset, which have no fallback. A refund with an unknown outcome is not sent again, and the
    /// caller should not send it again either.
    pub async fn ask(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Answer, StoreError> {
        let inner = &*self.0;
        let key = inner.key(key);
        let deadline = Deadline::after(inner.context.options.deadline);
        match operation {
            Operation::Take(cost @ 1..) => {
                let now = inner.context.now();
                if let Some(answer) = inner.denials.denied(&key, policy, cost, now) {
                    inner.context.counts.cache.one();
                    return Ok(answer);
                }
                if policy.chunk() > 1 && cost <= policy.chunk() {
                    return self.take_leased(&key, policy, cost, deadline).await;
                }
            }
            _ => inner.begins(&key, operation),
        }
        let answer = inner.request(&key, policy, operation, deadline).await;
        inner.finish(&key, operation, answer.is_ok());
        answer
    }

    /// Applies `operation` at the time `now`, for simulations: the key gets the prefix
    /// [`TEST_PREFIX`](crate::script::TEST_PREFIX), and lives for at least an hour. Uses no cache, lease or
    /// fallback.
    ///
    /// # Errors
    /// As [`Store::apply`](sluicegate_core::Store::apply).
    pub async fn ask_at(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        now: Timestamp,
    ) -> Result<Decision, StoreError> {
        let inner = &*self.0;
        let key = [TEST_PREFIX, key].concat();
        let deadline = Deadline::after(inner.context.options.deadline);
        let request = (operation, Some(now));
        call::call(&inner.context, &inner.topology, &key, policy.plan(), request, deadline).await
    }

    /// Counters since the store was created.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.context.counts.read()
    }

    /// The options of the store.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.0.context.options
    }
}

impl Inner {
    /// The key in the store.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        let prefix = &self.context.options.prefix;
        if prefix.is_empty() { key.into() } else { [prefix, key].concat().into() }
    }

    /// Drops cached data of a key that `operation` makes obsolete. [`done`](Self::done) drops data that other
    /// requests cache until then.
    pub(crate) fn begins(&self, key: &[u8], operation: Operation) {
        if operation == Operation::Reset {
            self.context.counts.lease_forfeited.add(self.leases.forget(key).into());
        }
        self.done(key, operation);
    }

    /// Updates the caches after `operation` has succeeded or failed.
    pub(crate) fn finish(&self, key: &[u8], operation: Operation, is_done: bool) {
        self.done(key, operation);
        if operation == Operation::Reset && is_done {
            self.denials.reset(key);
            self.local.reset(key, self.context.now());
        }
    }

    pub(crate) fn done(&self, key: &[u8], operation: Operation) {
        if let Operation::Refund(_) | Operation::Reset = operation {
            self.denials.forget(key);
        }
    }

    /// Applies `operation` in the store, or by the fallback while the store is unavailable.
    pub(crate) async fn request(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let token = self.denials.begin_query(key, self.context.now());
        match self.decide(key, policy, operation, deadline).await {
            Ok(decision) => {
                self.context.counts.store.one();
                self.record(key, policy, operation, token, &decision);
                Ok(Answer { decision, source: Source::Store })
            }
            Err(error) if error.is_unavailable() => self.fall_back(key, policy, operation, error),
            Err(error) => Err(error),
        }
    }

    /// Caches the denial or usage in a reply.
    pub(crate) fn record(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        token: QueryToken,
        decision: &Decision,
    ) {
        let cost = match operation {
            Operation::Take(cost @ 1..) => cost,
            // Only the fallback uses the replies to these.
            Operation::Take(0)
            | Operation::Peek(_)
            | Operation::Charge(_)
            | Operation::Reserve { .. }
                if policy.is_remembered() =>
            {
                0
            }
            _ => return,
        };
        self.denials.record(key, policy, cost, token, self.context.now(), decision);
    }

    /// Applies `operation` in the store, without cache or fallback.
    pub(crate) async fn decide(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        #[cfg(test)]
        if let Some(server) = self.context.virtual_server.get() {
            return deadline.within(server.decide(operation)).await?;
        }
        let request = (operation, None);
        call::call(&self.context, &self.topology, key, policy.plan(), request, deadline).await
    }

    pub(crate) fn fall_back(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        let counts = &self.context.counts;
        match &error {
            StoreError::Timeout(_) => counts.timeouts.one(),
            _ => counts.unavailable.one(),
        }
        tracing::debug!(%error, "decided without the store");
        let now = self.context.now();
        self.local.decide((key, policy), operation, (&self.denials, counts), now, error)
    }

    /// Prepares a policy, once for all callers.
    fn prepare(&self, policy: &Policy, on_error: OnError) -> PreparedPolicy {
        let denials = (policy.to_string(), on_error);
        if let Some(policy) = self.prepared.read().get(&denials) {
            return policy.clone();
        }
        let mut prepared = self.prepared.write();
        if prepared.len() >= MAX_PREPARED {
            // Bounded, because clients may send a new policy with each request.
            prepared.clear();
        }
        prepared
            .entry(denials)
            .or_insert_with(|| PreparedPolicy::new(policy).on_error(on_error))
            .clone()
    }
}

/// Applies every operation in the store: no cache, no lease, no fallback.
impl sluicegate_core::Store for RedisStore {
    type Error = StoreError;

    async fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, StoreError> {
        let inner = &*self.0;
        let policy = inner.prepare(policy, OnError::default());
        let deadline = Deadline::after(inner.context.options.deadline);
        let decision = inner.decide(&inner.key(key), &policy, operation, deadline).await?;
        inner.context.counts.store.one();
        Ok(decision)
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
