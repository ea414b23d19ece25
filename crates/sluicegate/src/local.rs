//! Limits in this process.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use sluicegate_core::{Clock, Decision, Operation, Outcome, Policy, ReserveError, Retry, Store};
use sluicegate_memory::{self as memory, MemoryStore, Request, SystemClock, WhenFull};

use crate::Rule;

/// Limits in this process: no async, and no errors, except for a reserve that the policy does not support.
///
/// Cheap to clone; all clones share their keys. Memory is bounded: with one limit of the gcra family, or most
/// fixed windows, a key takes sixteen bytes. A key is forgotten once it is unused again.
///
/// ```
/// use sluicegate::{LocalLimiter, Rule};
///
/// let limiter = LocalLimiter::new();
/// let rule: Rule = "fixed-window:2/1h".parse()?;
/// assert!(limiter.take("user7", &rule, 2).allowed());
/// assert!(!limiter.take("user7", &rule, 1).allowed());
/// limiter.refund("user7", &rule, 1);
/// assert!(limiter.take("user7", &rule, 1).allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocalLimiter(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Which of this process's.
    number: u64,
    store: MemoryStore,
    clock: SystemClock,
    first: First,
}

impl LocalLimiter {
    /// Up to 1 GiB of state. When it is full, new keys are denied.
    #[must_use]
    pub fn new() -> Self {
        Self::bounded(MemoryStore::DEFAULT_MAX_BYTES)
    }

    /// Up to `max_bytes` of state, at least 2 MiB.
    #[must_use]
    pub fn bounded(max_bytes: usize) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let store = MemoryStore::bounded(max_bytes, WhenFull::default());
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        Self(Arc::new(Inner { number, store, clock: SystemClock::new(), first: First::new() }))
    }

    /// Takes `cost` units, all or none.
    pub fn take(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) -> Decision {
        self.certain(key.as_ref(), rule, Operation::Take(cost))
    }

    /// Returns what [`LocalLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) -> Decision {
        self.certain(key.as_ref(), rule, Operation::Peek(cost))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards.
    #[expect(unused_must_use, reason = "what was charged is charged, whatever is answered")]
    pub fn charge(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) {
        self.certain(key.as_ref(), rule, Operation::Charge(cost));
    }

    /// Gives back up to `cost` of the units in use.
    #[expect(unused_must_use, reason = "what was given back is, whatever is answered")]
    pub fn refund(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) {
        self.certain(key.as_ref(), rule, Operation::Refund(cost));
    }

    /// Takes `cost` units now, for use after the answer's `delay`, which is at most `max_wait`.
    ///
    /// # Errors
    /// [`ReserveError`] unless every limit is of the gcra family or a `leaky-queue`.
    pub fn reserve(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, ReserveError> {
        self.ask(key.as_ref(), rule, Operation::Reserve { cost, max_wait })
    }

    /// Resets the key.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.0.store.reset(key.as_ref(), self.0.clock.now());
    }

    /// Blocks the thread until `cost` units are taken. Returns a denial immediately if that cannot succeed
    /// before `timeout`.
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate::{LocalLimiter, Rule};
    ///
    /// let (limiter, rule) = (LocalLimiter::new(), "gcra:100/1s:burst=1".parse::<Rule>()?);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("user7", &rule, 1, Duration::from_secs(60)).allowed());
    /// }
    /// // The next unit is available in 10 ms.
    /// assert!(!limiter.until_ready("user7", &rule, 1, Duration::from_millis(1)).allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn until_ready(
        &self,
        key: impl AsRef<[u8]>,
        rule: &Rule,
        cost: u32,
        timeout: Duration,
    ) -> Decision {
        let (key, start) = (key.as_ref(), self.0.clock.uptime());
        loop {
            let left = timeout.saturating_sub(self.0.clock.uptime().saturating_sub(start));
            let decision = self.certain(key, rule, wait_operation(rule.policy(), cost, left));
            match decision.outcome {
                Outcome::Allow { delay } => {
                    std::thread::sleep(delay);
                    return decision;
                }
                Outcome::Deny { retry: Retry::After(wait) }
                    if wait <= left && !rule.policy().can_reserve() =>
                {
                    std::thread::sleep(wait);
                }
                Outcome::Deny { .. } => return decision,
            }
        }
    }

    /// Number of stored keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.store.len()
    }

    /// Whether no key is stored.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// An operation that cannot fail.
    fn certain(&self, key: &[u8], rule: &Rule, operation: Operation) -> Decision {
        self.ask(key, rule, operation)
            .expect("only a reserve fails, and only where it is not asked for")
    }

    pub(crate) fn ask(
        &self,
        key: &[u8],
        rule: &Rule,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        let Inner { number, store, clock, .. } = &*self.0;
        let now = clock.now();
        let rule = rule.memory(*number, || store.prepare(rule.policy(), now));
        store.apply_prepared(Request { key, policy: &rule, operation }, now)
    }

    /// Asks under a policy that was given alone.
    #[inline(always)]
    pub(crate) fn decide<E: From<ReserveError>>(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, E> {
        let Inner { store, clock, first, .. } = &*self.0;
        let now = clock.now();
        let other;
        let rule = match first.find(policy, || store.prepare(policy, now)) {
            Some(rule) => rule,
            None => {
                other = store.prepare(policy, now);
                &other
            }
        };
        store.apply_prepared_as(Request { key, policy: rule, operation }, now)
    }
}

/// The rules of policies that were asked for first, found by where the policy is, and not by its text: those
/// of a layer, which asks under the same again and again.
#[derive(Debug)]
struct First([OnceLock<(Policy, memory::PreparedPolicy)>; PLACES]);

/// Places for them: who has more looks some of them up by their text.
const PLACES: usize = 256;

impl First {
    fn new() -> Self {
        Self([const { OnceLock::new() }; PLACES])
    }

    /// The rule of a policy, which `look_up` tells if its place is free; `None` where that is another's.
    #[inline(always)]
    fn find(
        &self,
        policy: &Policy,
        look_up: impl FnOnce() -> memory::PreparedPolicy,
    ) -> Option<&memory::PreparedPolicy> {
        // Objects are at least 32 bytes apart, and one that is kept here keeps its place.
        let place = &self.0[(policy.limits().as_ptr().addr() >> 5) % PLACES];
        let (known, rule) = place.get_or_init(|| (policy.clone(), look_up()));
        known.is(policy).then_some(rule)
    }
}

/// The operation that a caller applies that waits up to `max_wait`.
pub(crate) fn wait_operation(policy: &Policy, cost: u32, max_wait: Duration) -> Operation {
    if policy.can_reserve() { Operation::Reserve { cost, max_wait } } else { Operation::Take(cost) }
}

impl Default for LocalLimiter {
    fn default() -> Self {
        Self::new()
    }
}

impl Store for LocalLimiter {
    type Error = ReserveError;

    async fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, ReserveError> {
        self.decide(key, policy, operation)
    }

    #[inline(always)]
    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, ReserveError>> {
        Some(self.decide(key, policy, operation))
    }
}
