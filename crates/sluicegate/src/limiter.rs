//! Limits in any store.

use std::{borrow::Borrow, fmt::Debug, sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, AsStore, Clock, Counters, KeyedOperation, MultiKeyAnswer, MultiKeyOperation, Operation,
    PreparedPolicy, Store, StoreError, StoreStatus,
};

use sluicegate_holds::{HoldGuard, HoldId, HoldWait, WaitOptions};
use tokio::time::{Instant, sleep};

use crate::{
    HoldOutcome, LocalLimiter, Permit, SingleLimiter,
    hold_outcome::{all_decided, decided, guards},
    multi_key::keyed_takes,
    wait,
};

/// Limits in any store: in this process, or in Redis or Valkey for all processes together (the crate
/// `sluicegate-redis`).
///
/// Cheap to clone; all clones share their state. Keys are any bytes. The usage of a key carries over from one
/// policy to another. A key should therefore name the client and what is limited: `login:user7`.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<dyn Store<Error = StoreError>>);

impl Limiter {
    /// Limits in `store`: for example a `RedisStore` of the crate `sluicegate-redis`, or a [`LocalLimiter`].
    ///
    /// ```
    /// use sluicegate::{Limiter, LocalLimiter};
    ///
    /// // Limiter::new(sluicegate_redis::RedisStore::connect("redis://127.0.0.1/").await?)
    /// let limiter = Limiter::new(LocalLimiter::bounded(64 << 20));
    /// ```
    #[must_use]
    pub fn new(store: impl Store<Error = StoreError> + 'static) -> Self {
        Self(Arc::new(store))
    }

    /// Limits in this process, with up to 1 GiB of state. [`LocalLimiter`] has the same calls without async.
    #[must_use]
    pub fn in_memory() -> Self {
        LocalLimiter::new().into()
    }

    /// One limit without a key, in this process, without async.
    ///
    /// ```
    /// use sluicegate::{Limiter, Policy};
    ///
    /// let limiter = Limiter::single("gcra:30/1m".parse::<Policy>()?);
    /// assert!(limiter.check().allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    #[must_use]
    pub fn single(policy: impl Into<PreparedPolicy>) -> SingleLimiter {
        SingleLimiter::new(policy)
    }

