//! A policy, and how it is to be asked for.

use std::{
    fmt,
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use sluicegate_core::{GcraName, Limit, Policy, PolicyError};

use crate::{StoreError, script::Plan, share::Share};

/// What is answered while the store is away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnError {
    /// Deny (fail closed).
    #[default]
    Deny,
    /// Allow (fail open).
    Allow,
    /// Decide here, under a share of the policy: one through the number of processes, if together they
    /// are to admit no more than the policy does. Begins with what the last answers said.
    Local(Share),
}

/// A policy, and how it is to be asked for. Made once, kept, and cheap to clone.
///
/// ```
/// use sluicegate_redis::{OnError, Rule, Share};
///
/// let rule: Rule = "gcra:1000/1s".parse()?;
/// // Chunks of up to 100 units; a quarter of the policy here while Redis is away.
/// let rule = rule.lease(100)?.on_error(OnError::Local(Share::of(1, 4)?));
/// assert_eq!(rule.policy().to_string(), "gcra:1000/1s");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Rule(Arc<Inner>);

struct Inner {
    /// Which rule: clones are the same, and no two others.
    number: u64,
    policy: Policy,
    plan: Arc<Plan>,
    on_error: OnError,
    /// The policy of [`OnError::Local`].
    local: Policy,
    /// Most units of a chunk; 0 or 1: no leases.
    chunk: u32,
    /// Whether what is denied stands until the time told.
    cached: bool,
}

impl Rule {
    /// A policy without leases, under which all is denied while the store is away.
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

    /// The same, with what is answered while the store is away.
    #[must_use]
    pub fn on_error(&self, on_error: OnError) -> Self {
        let local = match on_error {
            OnError::Local(share) => share.policy(&self.0.policy),
            OnError::Deny | OnError::Allow => self.0.policy.clone(),
        };
        Self::with(Inner { on_error, local, ..self.parts() })
    }

    /// The same, with leases: a key that is asked for again and again is asked for in chunks of up to
    /// `chunk` units, which are handed out here. 0 or 1: no leases.
    ///
    /// # Errors
    /// [`StoreError::Settings`] unless the policy is one limit, `gcra`, `token-bucket` or
    /// `leaky-bucket`, without `borrow` and with `refill=continuous`: of the others, a chunk taken is
    /// more than its units taken one by one.
    pub fn lease(&self, chunk: u32) -> Result<Self, StoreError> {
        let fits = |policy: &Policy| {
            policy.as_gcra().is_some_and(|it| it.name() != GcraName::LeakyQueue && !it.borrow())
        };
        if chunk > 1 && !fits(&self.0.policy) {
            return Err(StoreError::Settings(format!(
                "policy `{}` cannot be leased: expected one limit of gcra, token-bucket or leaky-bucket \
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

    /// The policy that is decided under here while the store is away, if it says `local`.
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

    pub(crate) fn when_away(&self) -> OnError {
        self.0.on_error
    }

    pub(crate) fn chunk(&self) -> u32 {
        self.0.chunk
    }

    /// Whether what is denied stands until the time told, if nothing is given back.
    pub(crate) fn is_cached(&self) -> bool {
        self.0.cached
    }

    /// Whether the last answers are to be known when the store is away.
    pub(crate) fn is_remembered(&self) -> bool {
        matches!(self.0.on_error, OnError::Local(_))
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { policy, on_error, chunk, .. } = &*self.0;
        write!(formatter, "Rule({policy}, on_error: {on_error:?}, lease: {chunk})")
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
