//! Limits in this process.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{
    AsStore, Clock, Decision, Operation, PreparedPolicy, ReserveError, Timestamp,
    wait::{Event, Step, WaitRequest, Waiter},
};
use sluicegate_memory::{ClockedStore, MemoryStore, SystemClock, WhenFull};

/// Limits in this process: no async, and no errors, except for a reserve that the policy does not support.
///
/// Cheap to clone; all clones share their keys. Memory is bounded: with one limit of the gcra family, or most
/// fixed windows, a key takes sixteen bytes. A key is forgotten once it is unused again.
///
/// ```
/// use sluicegate::{LocalLimiter, PreparedPolicy};
///
/// let limiter = LocalLimiter::new();
/// let policy: PreparedPolicy = "fixed-window:2/1h".parse()?;
/// assert!(limiter.take("user7", &policy, 2).allowed());
/// assert!(!limiter.take("user7", &policy, 1).allowed());
/// limiter.refund("user7", &policy, 1);
/// assert!(limiter.take("user7", &policy, 1).allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalLimiter(pub(crate) Arc<ClockedStore>);

impl LocalLimiter {
    /// Up to 1 GiB of state. When it is full, new keys are denied.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(MemoryStore::DEFAULT_MAX_BYTES)
    }

    /// Up to `max_bytes` of state, at least 2 MiB.
    #[must_use]
    pub fn bounded(max_bytes: usize) -> Self {
        let store = MemoryStore::bounded(max_bytes, WhenFull::default());
        Self(Arc::new(ClockedStore::new(store, SystemClock::new())))
    }

    /// Takes `cost` units, all or none.
    pub fn take(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Decision {
        self.infallible(key.as_ref(), policy, Operation::Take(cost))
    }

    /// Returns what [`LocalLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) -> Decision {
        self.infallible(key.as_ref(), policy, Operation::Peek(cost))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards.
    #[expect(unused_must_use, reason = "a charge is always made")]
    pub fn charge(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) {
        self.infallible(key.as_ref(), policy, Operation::Charge(cost));
    }

    /// Gives back up to `cost` of the units in use.
    #[expect(unused_must_use, reason = "a refund is always made")]
    pub fn refund(&self, key: impl AsRef<[u8]>, policy: &PreparedPolicy, cost: u32) {
        self.infallible(key.as_ref(), policy, Operation::Refund(cost));
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// # Errors
    /// [`ReserveError`] unless every limit is of the gcra family or a `leaky-queue`.
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, ReserveError> {
        self.decide(key.as_ref(), policy, Operation::Reserve { cost, max_wait })
    }

    /// Resets the key.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.0.store().reset(key.as_ref(), self.0.clock().now());
    }

    /// Blocks the thread until `cost` units are taken. Returns a denial immediately if that cannot succeed
    /// before `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, PreparedPolicy};
    ///
    /// let (limiter, policy) = (LocalLimiter::new(), "gcra:100/1s:burst=1".parse::<PreparedPolicy>()?);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("user7", &policy, 1, Duration::from_secs(60)).allowed());
    /// }
    /// // The next unit is available in 10 ms.
    /// assert!(!limiter.until_ready("user7", &policy, 1, Duration::from_millis(1)).allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        policy: &PreparedPolicy,
        cost: u32,
        timeout: Duration,
    ) -> Decision {
        let (key, clock) = (key.as_ref(), self.0.clock());
        let start = clock.uptime();
        let elapsed = || Timestamp::EPOCH + clock.uptime().saturating_sub(start);
        let deadline = Timestamp::EPOCH + timeout;
        let request = WaitRequest { policy: policy.policy().clone(), cost, deadline };
        let (mut waiter, mut now, mut event) = (Waiter::alone(request), elapsed(), Event::Start);
        loop {
            event = match waiter.poll(now, event) {
                Step::Apply(operation) => {
                    Event::Answered(self.infallible(key, policy, operation).into())
                }
                Step::Observe => Event::Observed(None),
                Step::SleepUntil(then) => {
                    std::thread::sleep(then.since(elapsed()));
                    now = elapsed();
                    Event::Woken
                }
                Step::Done(answer) => return answer.decision,
            };
        }
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

    /// Applies an operation that cannot fail: only a reserve can, unless the policy supports it.
    fn infallible(&self, key: &[u8], policy: &PreparedPolicy, operation: Operation) -> Decision {
        self.decide(key, policy, operation)
            .expect("only a reserve can fail, and only under a policy that does not support it")
    }

    fn decide(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        self.0.decide(key, policy, operation)
    }
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self::new()
    }
}

/// A limiter is a [`Store`](sluicegate_core::Store).
impl AsStore for LocalLimiter {
    type Inner = ClockedStore;

    #[inline]
    fn as_store(&self) -> &ClockedStore {
        &self.0
    }
}
