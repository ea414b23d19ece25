//! A policy, and how it is to be asked for.

use std::{
    fmt,
    str::FromStr,
    sync::{Arc, OnceLock},
};

use sluicegate_core::{Policy, PolicyError};
use sluicegate_memory as memory;
use sluicegate_redis as redis;

use crate::{Error, OnError};

/// A policy, and how it is to be asked for. Make it once, keep it, and clone it freely.
///
/// What was used of a key stays used when it is asked for under another rule, so plans may change while
/// they are in use.
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
    redis: redis::Rule,
    /// The rule as the store in this process that asked for it first knows it.
    memory: OnceLock<(u64, memory::Rule)>,
}

impl Rule {
    /// A policy without leases, under which all is denied while Redis is away.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        redis::Rule::new(policy).into()
    }

    /// The same, with what is answered while Redis is away. In this process, nothing ever is.
    #[must_use]
    pub fn on_error(&self, on_error: OnError) -> Self {
        self.0.redis.on_error(on_error).into()
    }

    /// The same, with leases: a key that is asked for again and again is asked for in chunks of up to
    /// `chunk` units, which are handed out here. In this process there is nothing to spare.
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

    pub(crate) fn redis(&self) -> &redis::Rule {
        &self.0.redis
    }

    /// The rule as the store of this number knows it, which `look_up` tells.
    pub(crate) fn memory(
        &self,
        store: u64,
        look_up: impl Fn() -> memory::Rule,
    ) -> std::borrow::Cow<'_, memory::Rule> {
        match self.0.memory.get_or_init(|| (store, look_up())) {
            (known, rule) if *known == store => std::borrow::Cow::Borrowed(rule),
            // A second store: it has its own.
            _ => std::borrow::Cow::Owned(look_up()),
        }
    }
}

impl From<redis::Rule> for Rule {
    fn from(redis: redis::Rule) -> Self {
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
