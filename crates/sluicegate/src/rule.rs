//! A policy with its settings.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use sluicegate_core::{Policy, PolicyError};
use sluicegate_memory as memory;
use sluicegate_redis as redis;

use crate::{Error, OnError};

/// A policy with its settings. Create it once and keep it; clones are cheap.
///
/// A key's usage carries over when the key is used with another rule: plans can change while they are in
/// use.
///
/// ```
/// use sluicegate::{OnError, Rule};
///
/// let rule: Rule = "gcra:1000/1s".parse()?;
/// let rule = rule.lease(100)?.on_error(OnError::Allow);
/// assert_eq!(rule.policy().to_string(), "gcra:1000/1s");
///
/// let error = "gcra:30/0s".parse::<Rule>().unwrap_err();
/// assert_eq!(error.to_string(), "invalid period `0s`: expected 1ms to 366d");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Rule(Arc<Inner>);

struct Inner {
    redis: redis::PreparedPolicy,
    /// The number of the first store in this process that used the rule, and the policy prepared for that store.
    memory: OnceLock<(u64, memory::PreparedPolicy)>,
}

impl Rule {
    /// A policy without leases that denies while the store is unavailable.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        redis::PreparedPolicy::new(policy).into()
    }

    /// Sets the decision while the store is unavailable. A store in this process is always available.
    #[must_use]
    pub fn on_error(&self, on_error: OnError) -> Self {
        self.0.redis.on_error(on_error).into()
    }

    /// Enables leases: for a key with much traffic, the process takes up to `chunk` units at once and allows
    /// requests from them without calling the store. No effect with a store in this process.
    ///
    /// # Errors
    /// [`Error::Settings`] unless the policy is one limit, `gcra`, `token-bucket` or `leaky-bucket`,
    /// without `borrow` and with `refill=continuous`.
    pub fn lease(&self, chunk: u32) -> Result<Self, Error> {
        self.0.redis.lease(chunk).map(Self::from)
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        self.0.redis.policy()
    }

    pub(crate) fn redis(&self) -> &redis::PreparedPolicy {
        &self.0.redis
    }

    /// The policy prepared for the store with this number, from `look_up` if it is not cached.
    pub(crate) fn memory(
        &self,
        store: u64,
        look_up: impl Fn() -> memory::PreparedPolicy,
    ) -> std::borrow::Cow<'_, memory::PreparedPolicy> {
        match self.0.memory.get_or_init(|| (store, look_up())) {
            (cached, prepared) if *cached == store => std::borrow::Cow::Borrowed(prepared),
            // Only one store is cached.
            _ => std::borrow::Cow::Owned(look_up()),
        }
    }
}

impl From<redis::PreparedPolicy> for Rule {
    fn from(redis: redis::PreparedPolicy) -> Self {
        Self(Arc::new(Inner { redis, memory: OnceLock::new() }))
    }
}

impl From<Policy> for Rule {
    fn from(policy: Policy) -> Self {
        Self::new(&policy)
    }
}

impl FromStr for Rule {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        text.parse::<Policy>().map(Self::from)
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.redis.fmt(formatter)
    }
}
