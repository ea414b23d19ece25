//! The store on Redis or Valkey.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};
use parking_lot::RwLock;
use redis::{Cmd, Pipeline, Value, from_redis_value_ref};
use sluicegate_commands::CommandError;
use sluicegate_core::{
    Answer, Applied, Decision, Entry, KeyLengthError, KeyedOperation, MAX_KEY, Operation, Outcome,
    PolicySettings, PreparedPolicy, ReadEntry, Request, RequestError, Source, StateError,
    StateFault, Store, StoreError, StoreId, StoreStatus, Timestamp,
};

use crate::{
    Options, PlannedOperation, PlannedPolicy,
    call::{MAX_REDIRECTS, ModuleUse, RequestedCalendars, StoreCommand},
    counters::CounterValues,
    local::{
        denial_cache::{DenialCache, QueryToken},
        fallback::LocalFallback,
        lease::{LeaseOutcome, Leases, RefillToken, UnspentLease},
        sync::Ordering,
    },
    native,
    net::{
        context::Context,
        node_connection::{Deadline, NodeConnection},
        topology::Topology,
        url::Url,
    },
    planned_policy::PlannedKey,
    reply::{
        ReplyKind, one_decision, parse_general, parse_script_reply, redirect_target,
        too_many_redirects,
    },
    script::{Script, TEST_PREFIX, boundaries},
    script_command::{begin, command},
    slot::slot,
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
    fn key_of<'a>(&self, key: &'a [u8], operation: Operation) -> Result<Cow<'a, [u8]>, StoreError> {
        if operation == Operation::Reset { self.key_or_empty(key) } else { self.key(key) }
    }

    /// The time to send with operations, for a store with a test clock.
    fn given_time(&self) -> Option<Timestamp> {
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

// Operations on one key: from the caches, from the store, or by the fallback.

/// Maximum number of times that an operation on a hold is sent.
const MAX_ATTEMPTS: usize = 3;

/// While the store is unavailable, the [`OnError`](sluicegate_core::OnError) of the policy decides takes, peeks,
/// reserves and holds. A charge, a refund, a reset, a settle and a renew have no fallback: they return [`StoreError::Unavailable`] or
/// [`StoreError::Timeout`]. A refund with an unknown outcome is not sent again, and the caller should not send it again
/// either.
impl Store for RedisStore {
    type Error = StoreError;

    /// In a cluster, keys with one hash tag (`{acme}:user7`, `{acme}`) are decided atomically; others in the order
    /// given, and charged units are refunded on a denial, once. Of those, a policy with `count=all` keeps the charge,
    /// as the record of the denial. Several keys use no leases. With a test clock, one server must have all of them.
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let inner = self.inner();
        let given = inner.given_time();
        let Some(KeyedOperation { key, policy, operation }) = request.single() else {
            return Applied::later(inner.apply_all(request, given));
        };
        let (key, policy) = match inner.key_of(key, operation) {
            Ok(key) => (key, inner.planned(policy)),
            Err(error) => return Applied::Now(Err(error)),
        };
        let planned = PlannedOperation { key: &key, policy: &policy, operation };
        if given.is_none()
            && let Some(answer) = inner.cached_denial(planned, inner.context.now())
        {
            return Applied::Now(Ok(answer));
        }
        Applied::later(async move {
            let planned = PlannedOperation { key: &key, policy: &policy, operation };
            let deadline = Deadline::after(inner.context.options.deadline);
            if given.is_some() {
                return Ok(inner.call(planned, given, deadline).await?.into());
            }
            if operation.id().is_some() {
                return inner.apply_hold(planned, deadline).await;
            }
            if let Operation::Take(cost @ 1..) = operation
                && policy.settings.lease > 1
                && cost <= policy.settings.lease
            {
                return self.take_leased(planned, cost, deadline).await;
            }
            let _forget = inner.begin(&key, operation);
            let answer = inner.request(planned, deadline).await;
            inner.finish(&key, operation, answer.is_ok());
            answer
        })
    }

    /// Sends one pipeline per cluster slot (one without a cluster), all at the same time. Each operation is atomic, the
    /// batch is not. Operations on one key are applied in order, unless the server has flushed its scripts. Uses no
    /// leases.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        let inner = self.inner();
        let Some(now) = inner.given_time() else {
            return Applied::later(inner.send_many(operations));
        };
        Applied::later(async move {
            let mut answers = Vec::with_capacity(operations.len());
            for &KeyedOperation { key, policy, operation } in operations {
                let decide = async {
                    let (key, policy) = (inner.key_of(key, operation)?, inner.planned(policy));
                    let planned = PlannedOperation { key: &key, policy: &policy, operation };
                    let deadline = Deadline::after(inner.context.options.deadline);
                    inner.call(planned, Some(now), deadline).await
                };
                answers.push(decide.await.map(Answer::from));
            }
            answers
        })
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        let given = self.inner().given_time();
        Applied::later(async move {
            let (entry, by_server) = self.entry(key).await?;
            let now = given.unwrap_or(by_server);
            read(entry.as_ref().filter(|entry| !entry.lifetime(now).is_zero()), now);
            Ok(())
        })
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        let reset = Request::one(key, &self.inner().any_policy, Operation::Reset);
        Applied::later(async move {
            let mut is_live = false;
            match self.read(key, &mut |entry, _| is_live = entry.is_some()).await {
                // A reset also removes state that cannot be read.
                Err(StoreError::Corrupt(StateFault::Version | StateFault::Damaged, _)) => {
                    is_live = true;
                }
                read => read?,
            }
            let _ = self.apply(reset).await?;
            Ok(is_live)
        })
    }

    fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        self.inner().key(key).map(|_| ())
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::Remote(Box::new(self.remote_status()))
    }

    /// Refunds the unspent units of all leases. A store that is dropped without this call forfeits them.
    fn close(&self) -> Applied<'_, ()> {
        Applied::later(self.return_leases())
    }
}