    /// Takes `cost` units, all or none.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy, Retry};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:1/1s:burst=3,fixed-window:100/day".parse()?;
    /// assert!(limiter.take("user7", &policy, 3).await?.allowed());
    /// let denied = limiter.take("user7", &policy, 1).await?;
    /// assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs_f64() <= 1.0));
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if the key holds a value that Sluicegate did not write. While the store is
    /// unavailable, [`PreparedPolicy::on_error`] decides.
    pub async fn take(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Take(cost)).await
    }

    /// Returns what [`Limiter::take`] would return, and changes nothing.
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn peek(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Peek(cost)).await
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards. Later requests
    /// wait until the units are available again.
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Unavailable`] or [`StoreError::Timeout`] while the store is unavailable.
    pub async fn charge(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Charge(cost)).await
    }

    /// Gives back up to `cost` of the units in use.
    ///
    /// # Errors
    /// As [`Limiter::charge`]. The store may have executed the refund: do not repeat it.
    pub async fn refund(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Refund(cost)).await
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:1/1s:burst=1".parse()?;
    /// let first = limiter.reserve("api", &policy, 1, Duration::from_secs(5)).await?;
    /// let second = limiter.reserve("api", &policy, 1, Duration::from_secs(5)).await?;
    /// assert!(first.delay().is_zero() && second.delay().as_secs_f64() > 0.9);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Operation`] unless every limit is of the gcra family or a
    /// `leaky-queue`.
    pub async fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Reserve { cost, max_wait }).await
    }

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed within the timeout of
    /// `wait`, which is a [`Duration`] or [`WaitOptions`].
    ///
    /// With limits of the gcra family and `leaky-queue`, this is one reservation: waiting requests pass in
    /// arrival order and evenly spaced, those of other processes included. With other limits, this tries again after
    /// each retry time; [`Jitter`](crate::Jitter) then separates requests that wait for the same window.
    ///
    /// A future that is dropped while it waits may have used its units.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("api", &policy, 1, Duration::from_secs(60)).await?.allowed());
    /// }
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        wait: impl Into<WaitOptions>,
    ) -> Result<Answer, StoreError> {
        wait::until_ready(&*self.0, key.as_ref(), policy, cost, wait.into()).await
    }

    /// Resets the key, for every policy. Whether it had units in use.
    ///
    /// # Errors
    /// As [`Limiter::charge`].
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<bool, StoreError> {
        self.0.reset(key.as_ref()).await
    }

    /// Makes independent takes from several keys in one round trip. The answers are in the same order.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:30/60s".parse()?;
    /// let answers = limiter.take_many([("user7", &policy, 1), ("user8", &policy, 31)]).await;
    /// let allowed = answers.into_iter().map(|it| it.map(|answer| answer.allowed()));
    /// assert_eq!(allowed.collect::<Result<Vec<_>, _>>()?, [true, false]);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_many<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Vec<Result<Answer, StoreError>> {
        let takes: Vec<_> = takes.into_iter().collect();
        let operations = takes.iter().map(|(key, policy, cost)| KeyedOperation {
            key: key.as_ref(),
            policy: policy.borrow(),
            operation: Operation::Take(*cost),
        });
        let operations: Vec<_> = operations.collect();
        self.0.apply_many(&operations).await
    }

    /// Takes from several keys, from all of them or from none. If a key is given twice, only the first take counts.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let user: PreparedPolicy = "gcra:5/1m".parse()?;
    /// let team: PreparedPolicy = "gcra:100/1m".parse()?;
    /// let answer = limiter.take_all([("user7", &user, 6), ("team1", &team, 6)]).await?;
    /// assert!(!answer.decision.allowed());
    /// assert_eq!(answer.key, 0, "the user's own limit is binding");
    /// assert_eq!(limiter.peek("team1", &team, 1).await?.remaining, 100);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Settings`] without a key.
    pub async fn take_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let takes: Vec<_> = takes.into_iter().collect();
        self.0.apply_multi_key(MultiKeyOperation::Take, &keyed_takes(&takes)).await
    }

    /// Holds `cost` units for up to `ttl`, which is a [`Duration`] from 1 ms to 24 h, or `None` for the default of
    /// `concurrency` limits, their shortest period. The permit settles when it is dropped.
    ///
    /// A future that is dropped while it waits cancels the hold in the background.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{HoldOutcome, Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// // Tokens of a language model: 4000 are held, and 2310 are used.
    /// let policy: PreparedPolicy = "token-bucket:10000/1h".parse()?;
    /// let held = limiter.hold("team7", &policy, 4000, Duration::from_secs(30)).await?;
    /// let HoldOutcome::Allowed(permit) = held else { panic!("the key is unused") };
    /// assert_eq!(permit.answer().remaining, 6000);
    /// assert_eq!(permit.settle(2310).await?.remaining, 7690);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Hold`] if `ttl` is invalid or missing, if the policy has a `leaky-queue`,
    /// or if 65 536 holds of the key are open.
    pub async fn hold(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome, StoreError> {
        self.hold_as(key.as_ref(), policy, HoldId::random(), cost, ttl.into()).await
    }

    /// [`Limiter::hold`] under an id of 1 to 64 bytes, which names one hold of the key. If it is open already, the hold
    /// is allowed and changes nothing: a repeated request holds once.
    ///
    /// A future that is dropped while it waits may leave the hold open until it expires, because another permit may have
    /// the same id.
    ///
    /// # Errors
    /// As [`Limiter::hold`], and [`StoreError::Hold`] if the id is empty or too long.
    pub async fn hold_with_id(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        id: impl AsRef<[u8]>,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome, StoreError> {
        self.hold_as(key.as_ref(), policy, HoldId::given(id.as_ref()), cost, ttl.into()).await
    }

    /// Waits until `cost` units are held. Returns a denial if that has not succeeded within the timeout of `wait`, which is
    /// a [`Duration`] or [`WaitOptions`], and immediately if it never can.
    ///
    /// A settle may free units at any time. Therefore this tries again after 1 ms at first, and then after an eighth of
    /// the time that it has waited, at most 250 ms.
    ///
    /// A future that is dropped while it waits holds nothing.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "concurrency:1/30s".parse()?;
    /// let report = limiter.hold("report", &policy, 1, None).await?;
    /// let wait = Duration::from_millis(20);
    /// let next = limiter.hold_until_ready("report", &policy, 1, None, wait).await?;
    /// assert!(!next.allowed());
    /// drop(report);
    /// assert!(limiter.hold_until_ready("report", &policy, 1, None, wait).await?.allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::hold`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn hold_until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome, StoreError> {
        let (key, ttl, wait) = (key.as_ref(), ttl.into(), HoldWait::new(wait.into()));
        let start = Instant::now();
        loop {
            if wait.peeks(start.elapsed(), policy) {
                let peek = self.peek(key, policy, cost).await?;
                // A denial that is the answer is recorded by the hold below.
                if let Some(pause) = wait.pause(start.elapsed(), peek.retry()) {
                    sleep(pause).await;
                    continue;
                }
            }
            let outcome = self.hold_as(key, policy, HoldId::random(), cost, ttl).await?;
            let HoldOutcome::Denied(answer) = &outcome else { return Ok(outcome) };
            let Some(pause) = wait.pause(start.elapsed(), answer.retry()) else {
                return Ok(outcome);
            };
            sleep(pause).await;
        }
    }

    async fn hold_as(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        id: HoldId,
        cost: u32,
        ttl: Option<Duration>,
    ) -> Result<HoldOutcome, StoreError> {
        let mut guard = HoldGuard::new(&self.0, key, policy, id, ttl);
        let answer = guard.open(cost).await?;
        Ok(decided(guard, answer))
    }

    /// Holds units of several keys for up to `ttl`, of all keys or of none. Each permit is settled by itself. Of a key
    /// that is given twice, only the first cost counts, and it has one permit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// // Requests and tokens of one provider: on a Redis Cluster, `{...}` puts both keys into one slot.
    /// let requests: PreparedPolicy = "concurrency:20/30s,gcra:500/1m".parse()?;
    /// let tokens: PreparedPolicy = "token-bucket:10000/1h".parse()?;
    /// let keys = [("{llm}:requests", &requests, 1), ("{llm}:tokens", &tokens, 4000)];
    /// let permits = limiter.hold_all(keys, Duration::from_secs(30)).await?.permit();
    /// let [request, tokens] = <[_; 2]>::try_from(permits.unwrap()).unwrap();
    /// assert_eq!(tokens.settle(2310).await?.remaining, 7690);
    /// drop(request); // one request
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::hold`], and [`StoreError::Settings`] without a key, or if the keys are in several slots of a
    /// Redis Cluster.
    pub async fn hold_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<Vec<Permit>, MultiKeyAnswer>, StoreError> {
        let (holds, ttl): (Vec<_>, _) = (holds.into_iter().collect(), ttl.into());
        let takes = keyed_takes(&holds);
        let id = HoldId::random();
        let guards = guards(&self.0, &takes, &id, ttl);
        let operation = MultiKeyOperation::Hold { id: &id, ttl };
        let answer = self.0.apply_multi_key(operation, &takes).await?;
        Ok(all_decided(guards, answer))
    }

    /// Waits until the units of all keys are held, as [`Limiter::hold_until_ready`] does for one key.
    ///
    /// # Errors
    /// As [`Limiter::hold_all`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn hold_all_until_ready<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<Vec<Permit>, MultiKeyAnswer>, StoreError> {
        let holds: Vec<_> = holds.into_iter().collect();
        let holds = holds.iter().map(|(key, policy, cost)| (key.as_ref(), policy.borrow(), *cost));
        let (holds, ttl, wait) =
            (holds.collect::<Vec<_>>(), ttl.into(), HoldWait::new(wait.into()));
        let start = Instant::now();
        loop {
            if holds.iter().any(|it| wait.peeks(start.elapsed(), it.1)) {
                let takes = keyed_takes(&holds);
                let peek = self.0.apply_multi_key(MultiKeyOperation::Peek, &takes).await?;
                if let Some(pause) = wait.pause(start.elapsed(), peek.decision.retry()) {
                    sleep(pause).await;
                    continue;
                }
            }
            let outcome = self.hold_all(holds.iter().copied(), ttl).await?;
            let HoldOutcome::Denied(answer) = &outcome else { return Ok(outcome) };
            let Some(pause) = wait.pause(start.elapsed(), answer.decision.retry()) else {
                return Ok(outcome);
            };
            sleep(pause).await;
        }
    }

    /// Decisions by source, and other counts, since the store was created; all zero for a store in this process.
    #[must_use]
    pub fn counters(&self) -> Counters {
        match self.0.status() {
            StoreStatus::Remote(status) => status.counters,
            StoreStatus::Local(_) => Counters::default(),
        }
    }

    /// Gives unused leased units back to the store. Without this call, they are forfeited.
    pub async fn close(&self) {
        self.0.close().await;
    }
}

/// A limiter is a [`Store`].
impl AsStore for Limiter {
    type Inner = dyn Store<Error = StoreError>;

    #[inline]
    fn as_store(&self) -> &Self::Inner {
        &*self.0
    }
}

/// A limiter that shares the keys of `local`.
impl<C: Clock + Debug + Send + Sync + 'static> From<LocalLimiter<C>> for Limiter {
    fn from(local: LocalLimiter<C>) -> Self {
        Self(local.0)
    }
}
