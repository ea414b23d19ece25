//! Limits in this process.

use std::{borrow::Borrow, fmt::Debug, sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, AsStore, Clock, Decision, KeyedOperation, Operation, OperationError, Outcome,
    PreparedPolicy, Request, Retry,
};
use sluicegate_holds::{PendingRequest, WaitOptions};
use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock, WhenFull};

use crate::{multi_key::keyed, wait::block};

/// Limits in this process: the calls of [`Limiter`](crate::Limiter) on keys, without async. Those that wait have a form
/// for tasks and, with `blocking_` in its name, one for threads. Only a reserve, a hold and a take from several keys
/// can fail: if the policy does not support them.
///
/// Under a policy with `concurrency` limits, units can only be held: `take`, `charge`, `refund` and `until_ready` change
/// nothing, and answer with a denial that [never](Retry::Never) passes.
///
/// Cheap to clone; all clones share their keys. Keys are any bytes. Memory is bounded: with one limit of the gcra
/// family, or most fixed windows, a key takes sixteen bytes. A key is forgotten once it is unused again.
///
/// ```
/// use sluicegate::{LocalLimiter, PreparedPolicy};
///
/// let limiter = LocalLimiter::new();
/// let policy: PreparedPolicy = "fixed-window:2/1h".parse()?;
/// assert!(limiter.take("user7", &policy, 2).allowed());
/// assert!(!limiter.take("user7", &policy, 1).allowed());
/// assert_eq!(limiter.refund("user7", &policy, 1).remaining, 1);
/// assert!(limiter.take("user7", &policy, 1).allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[derive(Debug)]
pub struct LocalLimiter<C = SystemClock>(pub(crate) Arc<ClockedStore<C>>);

impl LocalLimiter {
    /// A limiter with up to 1 GiB of state. When it is full, new keys are denied.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(MemoryStore::DEFAULT_MAX_BYTES)
    }

    /// A limiter with up to `max_bytes` of state, at least 2 MiB.
    #[must_use]
    pub fn bounded(max_bytes: usize) -> Self {
        let store = MemoryStore::bounded(max_bytes, WhenFull::default());
        ClockedStore::new(store, SystemClock::new()).into()
    }
}

