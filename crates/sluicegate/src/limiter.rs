//! Limits in memory, or in Redis or Valkey.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, AsStore, Counters, KeyedOperation, Operation, PreparedPolicy, Store, StoreError,
    StoreStatus, Timestamp,
    wait::{Event, Step, WaitRequest, Waiter},
};
use sluicegate_memory::{ClockedStore, SystemClock};
use sluicegate_redis::{Options, RedisStore};
use tokio::time::{Instant, sleep};

use crate::LocalLimiter;

/// Limits in this process, or in Redis or Valkey for all processes together.
///
/// Cheap to clone; all clones share their state. Keys are any bytes. The usage of a key carries over from one
/// policy to another. A key should therefore name the client and what is limited: `login:user7`.
#[derive(Clone, Debug)]
pub struct Limiter(Arc<dyn Store<Error = StoreError>>);

/// Opens the store at a URL.
async fn open(
    url: &str,
    options: Options,
) -> Result<Arc<dyn Store<Error = StoreError>>, StoreError> {
    Ok(match url.split_once(':') {
        Some(("memory", "")) => Arc::new(ClockedStore::<SystemClock>::default()),
        _ => Arc::new(RedisStore::connect_with(url, options).await?),
    })
}

impl Limiter {
    /// Limits in this process, with up to 1 GiB of state.
    #[must_use]
    pub fn in_memory() -> Self {
        LocalLimiter::new().into()
    }

    /// Connects to Redis or Valkey at `url`: `redis://[[user]:password@]host[:port][/db]`,
    /// `rediss://` for TLS, `redis+cluster://host,host`, `redis+sentinel://host,host/name`. `memory:` keeps limits in
    /// this process, as [`Limiter::in_memory`] does.
    ///
    /// ```no_run
    /// use sluicegate::{Limiter, OnError, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::connect("redis://127.0.0.1/").await?;
    /// let policy = "gcra:30/60s:burst=16".parse::<PreparedPolicy>()?.on_error(OnError::Allow);
    /// if !limiter.take("user7", &policy, 1).await?.allowed() {
    ///     println!("too many");
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`StoreError::Settings`] if the URL is invalid, [`StoreError::Unavailable`] if the store does not answer.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::connect_with(url, Options::default()).await
    }

    /// [`Limiter::connect`] with options: deadline, key prefix, bounds, TLS.
    ///
    /// # Errors
    /// As [`Limiter::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, StoreError> {
        open(url, options).await.map(Self)
    }

    /// Takes `cost` units, all or none.
    ///
    /// ```
    /// use sluicegate::{Limiter, Retry, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:1/1s:burst=3,fixed-window:100/day".parse()?;
    /// assert!(limiter.take("user7", &policy, 3).await?.allowed());
    /// let denied = limiter.take("user7", &policy, 1).await?;
    /// assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs_f64() <= 1.0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`], and [`StoreError::Reserve`] unless every limit is of the gcra family or a
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

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed before
    /// `timeout`.
    ///
    /// With limits of the gcra family and `leaky-queue`, this is one reservation: waiting requests pass in
    /// arrival order and evenly spaced, those of other processes included. A future that is dropped while it
    /// waits has used its units. With other limits, this tries again after each retry time.
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
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::take`].
    pub async fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        timeout: Duration,
    ) -> Result<Answer, StoreError> {
        let (key, start) = (key.as_ref(), Instant::now());
        let now = || Timestamp::EPOCH + start.elapsed();
        let deadline = Timestamp::EPOCH + timeout;
        let request = WaitRequest { policy: policy.policy().clone(), cost, deadline };
        let (mut waiter, mut event) = (Waiter::alone(request), Event::Start);
        loop {
            event = match waiter.poll(now(), event) {
                Step::Apply(operation) => {
                    Event::Answered(self.0.apply(key, policy, operation).await?)
                }
                Step::Observe => Event::Observed(None),
                Step::SleepUntil(then) => {
                    sleep(then.since(now())).await;
                    Event::Woken
                }
                Step::Done(answer) => return Ok(answer),
            };
        }
    }

    /// Resets the key, for every policy.
    ///
    /// # Errors
    /// As [`Limiter::charge`].
    pub async fn reset(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
    ) -> Result<Answer, StoreError> {
        self.0.apply(key.as_ref(), policy, Operation::Reset).await
    }

    /// Makes independent takes from several keys in one round trip. The answers are in the same order.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "gcra:30/60s".parse()?;
    /// let answers = limiter.take_many(&[("user7", &policy, 1), ("user8", &policy, 31)]).await;
    /// assert!(answers[0].as_ref().unwrap().allowed());
    /// assert!(!answers[1].as_ref().unwrap().allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn take_many<K: AsRef<[u8]>>(
        &self,
        takes: &[(K, &PreparedPolicy, u32)],
    ) -> Vec<Result<Answer, StoreError>> {
        let operations = takes.iter().map(|(key, policy, cost)| KeyedOperation {
            key: key.as_ref(),
            policy,
            operation: Operation::Take(*cost),
        });
        let operations: Vec<_> = operations.collect();
        self.0.apply_many(&operations).await
    }

    /// Decisions by source, and other counts; all zero without Redis.
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

impl From<LocalLimiter> for Limiter {
    fn from(local: LocalLimiter) -> Self {
        Self(local.0)
    }
}

impl From<RedisStore> for Limiter {
    fn from(store: RedisStore) -> Self {
        Self(Arc::new(store))
    }
}
