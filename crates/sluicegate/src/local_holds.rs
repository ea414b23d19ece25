//! Holds in this process.

use std::{borrow::Borrow, fmt::Debug, time::Duration};

use sluicegate_core::{Answer, Clock, OperationError, PreparedPolicy, RequestError, StoreError};
use sluicegate_holds::{Guards, HoldGuard, HoldId, PendingRequest};
use sluicegate_memory::ClockedStore;

use crate::{
    HoldOutcome, LocalLimiter, LocalPermit, WaitOptions,
    hold_outcome::{NO_WAIT, all_decided, decided, holding},
    wait::block,
};

/// Holds: units that are taken until they are settled.
impl<C: Clock + Debug + Send + Sync + 'static> LocalLimiter<C> {
    /// Holds `cost` units for up to `ttl`, which is a [`Duration`] from 1 ms to 24 h, or `None` for the default of
    /// `concurrency` limits, their shortest period. The permit settles when it is dropped.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{HoldOutcome, LocalLimiter, ManualClock, PreparedPolicy};
    ///
    /// let clock = ManualClock::default();
    /// let limiter = LocalLimiter::with_clock(clock.clone());
    /// let policy: PreparedPolicy = "concurrency:2/30s".parse()?;
    /// let first = limiter.hold("user7", &policy, 1, None)?;
    /// let HoldOutcome::Allowed(second) = limiter.hold("user7", &policy, 1, None)? else {
    ///     panic!("two requests are allowed at one time");
    /// };
    /// assert!(!limiter.hold("user7", &policy, 1, None)?.allowed());
    ///
    /// drop(first);
    /// assert!(limiter.hold("user7", &policy, 1, None)?.allowed());
    /// clock.advance(Duration::from_secs(30));
    /// assert!(!second.renew().allowed(), "it has expired");
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`] if `ttl` is invalid or missing, if the policy has a `leaky-queue`, or if 65 536 holds of the key are
    /// open.
    pub fn hold(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.hold_as(key.as_ref(), policy, HoldId::random(), cost, ttl.into())
    }

    /// [`LocalLimiter::hold`] under an id of 1 to 64 bytes, which names one hold of the key. If it is open already, the
    /// hold is allowed and changes nothing: a repeated request holds once.
    ///
    /// ```
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "concurrency:5/30s".parse()?;
    /// let first = limiter.hold_with_id("user7", &policy, "job 12", 3, None)?;
    /// let repeated = limiter.hold_with_id("user7", &policy, "job 12", 3, None)?;
    /// assert!(first.allowed() && repeated.allowed());
    /// assert_eq!(limiter.peek("user7", &policy, 1).remaining, 2);
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`], and [`HoldError::Id`](crate::HoldError::Id) if the id is empty or too long.
    pub fn hold_with_id(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        id: impl AsRef<[u8]>,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.hold_as(key.as_ref(), policy, HoldId::given(id.as_ref()), cost, ttl.into())
    }

    /// Waits until `cost` units are held. Returns a denial if that has not succeeded within the timeout of `wait`, which is
    /// a [`Duration`] or [`WaitOptions`], and immediately if it never can. See
    /// [`Limiter::hold_until_ready`](crate::Limiter::hold_until_ready) for the pace of the attempts.
    ///
    /// It waits on the timers of tokio, whatever the clock: a [`ManualClock`](crate::ManualClock) does not advance
    /// while it waits, a [`RuntimeClock`](crate::RuntimeClock) does. A future that is dropped while it waits holds nothing.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`].
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
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        let pending =
            holding(&self.0, &[(key, policy, cost)], &HoldId::random(), ttl.into(), wait.into());
        pending.wait().await.map(decided).map_err(operation_error)
    }

    /// [`LocalLimiter::hold_until_ready`] that blocks the thread, in real time, whatever the clock.
    ///
    /// ```
    /// use std::{thread, time::Duration};
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "concurrency:2/30s".parse()?;
    /// thread::scope(|scope| {
    ///     for _ in 0..6 {
    ///         scope.spawn(|| {
    ///             let wait = Duration::from_mins(1);
    ///             let held = limiter.blocking_hold_until_ready("report", &policy, 1, None, wait);
    ///             assert!(held.is_ok_and(|held| held.allowed()));
    ///         });
    ///     }
    /// });
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`].
    pub fn blocking_hold_until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        let pending =
            holding(&self.0, &[(key, policy, cost)], &HoldId::random(), ttl.into(), wait.into());
        block(pending).map(decided).map_err(operation_error)
    }

    /// Holds units of several keys for up to `ttl`, of all keys or of none. Each permit is settled by itself. Of a key
    /// that is given twice, only the first cost counts, and it has one permit.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{HoldOutcome, LocalLimiter, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::new();
    /// let requests: PreparedPolicy = "concurrency:20/30s".parse()?;
    /// let tokens: PreparedPolicy = "token-bucket:10000/1h".parse()?;
    /// let keys = [("requests", &requests, 1), ("tokens", &tokens, 4000)];
    /// if let HoldOutcome::Allowed(permits) = limiter.hold_all(keys, Duration::from_secs(30))? {
    ///     for (permit, used) in permits.into_iter().zip([1, 2310]) {
    ///         assert!(permit.settle(used).allowed());
    ///     }
    /// }
    /// assert_eq!(limiter.peek("tokens", &tokens, 1).remaining, 7690);
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`] without a key or with more than [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE), and as [`LocalLimiter::hold`].
    pub fn hold_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<Vec<LocalPermit<C>>>, OperationError> {
        let holds: Vec<_> = holds.into_iter().collect();
        block(self.holding(&holds, ttl.into(), NO_WAIT)?).map(all_decided).map_err(operation_error)
    }

    /// Waits until the units of all keys are held, as [`LocalLimiter::hold_until_ready`] does for one key.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold_all`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn hold_all_until_ready<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<Vec<LocalPermit<C>>>, OperationError> {
        let holds: Vec<_> = holds.into_iter().collect();
        let pending = self.holding(&holds, ttl.into(), wait.into())?;
        pending.wait().await.map(all_decided).map_err(operation_error)
    }

    /// [`LocalLimiter::hold_all_until_ready`] that blocks the thread, in real time, whatever the clock.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold_all`].
    pub fn blocking_hold_all_until_ready<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<Vec<LocalPermit<C>>>, OperationError> {
        let holds: Vec<_> = holds.into_iter().collect();
        let pending = self.holding(&holds, ttl.into(), wait.into())?;
        block(pending).map(all_decided).map_err(operation_error)
    }

    fn hold_as(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        id: HoldId,
        cost: u32,
        ttl: Option<Duration>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        let mut guard = HoldGuard::new(&self.0, key, policy, id, ttl);
        let answer = Answer::from(self.0.decide(key, policy, guard.hold(cost))?);
        guard.decide(&answer);
        Ok(decided((answer, Guards::from([guard]))))
    }

    fn holding<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        keys: &[(K, P, u32)],
        ttl: Option<Duration>,
        wait: WaitOptions,
    ) -> Result<PendingRequest<ClockedStore<C>>, OperationError> {
        RequestError::check_count(keys.len())?;
        Ok(holding(&self.0, keys, &HoldId::random(), ttl, wait))
    }
}

/// The error of a store in this process.
fn operation_error(error: StoreError) -> OperationError {
    match error {
        StoreError::Operation(error) => error,
        StoreError::Hold(error) => error.into(),
        error => unreachable!("a store in this process is available: {error}"),
    }
}