impl<C: Clock + Debug + Send + Sync + 'static> LocalLimiter<C> {
    /// A limiter in the time of `clock`, with up to 1 GiB of state.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, ManualClock, PreparedPolicy};
    ///
    /// let clock = ManualClock::default();
    /// let limiter = LocalLimiter::with_clock(clock.clone());
    /// let policy: PreparedPolicy = "fixed-window:1/1h".parse()?;
    /// assert!(limiter.take("user7", &policy, 1).allowed());
    /// clock.advance(Duration::from_secs(3599));
    /// assert!(!limiter.take("user7", &policy, 1).allowed());
    /// clock.advance(Duration::from_secs(1));
    /// assert!(limiter.take("user7", &policy, 1).allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    #[must_use]
    pub fn with_clock(clock: C) -> Self {
        ClockedStore::new(MemoryStore::new(), clock).into()
    }

    /// Takes `cost` units, all or none.
    ///
    /// ```
    /// use sluicegate::{LocalLimiter, PreparedPolicy, Retry};
    ///
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "gcra:1/1s:burst=3,fixed-window:100/day".parse()?;
    /// assert_eq!(limiter.take("user7", &policy, 3).remaining, 0);
    /// let denied = limiter.take("user7", &policy, 1);
    /// assert!(matches!(denied.retry(), Some(Retry::After(wait)) if wait.as_secs_f64() <= 1.0));
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    pub fn take(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Take(cost))
    }

    /// Returns what [`LocalLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Peek(cost))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards. Later requests
    /// wait until the units are available again.
    ///
    /// ```
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "token-bucket:1000/1h".parse()?;
    /// assert!(limiter.charge("team7", &policy, 1500).allowed()); // it has used 1500 tokens
    /// assert!(!limiter.take("team7", &policy, 1).allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    pub fn charge(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Charge(cost))
    }

    /// Gives back up to `cost` of the units in use.
    pub fn refund(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Refund(cost))
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, ManualClock, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::with_clock(ManualClock::default());
    /// let policy: PreparedPolicy = "gcra:1/1s:burst=1".parse()?;
    /// let max_wait = Duration::from_secs(1);
    /// assert_eq!(limiter.reserve("api", &policy, 1, max_wait)?.delay(), Duration::ZERO);
    /// assert_eq!(limiter.reserve("api", &policy, 1, max_wait)?.delay(), Duration::from_secs(1));
    /// assert!(!limiter.reserve("api", &policy, 1, max_wait)?.allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`] unless every limit is of the gcra family or a `leaky-queue`.
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Answer, OperationError> {
        let operation = Operation::Reserve { cost, max_wait };
        self.0.decide(key.as_ref(), policy, operation).map(Answer::from)
    }

    /// Resets the key, for every policy. Whether it had units in use.
    pub fn reset(&self, key: impl AsRef<[u8]>) -> bool {
        self.0.store().reset(key.as_ref(), self.0.clock().now())
    }

    /// Makes independent takes from several keys. The answers are in the same order.
    #[must_use]
    pub fn take_many<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Vec<Answer> {
        let takes = takes.into_iter();
        takes.map(|(key, policy, cost)| self.take(key, policy.borrow(), cost)).collect()
    }

    /// Takes from several keys, from all of them or from none. If a key is given twice, only the first take counts.
    ///
    /// ```
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let limiter = LocalLimiter::new();
    /// let user: PreparedPolicy = "gcra:5/1m".parse()?;
    /// let team: PreparedPolicy = "gcra:100/1m".parse()?;
    /// let answer = limiter.take_all([("user7", &user, 6), ("team1", &team, 6)])?;
    /// assert!(!answer.allowed());
    /// assert_eq!(answer.key, 0, "the user's own limit is binding");
    /// assert_eq!(limiter.peek("team1", &team, 1).remaining, 100);
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`OperationError`] without a key or with more than [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE), or if a policy has
    /// `concurrency` limits.
    pub fn take_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Result<Answer, OperationError> {
        let takes: Vec<_> = takes.into_iter().collect();
        self.decide_all(&keyed(Operation::Take(0), &takes))
    }

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed within the timeout of
    /// `wait`, which is a [`Duration`] or [`WaitOptions`].
    ///
    /// It waits on the timers of tokio, whatever the clock, and tries windows and logs again by the clock. A
    /// [`ManualClock`] does not advance while it waits; under paused time, use a [`RuntimeClock`]. A future that is
    /// dropped while it waits gives its units back.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("api", &policy, 1, Duration::from_mins(1)).await.allowed());
    /// }
    /// # Ok::<(), sluicegate::Error>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// A wait is needed outside of a tokio runtime with timers.
    ///
    /// [`ManualClock`]: crate::ManualClock
    /// [`RuntimeClock`]: crate::RuntimeClock
    pub async fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        wait: impl Into<WaitOptions>,
    ) -> Answer {
        let key = key.as_ref();
        let take = PendingRequest::take(&self.0, key, policy, cost, wait.into());
        take.wait().await.map_or_else(|_| self.denied_for_ever(key, policy), |(answer, _)| answer)
    }

    /// Blocks the thread until `cost` units are taken. Returns a denial immediately if that cannot succeed within the
    /// timeout of `wait`, which is a [`Duration`] or [`WaitOptions`]. Waits in real time, whatever the clock.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let (limiter, policy) = (LocalLimiter::new(), "gcra:100/1s:burst=1".parse::<PreparedPolicy>()?);
    /// for _ in 0..3 {
    ///     assert!(limiter.blocking_until_ready("user7", &policy, 1, Duration::from_mins(1)).allowed());
    /// }
    /// // The next unit is available in 10 ms.
    /// assert!(!limiter.blocking_until_ready("user7", &policy, 1, Duration::from_millis(1)).allowed());
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    pub fn blocking_until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        wait: impl Into<WaitOptions>,
    ) -> Answer {
        let key = key.as_ref();
        let take = PendingRequest::take(&self.0, key, policy, cost, wait.into());
        block(take).map_or_else(|_| self.denied_for_ever(key, policy), |(answer, _)| answer)
    }

    /// Number of stored keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.store().len()
    }

    /// Whether no key is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Applies an operation to several keys.
    pub(crate) fn decide_all(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Result<Answer, OperationError> {
        self.0.store().apply_all(Request::all(operations)?, self.0.clock().now())
    }

    /// Applies an operation that every policy without `concurrency` supports.
    fn infallible(&self, key: &[u8], policy: &PreparedPolicy, operation: Operation) -> Answer {
        match self.0.decide(key, policy, operation) {
            Ok(decision) => decision.into(),
            Err(_) => self.denied_for_ever(key, policy),
        }
    }

    /// The answer to an operation that the policy does not support: it never passes.
    #[cold]
    fn denied_for_ever(&self, key: &[u8], policy: &PreparedPolicy) -> Answer {
        let peek = self.0.decide(key, policy, Operation::Peek(0));
        let decision = peek.expect("every policy supports a peek");
        Decision { outcome: Outcome::Deny { retry: Retry::Never }, ..decision }.into()
    }
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self::new()
    }
}

impl<C> Clone for LocalLimiter<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

/// A limiter over a table with settings of its own: what happens when it is full, and keys of a state file.
///
/// ```
/// use sluicegate::{ClockedStore, LocalLimiter, MemoryStore, PreparedPolicy, SystemClock, WhenFull};
///
/// // While 64 MiB are full, new keys are allowed, uncounted.
/// let table = MemoryStore::bounded(64 << 20, WhenFull::Allow);
/// let limiter = LocalLimiter::from(ClockedStore::new(table, SystemClock::new()));
/// let policy: PreparedPolicy = "gcra:30/1m".parse()?;
/// assert!(limiter.take("user7", &policy, 1).allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
impl<C> From<ClockedStore<C>> for LocalLimiter<C> {
    fn from(store: ClockedStore<C>) -> Self {
        Self(Arc::new(store))
    }
}

/// A limiter is a [`Store`](sluicegate_core::Store).
impl<C: Clock + Debug + Send + Sync> AsStore for LocalLimiter<C> {
    type Inner = ClockedStore<C>;

    #[inline]
    fn as_store(&self) -> &ClockedStore<C> {
        &self.0
    }
}
