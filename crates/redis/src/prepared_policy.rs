//! Policies prepared for the store.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sluicegate_core::{GcraName, Limit, Policy, PolicyError};

use crate::{Share, StoreError, script::Plan};

/// The decision while the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Deny (fail closed).
    #[default]
    Deny,
    /// Allow (fail open).
    Allow,
    /// Decide in this process, with a share of the policy, starting from the usage in the store's last
    /// replies. With a share of 1/n, `n` processes together admit no more than the policy.
    Local(Share),
}

/// A policy with its settings. Create it once and keep it; clones are cheap.
///
/// ```
/// use sluicegate_redis::{OnError, PreparedPolicy, Share};
///
/// let rule: PreparedPolicy = "gcra:1000/1s".parse()?;
/// // Leases of up to 100 units; a quarter of the policy in this process while Redis is unavailable.
/// let rule = rule.lease(100)?.on_error(OnError::Local(Share::of(1, 4)?));
/// assert_eq!(rule.policy().to_string(), "gcra:1000/1s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PreparedPolicy(Arc<Inner>);

struct Inner {
    /// Identity: the same for all clones, and unique otherwise.
    number: u64,
    policy: Policy,
    plan: Arc<Plan>,
    on_error: OnError,
    /// The policy of [`OnError::Local`].
    local: Policy,
    /// Maximum units of a chunk; 0 or 1 for no leases.
    chunk: u32,
    /// Whether denials may be cached until their retry time.
    cached: bool,
}

impl PreparedPolicy {
    /// A policy without leases that denies while the store is unavailable.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self::with(Inner {
            number: 0,
            policy: policy.clone(),
            plan: Arc::new(Plan::new(policy)),
            on_error: OnError::default(),
            local: policy.clone(),
            chunk: 0,
            cached: !policy.limits().iter().any(Limit::count_all),
        })
    }

    fn with(inner: Inner) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        Self(Arc::new(Inner { number: NUMBERS.fetch_add(1, Ordering::Relaxed), ..inner }))
    }

    /// Sets the decision while the store is unavailable.
    #[must_use]
    pub fn on_error(&self, on_error: OnError) -> Self {
        let local = match on_error {
            OnError::Local(share) => self.0.policy.share(share),
            OnError::Deny | OnError::Allow => self.0.policy.clone(),
        };
        Self::with(Inner { on_error, local, ..self.parts() })
    }

    /// Enables leases: for a key with much traffic, the process takes up to `chunk` units at once and allows
    /// requests from them without calling the store. 0 or 1 disables leases.
    ///
    /// # Errors
    /// [`StoreError::Settings`] unless the policy is one limit, `gcra`, `token-bucket` or
    /// `leaky-bucket`, without `borrow` and with `refill=continuous`. For other policies, taking a chunk
    /// differs from taking its units one by one.
    pub fn lease(&self, chunk: u32) -> Result<Self, StoreError> {
        let fits = |policy: &Policy| {
            policy.as_gcra().is_some_and(|it| it.name() != GcraName::LeakyQueue && !it.borrow())
        };
        if chunk > 1 && !fits(&self.0.policy) {
            return Err(StoreError::Settings(format!(
                "invalid policy `{}` for a lease: expected one limit of gcra, token-bucket or leaky-bucket \
                 without `borrow`",
                self.0.policy
            )));
        }
        Ok(Self::with(Inner { chunk, ..self.parts() }))
    }

    fn parts(&self) -> Inner {
        let Inner { number, policy, plan, on_error, local, chunk, cached } = &*self.0;
        Inner {
            number: *number,
            policy: policy.clone(),
            plan: Arc::clone(plan),
            on_error: *on_error,
            local: local.clone(),
            chunk: *chunk,
            cached: *cached,
        }
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The policy of [`OnError::Local`], if that is set.
    #[must_use]
    pub fn local_policy(&self) -> Option<&Policy> {
        matches!(self.0.on_error, OnError::Local(_)).then_some(&self.0.local)
    }

    pub(crate) fn number(&self) -> u64 {
        self.0.number
    }

    pub(crate) fn plan(&self) -> &Plan {
        &self.0.plan
    }

    pub(crate) fn on_unavailable(&self) -> OnError {
        self.0.on_error
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.0.chunk
    }

    /// Whether what is denied stands until the time told, if nothing is given back.
    pub(crate) fn is_cached(&self) -> bool {
        self.0.cached
    }

    /// Whether usage in replies is recorded for the fallback.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(self.0.on_error, OnError::Local(_))
    }
}

impl fmt::Debug for PreparedPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { policy, on_error, chunk, .. } = &*self.0;
        write!(formatter, "PreparedPolicy({policy}, on_error: {on_error:?}, lease: {chunk})")
    }
}

impl From<Policy> for PreparedPolicy {
    fn from(policy: Policy) -> Self {
        Self::new(&policy)
    }
}

impl FromStr for PreparedPolicy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        text.parse::<Policy>().map(Self::from)
    }
}
