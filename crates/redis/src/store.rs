//! The store: who answers a question.

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

/// Most rules that are kept for those who come with a policy alone.
const MAX_PREPARED: usize = 1024;

/// Limits in Redis or Valkey: one decision is one script call on one key, by the server's own clock.
///
/// Cheap to clone; all clones are the same store. Needs a tokio runtime. A question is asked once, and
/// within its deadline; a caller who is gone by then is not waited for, but what was asked may still be
/// done (so that less is admitted, never more).
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
    /// Rules by what they say, for those who come with a policy alone.
    prepared: RwLock<HashMap<(String, OnError), PreparedPolicy>>,
}

impl RedisStore {
    /// The store at `url`, once it answers. What is wrong with it is logged.
    ///
    /// `redis://[[user]:password@]host[:port][/database]`; with `rediss` over TLS; with
    /// `redis+cluster` any nodes of a cluster, joined by commas; with `redis+sentinel` any sentinels,
    /// and behind them `/NAME` of the primary.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for what is no such URL, [`StoreError::Unavailable`] if nothing answers
    /// there.
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

    /// The store at `url`, which is connected to when it is first asked.
    ///
    /// # Errors
    /// [`StoreError::Settings`] for what is no such URL, and for options that cannot be.
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

    /// The rule of `policy`: the same one for all who ask for it, so that what one of them was answered
    /// the others need not ask. Who has rules of their own need not come here.
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

    /// Takes `cost` units, all or none: from what is leased, or by asking the store, unless its last
    /// denial still stands.
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

    /// Applies `operation` to `key`. While the store is away, the rule's [`OnError`](crate::OnError) says
    /// what a take, a peek and a reserve are answered.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] where the key holds something else, [`StoreError::Reserve`] for a reserve
    /// that the policy cannot do; [`StoreError::Unavailable`] and [`StoreError::Timeout`] for a charge, a
    /// refund and a reset, which are not made up. A refund whose outcome is not known is not sent again:
    /// neither should you.
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

    /// Asks as at `now`, for simulations: the key is put behind
    /// [`TEST_PREFIX`](crate::script::TEST_PREFIX), and lives for an hour at least. Asks the store itself:
    /// no cache, no lease, no fallback.
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

    /// What was counted since the store was made.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.0.context.counts.read()
    }

    /// The options that it was made with.
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

    /// Forgets what `operation` will make untrue of a key. To be told again when it is
    /// [done](Self::done), for what was learned meanwhile.
    pub(crate) fn begins(&self, key: &[u8], operation: Operation) {
        if operation == Operation::Reset {
            self.context.counts.lease_forfeited.add(self.leases.forget(key).into());
        }
        self.done(key, operation);
    }

    /// `operation` was answered, or failed.
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

    /// Asks the store; while it is away, answers as the rule says.
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

    /// Keeps what the answer says of the key, for the requests that follow.
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
            // What these say is of use to the fallback alone.
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

    /// Asks the store, and nobody else.
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

    /// The rule of a policy that was given without one.
    fn prepare(&self, policy: &Policy, on_error: OnError) -> PreparedPolicy {
        let denials = (policy.to_string(), on_error);
        if let Some(policy) = self.prepared.read().get(&denials) {
            return policy.clone();
        }
        let mut prepared = self.prepared.write();
        if prepared.len() >= MAX_PREPARED {
            // Policies that are made up for each request are not to grow it.
            prepared.clear();
        }
        prepared
            .entry(denials)
            .or_insert_with(|| PreparedPolicy::new(policy).on_error(on_error))
            .clone()
    }
}

/// Asks the store itself, each time: no cache, no lease, no fallback.
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
