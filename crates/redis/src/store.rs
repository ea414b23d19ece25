//! The store on Redis or Valkey.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
    time::Duration,
};

use futures_util::future::{join, join_all};
use parking_lot::RwLock;
use redis::{Pipeline, Value, from_redis_value_ref};
use sluicegate_commands::CommandError;
use sluicegate_core::{
    Answer, Applied, Chunk, Counters, Entry, KeyedOperation, MAX_KEY, MIN_LEASED_WINDOW,
    NodeHealth, Operation, ReadEntry, RefillToken, RemoteStatus, Request, Source, StateError,
    StateFault, Store, StoreError, StoreId, StoreStatus, Timestamp, lease_window_end, reached,
};
use sluicegate_fallback::{DenialCache, LocalFallback};

use crate::{
    Options, PlannedOperation,
    inner::{Inner, MAX_REDIRECTS},
    lease::{LeaseOutcome, Leases, UnspentLease},
    net::{context::Context, node_connection::Deadline, topology::Topology, url::Url},
    planned_policy::leased_cost,
    reply::{redirect_target, too_many_redirects},
    slot::slot,
    status::Status,
    sync::Ordering,
};

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

impl RedisStore {
    /// The nodes of the store, and their problems. Takes from a key of its own, and resets it.
    ///
    /// # Errors
    /// [`StoreError`] if no server replies.
    pub async fn inspect(&self) -> Result<Status, StoreError> {
        self.inner().inspect().await
    }

    /// Installs the library of functions on every server, in place of any other version of it.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with the error of the server; [`StoreError::Settings`] for one older than Redis 7.0.
    pub async fn install(&self) -> Result<(), StoreError> {
        self.inner().install().await
    }

    /// Removes the library of functions from every server. Keys stay.
    ///
    /// # Errors
    /// As [`RedisStore::install`], and [`StoreError::Arguments`] if the library is not installed.
    pub async fn uninstall(&self) -> Result<(), StoreError> {
        self.inner().uninstall().await
    }

    /// Why no decision of the store can be had now; see [`RemoteStatus::unavailable`].
    #[must_use]
    pub fn unavailable(&self) -> Option<String> {
        match &self.inner().topology {
            Topology::One(node) => node.why_unavailable(),
            Topology::Cluster(cluster) => cluster.unavailable(),
        }
    }

    /// The last known state of every node. Calls none.
    #[must_use]
    pub fn health(&self) -> Vec<NodeHealth> {
        let nodes = match &self.inner().topology {
            Topology::One(node) => vec![node.clone()],
            Topology::Cluster(cluster) => cluster.nodes(),
        };
        let health = nodes.iter().map(|node| NodeHealth {
            endpoint: node.endpoint.to_string(),
            connected: node.is_up(),
            breaker_open: node.breaker.is_open(),
        });
        health.collect()
    }

    /// Counters since the store was created.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner().context.counts.read()
    }

    fn remote_status(&self) -> RemoteStatus {
        RemoteStatus {
            nodes: self.health(),
            unavailable: self.unavailable(),
            counters: self.counters(),
            round_trips: self.inner().context.round_trips.read(),
        }
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

/// While the store is unavailable, the [`OnError`](sluicegate_core::OnError) of the policy decides takes, peeks,
/// reserves and holds. A charge, a refund, a reset, a settle and a renew have no fallback: they return [`StoreError::Unavailable`] or
/// [`StoreError::Timeout`]. A refund with an unknown outcome is not sent again, and the caller should not send it again
/// either.
impl Store for RedisStore {
    type Error = StoreError;

    /// In a cluster, keys with one hash tag (`{acme}:user7`, `{acme}`) are decided atomically; others in the order
    /// given, and charged units are refunded on a denial, once. Of those, a policy with `count=all` keeps the charge,
    /// as the record of the denial. Several keys use no leases. With a test clock, one server must have all of them.
    #[inline(always)]
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        if let Some(KeyedOperation { key, policy, operation: Operation::Take(cost) }) =
            request.single()
            && let Some(answer) = self.inner().known_take(key, policy, cost)
        {
            return Applied::Now(Ok(answer));
        }
        self.ask(request)
    }

    /// Sends one pipeline per cluster slot (one without a cluster), all at the same time. Each operation is atomic, the
    /// batch is not. Operations on one key are applied in order, unless the server has flushed its scripts.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        let inner = self.inner();
        let Some(now) = inner.given_time() else {
            let is_leased =
                |it: &KeyedOperation<'_>| leased_cost(it.policy.settings(), it.operation).is_some();
            return Applied::later(async move {
                let deadline = Deadline::of(operations, &inner.context.options);
                match operations.iter().any(is_leased) {
                    true => self.apply_leased(operations, is_leased, deadline).await,
                    false => inner.send_many(operations, deadline).await,
                }
            });
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
        Applied::later(self.return_leases(None))
    }
}