impl Inner {
    /// The cached denial of a take that still applies.
    pub(crate) fn cached_denial(
        &self,
        PlannedOperation { key, policy, operation }: PlannedOperation<'_>,
        now: Timestamp,
    ) -> Option<Answer> {
        let Operation::Take(cost @ 1..) = operation else { return None };
        let answer = self.denials.denied(key, policy, cost, now)?;
        self.context.counts.cache.one();
        Some(answer)
    }

    /// Drops cached data of a key that `operation` makes obsolete. The guard drops data that other requests cache until the
    /// operation ends.
    pub(crate) fn begin<'a>(&'a self, key: &[u8], operation: Operation) -> Option<ForgetGuard<'a>> {
        match operation {
            Operation::Refund(_) | Operation::Reset => self.forget(key, operation),
            Operation::Hold { .. } | Operation::Settle { .. } | Operation::Renew { .. } => {}
            _ => return None,
        }
        let operation = operation.with_id(&[]);
        Some(ForgetGuard { inner: self, key: key.into(), operation })
    }

    /// Drops the denials of a key, and the debt of its lease that `operation` removes.
    fn forget(&self, key: &[u8], operation: Operation) {
        match operation {
            Operation::Refund(units) => self.leases.refunded(key, units),
            Operation::Reset => {
                self.context.counts.lease_forfeited.add(self.leases.forget(key).into());
            }
            _ => {}
        }
        self.denials.forget(key);
    }

    /// Updates the caches after `operation` has succeeded or failed.
    pub(crate) fn finish(&self, key: &[u8], operation: Operation, is_done: bool) {
        if operation == Operation::Reset && is_done {
            self.denials.reset(key);
            self.local.reset(key, self.context.now());
        }
    }

    /// Applies an operation on a hold. It may be repeated: a hold whose id is open changes nothing, and a settle of an id
    /// that is not open charges nothing. Therefore one whose reply was lost is sent again, until its deadline.
    async fn apply_hold(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let PlannedOperation { key, policy, operation } = planned;
        policy.policy.check_operation(operation)?;
        let opens = matches!(operation, Operation::Hold { .. });
        self.local.follow_hold(planned, self.context.now());
        let mut attempt = 1;
        loop {
            let decided = {
                // A settle may have freed units, even if its reply was lost.
                let _forget = self.begin(key, operation);
                self.call(planned, None, deadline).await
            };
            match decided {
                Ok(decision) => {
                    self.context.counts.store.one();
                    self.record_usage(key, policy, &decision);
                    return Ok(Answer::from(decision));
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return if opens { self.fall_back(planned, error) } else { Err(error) };
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Records the usage of a key in a reply about a hold, for the local fallback.
    fn record_usage(&self, key: &[u8], policy: &PlannedPolicy, decision: &Decision) {
        if policy.local.is_some() {
            let now = self.context.now();
            let token = self.denials.begin_query(key, now);
            self.denials.record(key, policy, 0, token, now, decision);
        }
    }

    /// Applies an operation in the store, or by the fallback while the store is unavailable.
    pub(crate) async fn request(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let token = self.denials.begin_query(planned.key, self.context.now());
        match self.decide(planned, deadline).await {
            Ok(decision) => Ok(self.decided(planned, token, decision)),
            Err(error) if error.is_unavailable() => self.fall_back(planned, error),
            Err(error) => Err(error),
        }
    }

    /// The answer with a decision of the store, which is counted and cached.
    pub(crate) fn decided(
        &self,
        planned: PlannedOperation<'_>,
        token: QueryToken,
        decision: Decision,
    ) -> Answer {
        self.context.counts.store.one();
        self.record(planned, token, &decision);
        decision.into()
    }

    /// Caches the denial or usage in a reply.
    pub(crate) fn record(
        &self,
        PlannedOperation { key, policy, operation }: PlannedOperation<'_>,
        token: QueryToken,
        decision: &Decision,
    ) {
        let cost = match operation {
            Operation::Take(cost @ 1..) => cost,
            // They deny nothing to be cached, but may end denials under another policy.
            Operation::Take(0) | Operation::Charge(_) | Operation::Reserve { .. } => 0,
            // Only the fallback uses its reply.
            Operation::Peek(_) if policy.local.is_some() => 0,
            _ => return,
        };
        self.denials.record(key, policy, cost, token, self.context.now(), decision);
    }

    /// Applies an operation in the store, without cache or fallback.
    pub(crate) async fn decide(
        &self,
        planned: PlannedOperation<'_>,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        self.call(planned, None, deadline).await
    }

    fn fall_back(
        &self,
        planned: PlannedOperation<'_>,
        error: StoreError,
    ) -> Result<Answer, StoreError> {
        let counts = self.count_unavailable(&error);
        self.local.decide(planned, (&self.denials, counts), self.context.now(), error)
    }

    /// The fallback decision on each of several keys.
    fn fall_back_all(
        &self,
        operations: &[PlannedOperation<'_>],
        error: &StoreError,
    ) -> Result<Vec<Decision>, StoreError> {
        let reports = (&self.denials, self.count_unavailable(error));
        self.local.decide_all(operations, reports, self.context.now(), error)
    }

    fn count_unavailable(&self, error: &StoreError) -> &CounterValues {
        let counts = &self.context.counts;
        match error {
            StoreError::Timeout(_) => counts.timeouts.one(),
            _ => counts.unavailable.one(),
        }
        tracing::debug!(%error, "decided without the store");
        counts
    }
}

/// Drops data of a key that other requests have cached during an operation. The future of an operation may be dropped after
/// the command was sent, and the operation is applied nevertheless.
#[must_use = "the data is dropped when this is"]
pub(crate) struct ForgetGuard<'a> {
    inner: &'a Inner,
    key: Box<[u8]>,
    operation: Operation<'static>,
}

impl Drop for ForgetGuard<'_> {
    fn drop(&mut self) {
        self.inner.forget(&self.key, self.operation);
    }
}

// One decision on several keys, all or nothing.
//
// If one server has all keys (without a cluster, or in one slot), it is one command of the module, or one script call.
// Otherwise the keys are taken one after the other, and if one denies, the previous charges are refunded: until then,
// those keys admit less than they could.

fn combined(each: Vec<Decision>, source: Source) -> Result<Answer, StoreError> {
    Answer::of_all(each, source).ok_or_else(|| RequestError::MissingKey.into())
}

impl Inner {
    /// Decides a request on several keys. `at` is the time to send, if it is given; uses no cache and no fallback then.
    pub(crate) async fn apply_all(
        &self,
        request: Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Answer, StoreError> {
        let deadline = Deadline::after(self.context.options.deadline);
        let keys = self.distinct(request.operations())?;
        let Some(PlannedKey { operation: first, .. }) = keys.first() else {
            return Err(RequestError::MissingKey.into());
        };
        let stores = matches!(first, Operation::Take(_));
        for PlannedKey { policy, operation, .. } in &keys {
            policy.policy.check_operation(*operation)?;
        }
        if at.is_some() {
            return self.apply_in_one_call(&keys, at, deadline).await;
        }
        let slots = keys.iter().map(|it| slot(&it.key));
        let one = matches!(self.topology, Topology::One(_))
            || slots.clone().all(|it| Some(it) == slots.clone().next());
        if first.id().is_some() {
            if !one {
                return Err(StoreError::Arguments(
                    "invalid keys for a hold: expected keys in one slot of the cluster, such as `{acme}:requests` and \
                     `{acme}:tokens`"
                        .to_owned(),
                ));
            }
            return self.hold_in_one_call(&keys, deadline).await;
        }
        if let Some(answer) = self.cached_denial_of_all(&keys) {
            self.context.counts.cache.one();
            return Ok(answer);
        }
        if !one {
            return self.take_in_turn(&keys, stores, deadline).await;
        }
        let now = self.context.now();
        let begun: Vec<_> = keys.iter().map(|it| self.denials.begin_query(&it.key, now)).collect();
        match self.apply_in_one_call(&keys, None, deadline).await {
            Ok(answer) => {
                self.context.counts.store.one();
                let now = self.context.now();
                for ((it, begun), decision) in keys.iter().zip(begun).zip(answer.each()) {
                    let PlannedKey { key, policy, operation } = it;
                    // An allowed key of a denied take was not charged.
                    let tells = answer.allowed() || !decision.allowed();
                    if stores && operation.cost() > 0 && tells {
                        self.denials.record(key, policy, operation.cost(), begun, now, decision);
                    }
                }
                Ok(answer)
            }
            Err(error) if error.is_unavailable() => self.fallback_answer(&keys, &error),
            Err(error) => Err(error),
        }
    }

    /// A hold may be sent again, as that of one key.
    async fn hold_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut attempt = 1;
        loop {
            match self.apply_in_one_call(keys, None, deadline).await {
                Ok(answer) => {
                    self.context.counts.store.one();
                    for (it, decision) in keys.iter().zip(answer.each()) {
                        // An allowed key of a denied hold was not charged.
                        if answer.allowed() || !decision.allowed() {
                            self.record_usage(&it.key, &it.policy, decision);
                        }
                    }
                    return Ok(answer);
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return self.fallback_answer(keys, &error);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Each key once, as it is in the store.
    fn distinct<'a>(
        &self,
        operations: &[KeyedOperation<'a>],
    ) -> Result<Vec<PlannedKey<'a>>, StoreError> {
        let mut distinct: Vec<PlannedKey<'a>> = Vec::with_capacity(operations.len());
        for &KeyedOperation { key, policy, operation } in operations {
            let key = self.key(key)?;
            if distinct.iter().all(|it| it.key != key) {
                distinct.push(PlannedKey { key, policy: self.planned(policy), operation });
            }
        }
        Ok(distinct)
    }

    /// One command or script call.
    async fn apply_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let Some(first) = keys.first() else { return combined(Vec::new(), Source::Store) };
        let peeks = matches!(first.operation, Operation::Peek(_));
        let command = MultiKeyCommand {
            context: &self.context,
            keys,
            script: Script::multi_key(keys.iter().map(|it| &it.policy.policy)),
            at,
            module: ModuleUse::new(at.is_some() || peeks),
        };
        let slot = slot(&first.key);
        let node = self.topology.node(slot, deadline).await?;
        // No command of the module peeks at several keys, and the server or the user may have no scripts. Whether there is
        // a module is known when the node is connected.
        let peeks_at_each = || at.is_none() && peeks && node.has_module();
        if !peeks_at_each() {
            let each = self.send(slot, command, deadline).await;
            if each.is_ok() || !peeks_at_each() {
                return combined(each?, Source::Store);
            }
        }
        let peeks = keys.iter().map(|it| self.call(it.planned(), None, deadline));
        combined(try_join_all(peeks).await?, Source::Store)
    }

    /// The denial of all keys if a cached denial of one still applies, unless a policy records denials.
    fn cached_denial_of_all(&self, keys: &[PlannedKey<'_>]) -> Option<Answer> {
        if !keys.iter().all(|it| it.policy.is_cached) {
            return None;
        }
        let now = self.context.now();
        let denied = |it: &PlannedKey<'_>| {
            self.denials.denied(&it.key, &it.policy, it.operation.cost(), now)
        };
        let known: Vec<_> = keys.iter().map(denied).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        // The others count as unused.
        let each = keys.iter().zip(known).map(|(it, known)| {
            known.map_or_else(|| it.policy.plan.unused_decision, |answer| answer.decision)
        });
        Answer::of_all(each.collect(), Source::Cache)
    }

    /// The fallback decision.
    fn fallback_answer(
        &self,
        keys: &[PlannedKey<'_>],
        error: &StoreError,
    ) -> Result<Answer, StoreError> {
        let operations: Vec<_> = keys.iter().map(PlannedKey::planned).collect();
        combined(self.fall_back_all(&operations, error)?, Source::Fallback)
    }

    /// Keys of several slots: in order, until one denies.
    async fn take_in_turn(
        &self,
        takes: &[PlannedKey<'_>],
        stores: bool,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut answers: Vec<Answer> = Vec::with_capacity(takes.len());
        if stores {
            for take in takes {
                match self.request(take.planned(), deadline).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        self.refund_all(takes, &answers).await;
                        return Err(error);
                    }
                }
                if answers.last().is_some_and(|answer| !answer.allowed()) {
                    break;
                }
            }
        }
        let denied = answers.last().is_some_and(|answer| !answer.allowed());
        if denied {
            let before = answers.len() - 1;
            let back = self.refund_all(takes, &answers[..before]).await;
            for (answer, back) in answers.iter_mut().zip(back) {
                *answer = back;
            }
        }
        // Peeks at the remaining keys; takes where the policy records denials.
        let rest = takes[answers.len()..].iter().map(async |take| {
            let peek = Operation::Peek(take.operation.cost());
            let records = stores && take.policy.records_denials;
            self.request(if records { take.planned() } else { take.with(peek) }, deadline).await
        });
        for answer in join_all(rest).await {
            answers.push(answer?);
        }
        let each = answers.iter().map(|answer| match answer.decision {
            // A take that was not applied has no delay.
            Decision { outcome: Outcome::Allow { .. }, .. } if denied => {
                Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..answer.decision }
            }
            decision => decision,
        });
        let mut answer = combined(each.collect(), Source::Store)?;
        answer.source = answers.get(answer.key).map_or(Source::Store, |it| it.source);
        Ok(answer)
    }

    /// Refunds charges, once, and returns the state of each key. Fallback decisions and policies that record denials
    /// are not refunded.
    async fn refund_all(&self, takes: &[PlannedKey<'_>], answers: &[Answer]) -> Vec<Answer> {
        let back = takes.iter().zip(answers).map(async |(take, answer)| {
            let cost = take.operation.cost();
            if answer.source != Source::Store || cost == 0 || take.policy.records_denials {
                return answer.clone();
            }
            let refund = Operation::Refund(cost);
            let _forget = self.begin(&take.key, refund);
            let deadline = Deadline::after(self.context.options.deadline);
            match self.decide(take.with(refund), deadline).await {
                Ok(decision) => decision.into(),
                Err(error) => {
                    tracing::debug!(%error, "could not return charged units");
                    answer.clone()
                }
            }
        });
        join_all(back).await
    }
}

/// A request on several keys of one slot.
struct MultiKeyCommand<'a> {
    context: &'a Context,
    keys: &'a [PlannedKey<'a>],
    script: &'static Script,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for MultiKeyCommand<'_> {
    type Answer = Vec<Decision>;
    // The state of each key may use other calendars.
    const CALENDARS: usize = sluicegate_core::MAX_KEYS_PER_TAKE * 2;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        if self.module.choose(node) {
            return Ok(native::command_for_all(self.keys));
        }
        let around = self.at.or(requested.now).unwrap_or_else(|| self.context.now());
        let mut command = begin(self.script, whole);
        command.arg(self.keys.len());
        self.keys.iter().for_each(|it| {
            command.arg(&*it.key);
        });
        let own = self.keys.iter().flat_map(|it| &it.policy.plan.calendars);
        let (word, id) = match self.keys.first().map(|it| it.operation) {
            Some(Operation::Peek(_)) => ("peek", &b""[..]),
            Some(Operation::Hold { id, .. }) => ("hold", id),
            _ => ("take", &b""[..]),
        };
        command.arg(word).arg(boundaries(own.chain(&requested.calendars), around));
        command.arg(self.at.map(|at| at.as_micros().to_string()).unwrap_or_default());
        command.arg(id);
        for PlannedKey { policy, operation, .. } in self.keys {
            let ttl = policy.policy.check_operation(*operation)?;
            command.arg(operation.cost()).arg(&policy.plan.initial_state).arg(ttl);
        }
        Ok(command)
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Vec<Decision>> {
        if self.module.is_native() {
            return self
                .module
                .follow(native::parse_decided(reply, native::decisions), self.context);
        }
        parse_general(reply, |elements| {
            if elements.len() != 7 * self.keys.len() {
                return None;
            }
            elements.chunks(7).map(one_decision).collect()
        })
    }
}

// Independent operations in one round trip per cluster slot.

/// An operation for the store, with its index in the batch.
struct PendingOperation<'a> {
    place: usize,
    planned: PlannedKey<'a>,
    token: QueryToken,
    _forget: Option<ForgetGuard<'a>>,
}

impl Inner {
    /// Applies several operations independently, and returns their answers in the same order.
    async fn send_many(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Vec<Result<Answer, StoreError>> {
        let deadline = Deadline::after(self.context.options.deadline);
        let now = self.context.now();
        let mut answers: Vec<Option<Result<Answer, StoreError>>> = vec![None; operations.len()];
        let mut slots: BTreeMap<u16, Vec<PendingOperation<'_>>> = BTreeMap::new();
        let alone = matches!(self.topology, Topology::One(_));
        for (place, &KeyedOperation { key, policy, operation }) in operations.iter().enumerate() {
            let planned = match self.key_of(key, operation) {
                Ok(key) => PlannedKey { key, policy: self.planned(policy), operation },
                Err(error) => {
                    answers[place] = Some(Err(error));
                    continue;
                }
            };
            if let Err(error) = planned.policy.policy.check_operation(operation) {
                answers[place] = Some(Err(error.into()));
                continue;
            }
            if let Some(answer) = self.cached_denial(planned.planned(), now) {
                answers[place] = Some(Ok(answer));
                continue;
            }
            self.local.follow_hold(planned.planned(), now);
            let forget = self.begin(&planned.key, operation);
            let token = self.denials.begin_query(&planned.key, now);
            let slot = if alone { 0 } else { slot(&planned.key) };
            let pending = PendingOperation { place, planned, token, _forget: forget };
            slots.entry(slot).or_default().push(pending);
        }
        let slots = slots.iter().map(|(slot, open)| self.apply_slot(*slot, open, deadline));
        for (place, answer) in join_all(slots).await.into_iter().flatten() {
            answers[place] = Some(answer);
        }
        let none = || Err(StoreError::Unavailable("the store did not reply".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }

    /// Applies the operations of one slot.
    async fn apply_slot(
        &self,
        slot: u16,
        open: &[PendingOperation<'_>],
        deadline: Deadline,
    ) -> Vec<(usize, Result<Answer, StoreError>)> {
        let all: Vec<_> = open.iter().collect();
        let mut parsed = self.send_slot(slot, &all, false, deadline).await;
        // Sends commands again that the server did not have, in the same order.
        let (again, unknown): (Vec<_>, Vec<_>) = open
            .iter()
            .zip(&mut parsed)
            .filter(|(_, parsed)| {
                matches!(parsed, Ok(ReplyKind::NoScript | ReplyKind::NoModule { at_all: true }))
            })
            .unzip();
        if !again.is_empty() {
            let answers = self.send_slot(slot, &again, true, deadline).await;
            unknown.into_iter().zip(answers).for_each(|(parsed, answer)| *parsed = answer);
        }
        let answers = open.iter().zip(parsed).map(async |(open, parsed)| {
            (open.place, self.resolve_redirects(open, parsed, deadline).await)
        });
        join_all(answers).await
    }

    /// Sends one pipeline, and parses the reply to each of `open`. With `texts`, the first call of each script has
    /// its whole text.
    async fn send_slot(
        &self,
        slot: u16,
        open: &[&PendingOperation<'_>],
        texts: bool,
        deadline: Deadline,
    ) -> Vec<Result<ReplyKind, StoreError>> {
        let exchange = async {
            let node = self.topology.node(slot, deadline).await?;
            let native = !texts && node.has_module();
            let around = self.context.now();
            let mut pipeline = Pipeline::with_capacity(open.len());
            let mut sent = Vec::new();
            for PendingOperation { planned: PlannedKey { key, policy, operation }, .. } in open {
                let plan = &policy.plan;
                if native {
                    pipeline.add_command(native::command(plan, key, *operation)?);
                    continue;
                }
                let arguments = plan.arguments(*operation, around, None, &[])?;
                let sha1 = plan.script().sha1();
                let whole = texts && !sent.contains(&sha1);
                if whole {
                    self.context.counts.scripts_sent.one();
                    sent.push(sha1);
                }
                pipeline.add_command(command(plan, key, &arguments, whole));
            }
            let replies = node.commands(&pipeline, deadline).await;
            // Another node may hold the slot by now.
            let replies = replies.inspect_err(|_| self.topology.refresh())?;
            if replies.len() != open.len() {
                let (expected, found) = (open.len(), replies.len());
                let text = format!("unexpected replies: expected {expected}, found {found}");
                return Err(StoreError::Unavailable(text));
            }
            Ok((node, native, replies))
        };
        match exchange.await {
            Ok((node, native, replies)) => {
                let parse = |(open, reply): (&&PendingOperation<'_>, _)| {
                    let parsed = if native::is_without_scripts(reply) && node.without_scripts() {
                        ReplyKind::NoModule { at_all: false }
                    } else if native {
                        native::parse_reply(
                            &open.planned.policy.plan,
                            open.planned.operation,
                            reply,
                        )
                    } else {
                        parse_script_reply(&open.planned.policy.plan, open.planned.operation, reply)
                    };
                    self.follow(&node, &parsed, reply);
                    let decided = native && matches!(parsed, ReplyKind::Decided(_));
                    self.context.counts.module.add(decided.into());
                    Ok(parsed)
                };
                open.iter().zip(&replies).map(parse).collect()
            }
            Err(error) => open.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The answer to one operation. Sends it again, alone, if it was not applied.
    async fn resolve_redirects(
        &self,
        open: &PendingOperation<'_>,
        parsed: Result<ReplyKind, StoreError>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let planned = open.planned.planned();
        let PlannedOperation { key, policy, operation } = planned;
        let is_hold = operation.id().is_some();
        let answer = match parsed {
            Ok(ReplyKind::Decided(decision)) if is_hold => {
                self.context.counts.store.one();
                self.record_usage(key, policy, &decision);
                Ok(decision.into())
            }
            Ok(ReplyKind::Decided(decision)) => Ok(self.decided(planned, open.token, decision)),
            Ok(ReplyKind::Failed(error)) | Err(error) if !error.is_unavailable() => Err(error),
            // It may be repeated.
            _ if is_hold => self.apply_hold(planned, deadline).await,
            Ok(ReplyKind::Failed(error)) | Err(error) => self.fall_back(planned, error),
            Ok(
                ReplyKind::NoScript
                | ReplyKind::NoModule { .. }
                | ReplyKind::Redirect { .. }
                | ReplyKind::Calendars { .. },
            ) => self.request(planned, deadline).await,
        };
        self.finish(key, operation, answer.is_ok());
        answer
    }
}

// Takes from leases: refills them from the store one request at a time, and refunds unspent units.

impl RedisStore {
    /// Takes from a lease, or takes the next chunk, one request at a time.
    pub(crate) async fn take_leased(
        &self,
        take: PlannedOperation<'_>,
        cost: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let (inner, PlannedOperation { key, policy, .. }) = (self.inner(), take);
        let (mut over, mut turn) = (None, None);
        loop {
            let now = inner.context.now();
            let outcome = inner.leases.take(key, policy, cost, now, &mut over);
            if let Some(unspent) = over.take() {
                self.give_back(unspent);
            }
            let (lock, chunk, token) = match outcome {
                LeaseOutcome::Taken(answer) => {
                    inner.context.counts.lease.one();
                    return Ok(answer);
                }
                LeaseOutcome::Full => return inner.request(take, deadline).await,
                LeaseOutcome::Refill(lock, chunk, token) => (lock, chunk, token),
            };
            if turn.is_none() {
                self.keep_leases();
                match deadline.within(lock.lock_owned()).await {
                    Ok(guard) => turn = Some(guard),
                    Err(late) => return inner.fall_back(take, late),
                }
                // The previous holder of the lock may have refilled the lease, or been denied.
                if let Some(answer) = inner.cached_denial(take, inner.context.now()) {
                    return Ok(answer);
                }
                continue;
            }
            let known = inner.denials.begin_query(key, now);
            if chunk > cost {
                let refill = PlannedOperation { operation: Operation::Take(chunk), ..take };
                match inner.decide(refill, deadline).await {
                    Ok(decision) if decision.allowed() => {
                        let now = inner.context.now();
                        inner.granted(key, policy, (chunk, cost), (token, now), &decision);
                        inner.record(refill, known, &decision);
                        inner.context.counts.store.one();
                        return Ok(decision.into());
                    }
                    // Less units may be allowed.
                    Ok(_) => inner.leases.denied(key),
                    Err(error) if error.is_unavailable() => {
                        return inner.fall_back(take, error);
                    }
                    Err(error) => return Err(error),
                }
            }
            let answer = inner.request(take, deadline).await?;
            if answer.allowed() && answer.source == Source::Store {
                let now = inner.context.now();
                inner.granted(key, policy, (cost, cost), (token, now), &answer.decision);
            }
            return Ok(answer);
        }
    }

    /// Refunds unspent units, once, in the background.
    fn give_back(&self, unspent: UnspentLease) {
        let store = self.clone();
        self.inner().context.spawn(async move { store.return_now(unspent).await });
    }

    async fn return_now(&self, unspent: UnspentLease) {
        let inner = self.inner();
        let span = inner.context.options.deadline;
        let owed = unspent.owed(inner.context.now(), span);
        let counts = &inner.context.counts;
        let mut returned = 0;
        if owed > 0 {
            inner.denials.forget(&unspent.key);
            let _forget = inner.denials.forget_on_drop(&unspent.key);
            let UnspentLease { key, policy, .. } = &unspent;
            let refund = PlannedOperation { key, policy, operation: Operation::Refund(owed) };
            if inner.decide(refund, Deadline::after(span)).await.is_ok() {
                returned = owed;
            }
        }
        counts.lease_returned.add(returned.into());
        counts.lease_forfeited.add((unspent.left - returned).into());
    }

    /// Starts the task that refunds expired leases, unless it runs.
    fn keep_leases(&self) {
        if self.inner().leases.has_keeper.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::downgrade(&self.0);
        let every = (self.inner().leases.lifetime / 2).max(Duration::from_millis(1));
        self.inner().context.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(store) = Weak::upgrade(&store).map(Self) else { return };
                for unspent in store.inner().leases.expired(Some(store.inner().context.now())) {
                    store.return_now(unspent).await;
                }
            }
        });
    }

    /// Refunds the unspent units of all leases.
    async fn return_leases(&self) {
        for unspent in self.inner().leases.expired(None) {
            self.return_now(unspent).await;
        }
    }
}

impl Inner {
    fn granted(
        &self,
        key: &[u8],
        policy: &PlannedPolicy,
        units: (u32, u32),
        times: (RefillToken, Timestamp),
        decision: &Decision,
    ) {
        let lost = self.leases.granted(key, policy, units, times, decision);
        if lost > 0 {
            self.context.counts.lease_forfeited.add(lost.into());
        }
    }
}

// Reads the stored entry of a key.

impl RedisStore {
    /// The entry of `key`, if there is one, and the time of the store, by which the entry may have recovered.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the key holds something else, [`StoreError::Unavailable`] and
    /// [`StoreError::Timeout`] while the store is unavailable.
    pub(crate) async fn entry(&self, key: &[u8]) -> Result<(Option<Entry>, Timestamp), StoreError> {
        let inner = self.inner();
        let (key, deadline) =
            (inner.key_or_empty(key)?, Deadline::after(inner.context.options.deadline));
        let slot = slot(&key);
        let mut node = inner.topology.node(slot, deadline).await?;
        let mut asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let mut both = Pipeline::with_capacity(3);
            if asking {
                both.cmd("ASKING");
            }
            both.cmd("GET").arg(&*key).cmd("TIME");
            let replies = node.commands(&both, deadline).await;
            let mut replies = replies.inspect_err(|_| inner.topology.refresh())?;
            let (time, bytes) = (replies.pop().unwrap_or(Value::Nil), replies.pop());
            let bytes = bytes.unwrap_or(Value::Nil);
            if let Some((to, moved)) = redirect_target(&bytes) {
                inner.context.counts.redirects.one();
                node = inner.topology.redirected(slot, &to, &node, moved)?;
                asking = !moved;
                continue;
            }
            let now = inner.given_time().map_or_else(|| clock(&time), Ok);
            return Ok((read(&key, &bytes)?, now?));
        }
        Err(too_many_redirects(slot))
    }
}

/// Parses the value of a key.
fn read(key: &[u8], value: &Value) -> Result<Option<Entry>, StoreError> {
    let corrupt = |fault, error: &CommandError| Err(StoreError::Corrupt(fault, error.to_string()));
    match value {
        Value::Nil => Ok(None),
        Value::BulkString(bytes) if is_redis_cell(bytes) => {
            corrupt(StateFault::Damaged, &CommandError::redis_cell(key))
        }
        Value::BulkString(bytes) => Entry::decode(bytes).map(Some).or_else(|error| {
            let is_later = matches!(error, StateError::Version(_));
            let fault = if is_later { StateFault::Version } else { StateFault::Damaged };
            corrupt(fault, &CommandError::state(key, error))
        }),
        Value::ServerError(error) if error.code() == "WRONGTYPE" => {
            corrupt(StateFault::WrongType, &CommandError::wrong_type(key))
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            Err(StoreError::Unavailable(format!("{code} {details}")))
        }
        other => Err(StoreError::Unavailable(format!("unexpected reply to GET: {other:?}"))),
    }
}

/// Whether the value is one of redis-cell: digits, with which no state of Sluicegate begins.
fn is_redis_cell(bytes: &[u8]) -> bool {
    (1..=20).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_digit)
}

/// Parses the reply to `TIME`.
fn clock(value: &Value) -> Result<Timestamp, StoreError> {
    let (seconds, micros): (u64, u64) = from_redis_value_ref(value)
        .map_err(|_| StoreError::Unavailable(format!("unexpected reply to TIME: {value:?}")))?;
    Ok(Timestamp::saturating_from_micros(seconds.saturating_mul(1_000_000) + micros))
}

#[cfg(test)]
mod tests;
