//! One limit without a key.

use std::{fmt::Debug, time::Duration};

use sluicegate_core::{Answer, Clock, OperationError, PreparedPolicy};
use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock, WhenFull};

use crate::{HoldOutcome, LocalLimiter, LocalPermit, WaitOptions};

/// The key of a limiter that has one.
const KEY: &[u8] = b"";
/// The least that a table may take; one key takes much less.
const MAX_BYTES: usize = 2 << 20;

/// One limit without a key, in this process: for a whole program, a client or a connection pool.
///
/// Cheap to clone; all clones share the limit.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Limiter, Policy};
///
/// let limiter = Limiter::single(Policy::gcra(30).per(Duration::from_mins(1)).burst(2).build()?);
/// assert!(limiter.check().allowed());
/// assert!(limiter.check().allowed());
/// assert!(!limiter.check().allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SingleLimiter<C = SystemClock> {
    limiter: LocalLimiter<C>,
    policy: PreparedPolicy,
}

impl SingleLimiter {
    /// A limiter of one key under `policy`: a [`Policy`](crate::Policy) or a [`PreparedPolicy`].
    ///
    /// ```
    /// use sluicegate::{PreparedPolicy, SingleLimiter};
    ///
    /// let limiter = SingleLimiter::new("fixed-window:1/1h".parse::<PreparedPolicy>()?);
    /// assert!(limiter.check().allowed());
    /// assert!(!limiter.check().allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    #[must_use]
    pub fn new(policy: impl Into<PreparedPolicy>) -> Self {
        Self::with_clock(policy, SystemClock::new())
    }
}

impl<C: Clock + Debug + Send + Sync + 'static> SingleLimiter<C> {
    /// A limiter in the time of `clock`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{ManualClock, Policy, SingleLimiter};
    ///
    /// let clock = ManualClock::default();
    /// let limiter = SingleLimiter::with_clock("gcra:1/1m".parse::<Policy>()?, clock.clone());
    /// assert!(limiter.check().allowed());
    /// clock.advance(Duration::from_mins(1));
    /// assert!(limiter.check().allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_clock(policy: impl Into<PreparedPolicy>, clock: C) -> Self {
        let store = MemoryStore::bounded(MAX_BYTES, WhenFull::default());
        Self { limiter: ClockedStore::new(store, clock).into(), policy: policy.into() }
    }

    /// The policy.
    #[must_use]
    pub const fn policy(&self) -> &PreparedPolicy {
        &self.policy
    }

    /// Takes one unit, if it is available.
    ///
    /// ```
    /// use sluicegate::{Limiter, Policy, Retry};
    ///
    /// let limiter = Limiter::single("gcra:1/1m".parse::<Policy>()?);
    /// assert!(limiter.check().allowed());
    /// let denied = limiter.check();
    /// assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs() < 60));
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    pub fn check(&self) -> Answer {
        self.take(1)
    }

    /// Takes `cost` units, all or none.
    pub fn take(&self, cost: u32) -> Answer {
        self.limiter.take(KEY, &self.policy, cost)
    }

    /// Returns what [`SingleLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, cost: u32) -> Answer {
        self.limiter.peek(KEY, &self.policy, cost)
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards.
    pub fn charge(&self, cost: u32) -> Answer {
        self.limiter.charge(KEY, &self.policy, cost)
    }

    /// Gives back up to `cost` of the units in use.
    pub fn refund(&self, cost: u32) -> Answer {
        self.limiter.refund(KEY, &self.policy, cost)
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// # Errors
    /// As [`LocalLimiter::reserve`].
    pub fn reserve(&self, cost: u32, max_wait: Duration) -> Result<Answer, OperationError> {
        self.limiter.reserve(KEY, &self.policy, cost, max_wait)
    }

    /// Makes all units available. Whether some were in use.
    pub fn reset(&self) -> bool {
        self.limiter.reset(KEY)
    }

    /// Waits until `cost` units are taken, as [`LocalLimiter::until_ready`] does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, Policy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = Limiter::single("leaky-queue:100/1s".parse::<Policy>()?);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready(1, Duration::from_mins(1)).await.allowed()); // 10 ms apart
    /// }
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn until_ready(&self, cost: u32, wait: impl Into<WaitOptions>) -> Answer {
        self.limiter.until_ready(KEY, &self.policy, cost, wait).await
    }

    /// Blocks the thread until `cost` units are taken, as [`LocalLimiter::blocking_until_ready`] does.
    pub fn blocking_until_ready(&self, cost: u32, wait: impl Into<WaitOptions>) -> Answer {
        self.limiter.blocking_until_ready(KEY, &self.policy, cost, wait)
    }

    /// Holds `cost` units for up to `ttl`, as [`LocalLimiter::hold`] does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, Policy};
    ///
    /// let limiter = Limiter::single(Policy::concurrency(1).per(Duration::from_secs(30)).build()?);
    /// let held = limiter.hold(1, None)?;
    /// assert!(held.allowed());
    /// assert!(!limiter.hold(1, None)?.allowed());
    /// drop(held);
    /// assert!(limiter.hold(1, None)?.allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`].
    pub fn hold(
        &self,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.limiter.hold(KEY, &self.policy, cost, ttl)
    }

    /// Holds `cost` units under an id of 1 to 64 bytes, as [`LocalLimiter::hold_with_id`] does.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{Limiter, Policy};
    ///
    /// let limiter = Limiter::single(Policy::concurrency(1).per(Duration::from_secs(30)).build()?);
    /// let held = limiter.hold_with_id("job 12", 1, None)?;
    /// assert!(held.allowed());
    /// assert!(limiter.hold_with_id("job 12", 1, None)?.allowed(), "it is open already");
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`LocalLimiter::hold_with_id`].
    pub fn hold_with_id(
        &self,
        id: impl AsRef<[u8]>,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.limiter.hold_with_id(KEY, &self.policy, id, cost, ttl)
    }

    /// Waits until `cost` units are held, as [`LocalLimiter::hold_until_ready`] does.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`].
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    pub async fn hold_until_ready(
        &self,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.limiter.hold_until_ready(KEY, &self.policy, cost, ttl, wait).await
    }

    /// Blocks the thread until `cost` units are held, as [`LocalLimiter::blocking_hold_until_ready`] does.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`].
    pub fn blocking_hold_until_ready(
        &self,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
        wait: impl Into<WaitOptions>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, OperationError> {
        self.limiter.blocking_hold_until_ready(KEY, &self.policy, cost, ttl, wait)
    }
}
