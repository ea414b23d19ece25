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
    /// Number of this limiter in the process.
    number: u64,
    store: MemoryStore,
    clock: SystemClock,
    prepared: PolicyPtrCache,
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
        Self(Arc::new(Inner {
            number,
            store,
            clock: SystemClock::new(),
            prepared: PolicyPtrCache::new(),
        }))
    }

    /// Takes `cost` units, all or none.
    pub fn take(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) -> Decision {
        self.infallible(key.as_ref(), rule, Operation::Take(cost))
    }

    /// Returns what [`LocalLimiter::take`] would return, and changes nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) -> Decision {
        self.infallible(key.as_ref(), rule, Operation::Peek(cost))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards.
    #[expect(unused_must_use, reason = "a charge is always made")]
    pub fn charge(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) {
        self.infallible(key.as_ref(), rule, Operation::Charge(cost));
    }

    /// Gives back up to `cost` of the units in use.
    #[expect(unused_must_use, reason = "a refund is always made")]
    pub fn refund(&self, key: impl AsRef<[u8]>, rule: &Rule, cost: u32) {
        self.infallible(key.as_ref(), rule, Operation::Refund(cost));
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
            let decision = self.infallible(key, rule, wait_operation(rule.policy(), cost, left));
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

    /// Applies an operation other than a reserve, which cannot fail.
    fn infallible(&self, key: &[u8], rule: &Rule, operation: Operation) -> Decision {
        self.ask(key, rule, operation).expect("only a reserve can fail")
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

    /// Applies an operation under a policy without settings.
    #[inline(always)]
    pub(crate) fn decide<E: From<ReserveError>>(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, E> {
        let Inner { store, clock, prepared, .. } = &*self.0;
        let now = clock.now();
        let other;
        let rule = match prepared.find(policy, || store.prepare(policy, now)) {
            Some(rule) => rule,
            None => {
                other = store.prepare(policy, now);
                &other
            }
        };
        store.apply_prepared_as(Request { key, policy: rule, operation }, now)
    }
}

/// Prepared policies by the address of the policy instead of its text, for callers such as a Tower layer that use the
/// same policy object again.
#[derive(Debug)]
struct PolicyPtrCache([OnceLock<(Policy, memory::PreparedPolicy)>; CACHE_SLOTS]);

/// Slots of the cache. Policies without a slot are looked up by their text.
const CACHE_SLOTS: usize = 256;

impl PolicyPtrCache {
    fn new() -> Self {
        Self([const { OnceLock::new() }; CACHE_SLOTS])
    }

    /// The prepared policy, from `look_up` if its slot is free; `None` if another policy has the slot.
    #[inline(always)]
    fn find(
        &self,
        policy: &Policy,
        look_up: impl FnOnce() -> memory::PreparedPolicy,
    ) -> Option<&memory::PreparedPolicy> {
        // Policies are at least 32 bytes apart, and the cache keeps them alive, so that an address is not reused.
        let slot = &self.0[(policy.limits().as_ptr().addr() >> 5) % CACHE_SLOTS];
        let (cached, prepared) = slot.get_or_init(|| (policy.clone(), look_up()));
        cached.is(policy).then_some(prepared)
    }
}

/// The operation to apply when waiting up to `max_wait`.
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
