//! Limits in any store.

use std::{borrow::Borrow, fmt::Debug, sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, AsStore, Clock, Counters, Operation, PreparedPolicy, Request, Store, StoreError,
    StoreStatus,
};
use sluicegate_holds::{PendingRequest, WaitOptions};

use crate::{LocalLimiter, SingleLimiter, multi_key::keyed};

/// Limits in any store: in this process, or in Redis or Valkey for all processes together (the crate
/// `sluicegate-redis`).
///
/// Cheap to clone; all clones share their state. Keys are any bytes. The usage of a key carries over from one
/// policy to another. A key should therefore name the client and what is limited: `login:user7`.
#[derive(Clone, Debug)]
pub struct Limiter(pub(crate) Arc<dyn Store<Error = StoreError>>);

impl Limiter {
    /// Limits in `store`: for example a `RedisStore` of the crate `sluicegate-redis`, or a [`LocalLimiter`].
    ///
    /// ```
    /// use sluicegate::{Limiter, LocalLimiter};
    ///
    /// // Limiter::new(sluicegate_redis::RedisStore::new("redis://127.0.0.1/", Options::default())?)
    /// let limiter = Limiter::new(LocalLimiter::bounded(64 << 20));
    /// ```
    #[must_use]
    pub fn new(store: impl Store<Error = StoreError> + 'static) -> Self {
        Self(Arc::new(store))
    }

    /// Limits in this process, with up to 1 GiB of state. [`LocalLimiter`] has the same calls on
    /// keys without async.
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
    /// - [`StoreError::Operation`] under a policy with `concurrency` limits: hold the units.
    /// - [`StoreError::Corrupt`] if the key holds a value that Sluicegate did not write.
    /// - [`StoreError::Key`] if the key is longer than the store allows.
    /// - [`StoreError::Unavailable`] or [`StoreError::Timeout`] while the store is unavailable, under
    ///   [`OnError::Fail`](crate::OnError::Fail). Otherwise, [`PreparedPolicy::on_error`] decides.
    pub async fn take(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(Request::one(key.as_ref(), policy, Operation::Take(cost))).await
    }

    /// Returns what [`Limiter::take`] would return, and changes nothing.
    ///
    /// # Errors
    /// As [`Limiter::take`], except that the policy may have `concurrency` limits.
    pub async fn peek(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(Request::one(key.as_ref(), policy, Operation::Peek(cost))).await
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards. Later requests
    /// wait until the units are available again.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "token-bucket:1000/1h".parse()?;
    /// assert!(limiter.charge("team7", &policy, 1500).await?.allowed()); // it has used 1500 tokens
    /// assert!(!limiter.take("team7", &policy, 1).await?.allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Unavailable`] or [`StoreError::Timeout`] while the store is unavailable,
    /// whatever `on_error` is.
    pub async fn charge(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
    ) -> Result<Answer, StoreError> {
        self.0.apply(Request::one(key.as_ref(), policy, Operation::Charge(cost))).await
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
        self.0.apply(Request::one(key.as_ref(), policy, Operation::Refund(cost))).await
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
        self.0
            .apply(Request::one(key.as_ref(), policy, Operation::Reserve { cost, max_wait }))
            .await
    }

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed within the timeout of
    /// `wait`, which is a [`Duration`] or [`WaitOptions`].
    ///
    /// It waits on the timers of tokio. For tests under paused time, see [`RuntimeClock`](crate::RuntimeClock).
    ///
    /// With limits of the gcra family and `leaky-queue`, this is one reservation: waiting requests pass in
    /// arrival order and evenly spaced, those of other processes included. With other limits, this tries again after
    /// each retry time; [`Jitter`](crate::Jitter) then separates requests that wait for the same window.
    ///
    /// A future that is dropped before its time has come gives its units back: a later request may then pass at the same
    /// time as one that is already waiting. Units that it could use at once may stay in use.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("api", &policy, 1, Duration::from_mins(1)).await?.allowed());
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
        let take = PendingRequest::take(&self.0, key.as_ref(), policy, cost, wait.into());
        Ok(take.wait().await?.0)
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
        self.0.apply_many(&keyed(Operation::Take(0), &takes)).await
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
    /// assert!(!answer.allowed());
    /// assert_eq!(answer.key, 0, "the user's own limit is binding");
    /// assert_eq!(limiter.peek("team1", &team, 1).await?.remaining, 100);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Arguments`] without a key or with more than [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE).
    pub async fn take_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Result<Answer, StoreError> {
        let takes: Vec<_> = takes.into_iter().collect();
        self.0.apply(Request::all(&keyed(Operation::Take(0), &takes))?).await
    }

    /// Decisions by source, and other counts, since the store was created; all zero for a store in this process.
    #[must_use]
    pub fn counters(&self) -> Counters {
        match self.0.status() {
            StoreStatus::Remote(status) => status.counters,
            StoreStatus::Local(_) => Counters::default(),
        }
    }

    /// Gives unused leased units back to the store. Without this call, they are forfeited. The limiter stays usable.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:1000/1s".parse()?;
    /// assert!(limiter.take("api", &policy.lease(100)?, 1).await?.allowed());
    /// limiter.close().await; // before the program ends
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
