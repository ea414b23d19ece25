//! Limits in this process.

use std::{borrow::Borrow, fmt::Debug, sync::Arc, thread, time::Duration};

use sluicegate_core::{
    Answer, AsStore, Clock, Decision, HoldError, HoldOperation, MultiKeyAnswer, MultiKeyError,
    MultiKeyOperation, Operation, OperationError, Outcome, PreparedPolicy, Retry, Source,
};
use sluicegate_holds::{HoldGuard, HoldId, HoldWait, WaitOptions};
use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock, WhenFull};
use tokio::time::{Instant, sleep};

use crate::{
    HoldOutcome, LocalPermit,
    hold_outcome::{all_decided, decided, guards},
    multi_key::keyed_takes,
    wait,
};

/// Limits in this process: the calls of [`Limiter`](crate::Limiter) without async. Only a reserve, a hold and a take from
/// several keys can fail: if the policy does not support them.
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

impl<C: Clock + Debug + Send + Sync> LocalLimiter<C> {
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
    pub fn take(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Take(cost))
    }

    /// Returns what [`LocalLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Peek(cost))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards. Later requests
    /// wait until the units are available again.
    pub fn charge(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Charge(cost))
    }

    /// Gives back up to `cost` of the units in use.
    pub fn refund(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Answer {
        self.infallible(key.as_ref(), policy, Operation::Refund(cost))
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
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
    /// # Errors
    /// [`MultiKeyError`] without a key, or if a policy has `concurrency` limits.
    pub fn take_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        takes: impl IntoIterator<Item = (K, P, u32)>,
    ) -> Result<MultiKeyAnswer, MultiKeyError> {
        let takes: Vec<_> = takes.into_iter().collect();
        let (takes, now) = (keyed_takes(&takes), self.0.clock().now());
        let taken = self.0.store().apply_multi_key(MultiKeyOperation::Take, &takes, now)?;
        Ok(MultiKeyAnswer { multi_key: taken, source: Source::Store })
    }

    /// Waits until `cost` units are taken. Returns a denial immediately if that cannot succeed within the timeout of
    /// `wait`, which is a [`Duration`] or [`WaitOptions`].
    ///
    /// It waits on the timers of tokio, also with a [`ManualClock`]. A future that is dropped while it waits may have
    /// used its units.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let limiter = LocalLimiter::new();
    /// let policy: PreparedPolicy = "leaky-queue:100/1s".parse()?;
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("api", &policy, 1, Duration::from_secs(60)).await.allowed());
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
    pub async fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        wait: impl Into<WaitOptions>,
    ) -> Answer {
        let key = key.as_ref();
        let answer = wait::until_ready(&*self.0, key, policy, cost, wait.into()).await;
        answer.unwrap_or_else(|_| self.denied_for_ever(key, policy))
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
    ///     assert!(limiter.blocking_until_ready("user7", &policy, 1, Duration::from_secs(60)).allowed());
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
        wait::blocking_until_ready(policy, cost, wait.into(), |operation| {
            self.infallible(key, policy, operation)
        })
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
    /// let first = limiter.hold("user7", &policy, 1, None)?.permit();
    /// let second = limiter.hold("user7", &policy, 1, None)?.permit();
    /// assert!(!limiter.hold("user7", &policy, 1, None)?.allowed());
    ///
    /// drop(first);
    /// assert!(limiter.hold("user7", &policy, 1, None)?.allowed());
    /// clock.advance(Duration::from_secs(30));
    /// assert!(!second.unwrap().renew().allowed(), "it has expired");
    /// # Ok::<(), sluicegate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`HoldError`] if `ttl` is invalid or missing, if the policy has a `leaky-queue`, or if 65 536 holds of the key are
    /// open.
    pub fn hold(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        self.hold_as(key.as_ref(), policy, HoldId::random(), cost, ttl.into())
    }

    /// [`LocalLimiter::hold`] under an id of 1 to 64 bytes, which names one hold of the key. If it is open already, the
    /// hold is allowed and changes nothing: a repeated request holds once.
    ///
    /// # Errors
    /// As [`LocalLimiter::hold`], and [`HoldError::Id`] if the id is empty or too long.
    pub fn hold_with_id(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        id: impl AsRef<[u8]>,
        cost: u32,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        self.hold_as(key.as_ref(), policy, HoldId::given(id.as_ref()), cost, ttl.into())
    }

    /// Waits until `cost` units are held. Returns a denial if that has not succeeded within the timeout of `wait`, which is
    /// a [`Duration`] or [`WaitOptions`], and immediately if it never can. See
    /// [`Limiter::hold_until_ready`](crate::Limiter::hold_until_ready) for the pace of the attempts.
    ///
    /// It waits on the timers of tokio, also with a [`ManualClock`](crate::ManualClock). A future that is dropped while it
    /// waits holds nothing.
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
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        let (key, ttl, wait) = (key.as_ref(), ttl.into(), HoldWait::new(wait.into()));
        let start = Instant::now();
        loop {
            let waited = start.elapsed();
            let outcome = self.try_hold(key, policy, cost, ttl, &wait, waited)?;
            let HoldOutcome::Denied(answer) = &outcome else { return Ok(outcome) };
            let Some(pause) = wait.pause(waited, answer.retry()) else {
                return Ok(outcome);
            };
            sleep(pause).await;
        }
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
    ///             let wait = Duration::from_secs(60);
    ///             let held = limiter.blocking_hold_until_ready("report", &policy, 1, None, wait);
    ///             assert!(held.unwrap().allowed());
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
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        let (key, ttl, wait) = (key.as_ref(), ttl.into(), HoldWait::new(wait.into()));
        let clock = SystemClock::new();
        loop {
            let waited = clock.uptime();
            let outcome = self.try_hold(key, policy, cost, ttl, &wait, waited)?;
            let HoldOutcome::Denied(answer) = &outcome else { return Ok(outcome) };
            let Some(pause) = wait.pause(waited, answer.retry()) else {
                return Ok(outcome);
            };
            thread::sleep(pause);
        }
    }

    /// One attempt of a request that has waited for `waited`.
    fn try_hold(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        cost: u32,
        ttl: Option<Duration>,
        wait: &HoldWait,
        waited: Duration,
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        if wait.peeks(waited, policy) {
            let peek = self.peek(key, policy, cost);
            // A denial that is the answer is recorded by the hold below.
            if wait.pause(waited, peek.retry()).is_some() {
                return Ok(HoldOutcome::Denied(peek));
            }
        }
        self.hold_as(key, policy, HoldId::random(), cost, ttl)
    }

    fn hold_as(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        id: HoldId,
        cost: u32,
        ttl: Option<Duration>,
    ) -> Result<HoldOutcome<LocalPermit<C>>, HoldError> {
        let guard = HoldGuard::new(&self.0, key, policy, id, ttl);
        let operation = HoldOperation::Hold { id: guard.id(), cost, ttl };
        let decision = self.0.decide_hold(key, policy, operation)?;
        Ok(decided(guard, decision.into()))
    }

    /// Holds units of several keys for up to `ttl`, of all keys or of none. Each permit is settled by itself. Of a key
    /// that is given twice, only the first cost counts, and it has one permit.
    ///
    /// # Errors
    /// [`MultiKeyError`] without a key, and as [`LocalLimiter::hold`].
    pub fn hold_all<K: AsRef<[u8]>, P: Borrow<PreparedPolicy>>(
        &self,
        holds: impl IntoIterator<Item = (K, P, u32)>,
        ttl: impl Into<Option<Duration>>,
    ) -> Result<HoldOutcome<Vec<LocalPermit<C>>, MultiKeyAnswer>, MultiKeyError> {
        let (holds, ttl): (Vec<_>, _) = (holds.into_iter().collect(), ttl.into());
        let (takes, id) = (keyed_takes(&holds), HoldId::random());
        let guards = guards(&self.0, &takes, &id, ttl);
        let operation = MultiKeyOperation::Hold { id: &id, ttl };
        let taken = self.0.store().apply_multi_key(operation, &takes, self.0.clock().now())?;
        let answer = MultiKeyAnswer { multi_key: taken, source: Source::Store };
        Ok(all_decided(guards, answer))
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
