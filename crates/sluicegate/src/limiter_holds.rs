//! Holds in any store.

use std::{borrow::Borrow, time::Duration};

use sluicegate_core::{PreparedPolicy, RequestError, StoreError};
use sluicegate_holds::HoldId;

use crate::{
    HoldOutcome, Limiter, Permit, WaitOptions,
    hold_outcome::{NO_WAIT, all_decided, decided, holding},
};

/// Holds: units that are taken until they are settled.
impl Limiter {
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
    /// As [`Limiter::peek`], and [`StoreError::Hold`] if `ttl` is invalid or missing, if the policy has a `leaky-queue`,
    /// or if 65 536 holds of the key are open.
    pub async fn hold(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome, StoreError> {
        let (key, id) = (key.as_ref(), HoldId::random());
        self.hold_as(key, policy, &id, cost, ttl.into(), NO_WAIT).await
    }

    /// [`Limiter::hold`] under an id of 1 to 64 bytes, which names one hold of the key. If it is open already, the hold
    /// is allowed and changes nothing: a repeated request holds once.
    ///
    /// A future that is dropped while it waits may leave the hold open until it expires, because another permit may have
    /// the same id.
    ///
    /// ```
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "concurrency:5/30s".parse()?;
    /// let first = limiter.hold_with_id("user7", &policy, "job 12", 3, None).await?;
    /// let repeated = limiter.hold_with_id("user7", &policy, "job 12", 3, None).await?;
    /// assert!(first.allowed() && repeated.allowed());
    /// assert_eq!(limiter.peek("user7", &policy, 1).await?.remaining, 2);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        let (key, id) = (key.as_ref(), HoldId::given(id.as_ref()));
        self.hold_as(key, policy, &id, cost, ttl.into(), NO_WAIT).await
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
        let (key, id) = (key.as_ref(), HoldId::random());
        self.hold_as(key, policy, &id, cost, ttl.into(), wait.into()).await
    }

    /// Holds units of several keys for up to `ttl`, of all keys or of none. Each permit is settled by itself. Of a key
    /// that is given twice, only the first cost counts, and it has one permit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{HoldOutcome, Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// // Requests and tokens of one provider: on a Redis Cluster, `{...}` puts both keys into one slot.
    /// let requests: PreparedPolicy = "concurrency:20/30s,gcra:500/1m".parse()?;
    /// let tokens: PreparedPolicy = "token-bucket:10000/1h".parse()?;
    /// let keys = [("{llm}:requests", &requests, 1), ("{llm}:tokens", &tokens, 4000)];
    /// if let HoldOutcome::Allowed(permits) = limiter.hold_all(keys, Duration::from_secs(30)).await? {
    ///     for (permit, used) in permits.into_iter().zip([1, 2310]) {
    ///         assert!(permit.settle(used).await?.allowed());
    ///     }
    /// }
    /// assert_eq!(limiter.peek("{llm}:tokens", &tokens, 1).await?.remaining, 7690);
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Limiter::hold`], and [`StoreError::Arguments`] without a key, with more than [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE), or if the keys are in several slots of a
    /// Redis Cluster.
    pub async fn hold_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<Vec<Permit>>, StoreError> {
        let holds: Vec<_> = holds.into_iter().collect();
        self.hold_keys(&holds, ttl.into(), NO_WAIT).await
    }

    /// Waits until the units of all keys are held, as [`Limiter::hold_until_ready`] does for one key.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::in_memory();
    /// let policy: PreparedPolicy = "concurrency:1/30s".parse()?;
    /// let (reports, wait) = ([("user7", &policy, 1), ("all", &policy, 1)], Duration::from_millis(5));
    /// let held = limiter.hold_all_until_ready(reports, None, wait).await?;
    /// assert!(held.allowed());
    /// assert!(!limiter.hold_all_until_ready(reports, None, wait).await?.allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
    ) -> Result<HoldOutcome<Vec<Permit>>, StoreError> {
        let holds: Vec<_> = holds.into_iter().collect();
        self.hold_keys(&holds, ttl.into(), wait.into()).await
    }

    async fn hold_as(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        id: &HoldId,
        cost: u32,
        ttl: Option<Duration>,
        wait: WaitOptions,
    ) -> Result<HoldOutcome, StoreError> {
        let pending = holding(&self.0, &[(key, policy, cost)], id, ttl, wait);
        Ok(decided(pending.wait().await?))
    }

    async fn hold_keys<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        keys: &[(K, P, u32)],
        ttl: Option<Duration>,
        wait: WaitOptions,
    ) -> Result<HoldOutcome<Vec<Permit>>, StoreError> {
        RequestError::check_count(keys.len())?;
        let pending = holding(&self.0, keys, &HoldId::random(), ttl, wait);
        Ok(all_decided(pending.wait().await?))
    }
}