// Takes from leases: refills them from the store one request at a time, and refunds unspent units.

/// Number of expired leases that are refunded at a time.
const REFUNDS_AT_ONCE: usize = 64;
/// Maximum number of requests on one key, of one call or that wait, that ask the store one after the other.
const MAX_IN_TURN: usize = 3;

impl RedisStore {
    /// Applies operations that the process cannot decide by itself.
    fn ask<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let inner = self.inner();
        let given = inner.given_time();
        let Some(KeyedOperation { key, policy, operation }) = request.single() else {
            return Applied::later(inner.apply_all(request, given));
        };
        let (key, policy) = match inner.key_of(key, operation) {
            Ok(key) => (key, inner.planned(policy)),
            Err(error) => return Applied::Now(Err(error)),
        };
        Applied::later(async move {
            let planned = PlannedOperation { key: &key, policy: &policy, operation };
            let deadline = Deadline::of(request.operations(), &inner.context.options);
            match given {
                Some(_) => Ok(inner.call(planned, given, deadline).await?.into()),
                None => self.apply_one(planned, 0, deadline).await,
            }
        })
    }

    /// Applies operations of which some are takes under policies with leases: those on a key with such a take one after the
    /// other, until one is denied, two in a row ask the store or [`MAX_IN_TURN`] do, and all others as one batch.
    async fn apply_leased(
        &self,
        operations: &[KeyedOperation<'_>],
        is_leased: impl Fn(&KeyedOperation<'_>) -> bool,
        deadline: Deadline,
    ) -> Vec<Result<Answer, StoreError>> {
        let inner = self.inner();
        let leased = operations.iter().filter(|it| is_leased(it)).map(|it| (it.key, Vec::new()));
        let mut by_key: BTreeMap<&[u8], Vec<usize>> = leased.collect();
        let (mut rest, mut places) = (Vec::new(), Vec::new());
        for (place, operation) in operations.iter().enumerate() {
            if let Some(of_key) = by_key.get_mut(operation.key) {
                of_key.push(place);
            } else {
                rest.push(*operation);
                places.push(place);
            }
        }
        let in_order = by_key.into_values().map(async |places| {
            let mut answers = Vec::with_capacity(places.len());
            let (mut left, mut asked, mut in_a_row) = (&places[..], 0, 0);
            while let Some((&place, rest)) = left.split_first() {
                // A chunk for the takes that follow saves their chunks.
                let one = operations[place];
                let (policy, settings) = (one.policy.policy(), one.policy.settings());
                let follows = |it: &KeyedOperation<'_>| {
                    is_leased(it)
                        && it.policy.policy() == policy
                        && it.policy.settings() == settings
                };
                let run = left.iter().map(|&place| operations[place]).take_while(follows);
                let units = run.fold(0_u32, |sum, it| sum.saturating_add(it.operation.cost()));
                let answer = self.apply_within(one, units, deadline).await;
                let is_denied = answer.as_ref().is_ok_and(|it| !it.allowed());
                let is_known = |it: &Answer| matches!(it.source, Source::Lease | Source::Cache);
                let asks = !answer.as_ref().is_ok_and(is_known);
                in_a_row = if asks { in_a_row + 1 } else { 0 };
                asked += usize::from(asks);
                answers.push((place, answer));
                left = rest;
                let is_slow = in_a_row == 2 || asked == MAX_IN_TURN;
                if (is_denied || is_slow) && !rest.is_empty() {
                    // Each of them would wait for the reply to the one before.
                    let rest: Vec<_> = rest.iter().map(|&place| operations[place]).collect();
                    let rest = inner.send_many(&rest, deadline).await;
                    answers.extend(left.iter().copied().zip(rest));
                    break;
                }
            }
            answers
        });
        let (in_order, rest) = join(join_all(in_order), inner.send_many(&rest, deadline)).await;
        let mut answers: Vec<_> =
            in_order.into_iter().flatten().chain(places.into_iter().zip(rest)).collect();
        answers.sort_unstable_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// One of these operations.
    async fn apply_within(
        &self,
        operation: KeyedOperation<'_>,
        units: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let (inner, KeyedOperation { key, policy, operation }) = (self.inner(), operation);
        let (key, policy) = (inner.key_of(key, operation)?, inner.planned(policy));
        let planned = PlannedOperation { key: &key, policy: &policy, operation };
        match inner.known_answer(planned, inner.context.now()) {
            Some(answer) => Ok(answer),
            None => self.apply_one(planned, units, deadline).await,
        }
    }

    /// Applies an operation that the process cannot answer by itself. If it is a take from a lease, `units` are used at once.
    async fn apply_one(
        &self,
        planned: PlannedOperation<'_>,
        units: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let (inner, PlannedOperation { key, policy, operation }) = (self.inner(), planned);
        if operation.id().is_some() {
            return inner.apply_hold(planned, deadline).await;
        }
        if leased_cost(policy.settings, operation).is_some() {
            return self.take_leased(planned, units, deadline).await;
        }
        let _forget = inner.begin(key, operation);
        let answer = inner.request(planned, deadline).await;
        inner.replied(key, operation, &answer);
        answer
    }

    /// Takes from a lease, or takes the next chunk, one request at a time. The chunk has at least `units`, as far as the lease
    /// may have them, but for fixed windows: units of a chunk that opens a window are forfeited.
    async fn take_leased(
        &self,
        take: PlannedOperation<'_>,
        units: u32,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let (inner, PlannedOperation { key, policy, operation }) = (self.inner(), take);
        let cost = operation.cost();
        if policy.terms.window().is_some_and(|it| it < MIN_LEASED_WINDOW) {
            return inner.request(take, deadline).await;
        }
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
                    Ok(guard) => turn = Some((guard, token)),
                    Err(late) => {
                        reached!(RefillIsWaitedForTooLong);
                        return inner.fall_back(take, late);
                    }
                }
                // The previous holder of the lock may have refilled the lease, or been denied.
                if let Some(answer) = inner.cached_denial(take, inner.context.now()) {
                    return Ok(answer);
                }
                continue;
            }
            let is_slow = |before: &RefillToken| {
                token.denials > before.denials || token.grants >= before.grants + MAX_IN_TURN as u64
            };
            if turn.take_if(|(_, before)| is_slow(before)).is_some() {
                // The store has denied others since this one began to wait, or granted them all that it did. In turn, each
                // of them would wait for the reply to the one before.
                reached!(RefillIsDeniedWhileOthersWait);
                return inner.request(take, deadline).await;
            }
            let has_windows = policy.terms.window().is_some();
            let units = if has_windows { 0 } else { units.min(policy.terms.units()) };
            let chunk = chunk.max(units);
            let known = inner.denials.begin_query(key, now);
            if chunk > cost {
                let refill = PlannedOperation { operation: Operation::Take(chunk), ..take };
                match inner.decide(refill, deadline).await {
                    Ok(decision) if decision.allowed() => {
                        reached!(ChunkIsGranted);
                        let window_end = self.window_end(refill, token.sent, deadline).await;
                        let now = inner.context.now();
                        let granted = Chunk { units: chunk, cost, decision, window_end };
                        inner.granted(key, policy, granted, (token, now));
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
            match answer.source {
                Source::Store if answer.allowed() => {
                    let now = inner.context.now();
                    let granted = Chunk {
                        units: cost,
                        cost,
                        decision: answer.decision,
                        window_end: policy.terms.unknown_end(),
                    };
                    inner.granted(key, policy, granted, (token, now));
                }
                Source::Store => inner.leases.denied(key),
                _ => {}
            }
            return Ok(answer);
        }
    }

    /// When the window of a chunk ends that was just granted.
    async fn window_end(
        &self,
        chunk: PlannedOperation<'_>,
        sent: Timestamp,
        deadline: Deadline,
    ) -> Timestamp {
        let (inner, PlannedOperation { key, policy, .. }) = (self.inner(), chunk);
        if policy.terms.window().is_none() {
            return policy.terms.unknown_end();
        }
        let asked = inner.context.now();
        let end = match self.entry_at(key, deadline).await {
            Ok((Some(entry), by_store)) => lease_window_end(
                &entry,
                &policy.policy,
                by_store,
                [sent, asked, inner.context.now()],
            ),
            _ => None,
        };
        end.unwrap_or_else(|| policy.terms.unknown_end())
    }

    /// Refunds unspent units, once, in the background.
    fn give_back(&self, unspent: UnspentLease) {
        let store = self.clone();
        self.inner().context.spawn(async move { store.return_now(unspent).await });
    }

    async fn return_now(&self, unspent: UnspentLease) {
        let inner = self.inner();
        let span = inner.context.options.deadline;
        let UnspentLease { key, policy, unspent } = &unspent;
        let owed = unspent.owed(inner.context.now(), span);
        let counts = &inner.context.counts;
        let mut returned = 0;
        debug_assert!(owed <= unspent.units, "more is returned than is left");
        reached!(LeaseIsForfeited if owed == 0);
        reached!(LeaseIsPartlyOwed if 0 < owed && owed < unspent.units);
        if owed > 0 {
            inner.denials.forget(key);
            let _forget = inner.denials.forget_on_drop(key);
            let refund = PlannedOperation { key, policy, operation: Operation::Refund(owed) };
            if inner.decide(refund, Deadline::after(span)).await.is_ok() {
                returned = owed;
            }
            reached!(LeaseIsReturned if returned > 0);
            reached!(LeaseIsNotReturned if returned == 0);
        }
        counts.lease_returned.add(returned.into());
        counts.lease_forfeited.add((unspent.units - returned).into());
    }

    /// Starts the task that refunds expired leases, unless it runs.
    fn keep_leases(&self) {
        if self.inner().leases.has_keeper.swap(true, Ordering::Relaxed) {
            return;
        }
        let store = Arc::downgrade(&self.0);
        let every = (self.inner().leases.lifetime / 4).max(Duration::from_millis(1));
        self.inner().context.spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                let Some(store) = Weak::upgrade(&store).map(Self) else { return };
                store.return_leases(Some(store.inner().context.now())).await;
            }
        });
    }

    /// Refunds the unspent units of leases that have expired by `now`; of all, for `None`.
    async fn return_leases(&self, now: Option<Timestamp>) {
        let mut expired = self.inner().leases.expired(now).into_iter();
        loop {
            let some = expired.by_ref().take(REFUNDS_AT_ONCE).map(|it| self.return_now(it));
            if join_all(some).await.is_empty() {
                return;
            }
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
        let deadline = Deadline::after(inner.context.options.deadline);
        self.entry_at(&inner.key_or_empty(key)?, deadline).await
    }

    /// The same for a key of the store.
    async fn entry_at(
        &self,
        key: &[u8],
        deadline: Deadline,
    ) -> Result<(Option<Entry>, Timestamp), StoreError> {
        let inner = self.inner();
        let slot = slot(key);
        let mut node = inner.topology.node(slot, deadline).await?;
        let mut asking = false;
        for _ in 0..=MAX_REDIRECTS {
            let mut both = Pipeline::with_capacity(3);
            if asking {
                both.cmd("ASKING");
            }
            both.cmd("GET").arg(key).cmd("TIME");
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
            return Ok((read(key, &bytes)?, now?));
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
