//! A policy with its settings, prepared for stores.

use std::{
    any::Any,
    fmt,
    str::FromStr,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::{
    parameters::LimitError, policy::Policy, share::Share, store_error::StoreError,
    text::PolicyError,
};

/// The answer while the store is unavailable.
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
    /// Return the error. All decisions come from the store itself: no denial is cached.
    Fail,
}

impl OnError {
    /// Its name in settings and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Allow => "allow",
            Self::Local(_) => "local",
            Self::Fail => "fail",
        }
    }
}

/// `deny`, `allow`, `fail`, `local`, or a share such as `local=1/4`.
///
/// ```
/// use sluicegate_core::OnError;
///
/// assert_eq!("fail".parse(), Ok(OnError::Fail));
/// let error = "open".parse::<OnError>().unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "invalid on_error `open`: expected deny, allow, fail, local or a share such as `local=1/4`"
/// );
/// ```
impl FromStr for OnError {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let share = |text: &str| {
            let (part, whole) = text.split_once('/')?;
            Share::of(part.parse().ok()?, whole.parse().ok()?).ok()
        };
        let local = text.strip_prefix("local").map(|rest| match rest.strip_prefix('=') {
            None => rest.is_empty().then_some(Share::ALL),
            Some(text) => share(text),
        });
        match (text, local) {
            ("deny", _) => Ok(Self::Deny),
            ("allow", _) => Ok(Self::Allow),
            ("fail", _) => Ok(Self::Fail),
            (_, Some(Some(share))) => Ok(Self::Local(share)),
            _ => Err(LimitError::Domain {
                name: "on_error",
                value: text.to_owned(),
                domain: "deny, allow, fail, local or a share such as `local=1/4`",
            }),
        }
    }
}

/// A policy, parsed once, with its settings and what a store needs for it. Create it once and keep it; clones are
/// cheap, and share what stores attach.
///
/// A key's usage carries over when the key is used with another policy: plans can change while they are in use.
///
/// ```
/// use sluicegate_core::{OnError, PreparedPolicy, Share};
///
/// let policy: PreparedPolicy = "gcra:1000/1s".parse()?;
/// // Leases of up to 100 units; a quarter of the policy in this process while the store is unavailable.
/// let policy = policy.lease(100)?.on_error(OnError::Local(Share::of(1, 4)?));
/// assert_eq!(policy.policy().to_string(), "gcra:1000/1s");
///
/// let error = "gcra:30/0s".parse::<PreparedPolicy>().unwrap_err();
/// assert_eq!(error.to_string(), "invalid period `0s`: expected 1ms to 366d");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct PreparedPolicy(Arc<Inner>);

struct Inner {
    policy: Policy,
    settings: PolicySettings,
    /// The first store that used the policy, and its data for it.
    attachment: OnceLock<(u64, Box<dyn Any + Send + Sync>)>,
}

/// The settings of a [`PreparedPolicy`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PolicySettings {
    /// The answer while the store is unavailable.
    pub on_error: OnError,
    /// Maximum units of a lease; 0 and 1 are no leases.
    pub lease: u32,
    /// Longest time for a decision in the background; `None`: decisions are not in the background.
    pub background: Option<Duration>,
}

impl PreparedPolicy {
    /// A policy without leases that denies while the store is unavailable.
    #[must_use]
    pub fn new(policy: &Policy) -> Self {
        Self::with(policy, PolicySettings::default())
    }

    fn with(policy: &Policy, settings: PolicySettings) -> Self {
        Self(Arc::new(Inner { policy: policy.clone(), settings, attachment: OnceLock::new() }))
    }

    /// Sets the answer while the store is unavailable. A store in this process is always available.
    #[must_use]
    pub fn on_error(&self, on_error: OnError) -> Self {
        Self::with(&self.0.policy, PolicySettings { on_error, ..self.0.settings })
    }

    /// Enables leases: for a key with much traffic, the process takes up to `units` at once and allows
    /// requests from them without calling the store. 0 or 1 disables leases. No effect with a store in this process.
    ///
    /// What is spent in `[s, t]` was taken in `[s - l, t]`, where `l` is the lifetime of leases; of a fixed window, exactly `N`
    /// units pass in each, because no unit of one window is spent in the next.
    ///
    /// # Errors
    /// [`StoreError::Settings`] if a limit of the policy is a `leaky-queue` or `concurrency`, or has `borrow` or `count=all`:
    /// taking several units at once then differs from taking them one by one.
    pub fn lease(&self, units: u32) -> Result<Self, StoreError> {
        let policy = &self.0.policy;
        let unsuitable = policy.limits().iter().find_map(|it| Some((it, it.why_no_lease()?)));
        if units > 1
            && let Some((limit, reason)) = unsuitable
        {
            return Err(StoreError::Settings(format!(
                "invalid policy `{policy}` for a lease: `{limit}` cannot have one, because {reason}; expected limits \
                 without `borrow` and `count=all`, and no `leaky-queue` or `concurrency`"
            )));
        }
        Ok(Self::with(policy, PolicySettings { lease: units, ..self.0.settings }))
    }

    /// Decides in the background, within `deadline` in place of the time that the store allows for a decision: decisions that fail
    /// do not open its circuit breaker for others. No effect with a store in this process.
    #[must_use]
    pub fn in_background(&self, deadline: Duration) -> Self {
        let settings = PolicySettings { background: Some(deadline), ..self.0.settings };
        Self::with(&self.0.policy, settings)
    }

    /// The policy.
    #[must_use]
    #[inline]
    pub fn policy(&self) -> &Policy {
        &self.0.policy
    }

    /// The settings.
    #[must_use]
    pub fn settings(&self) -> PolicySettings {
        self.0.settings
    }

    /// The data of a store for this policy. The first store that uses the policy attaches what `look_up` finds; `None`
    /// for every other store, which looks its data up by the text of the policy.
    #[inline]
    pub fn attached<T: Any + Send + Sync>(
        &self,
        store: &StoreId,
        look_up: impl FnOnce() -> T,
    ) -> Option<&T> {
        let (owner, data) = match self.0.attachment.get() {
            Some(attachment) => attachment,
            None => self.attach(store, look_up),
        };
        if *owner == store.0 { data.downcast_ref() } else { None }
    }

    #[cold]
    #[inline(never)]
    fn attach<T: Any + Send + Sync>(
        &self,
        store: &StoreId,
        look_up: impl FnOnce() -> T,
    ) -> &(u64, Box<dyn Any + Send + Sync>) {
        self.0.attachment.get_or_init(|| (store.0, Box::new(look_up()) as Box<_>))
    }
}

/// Identity of a store in this process, under which it attaches data to policies.
#[derive(Debug, PartialEq, Eq)]
pub struct StoreId(u64);

impl StoreId {
    /// An identity that no other store has.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "no two are equal")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for PreparedPolicy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { policy, settings: PolicySettings { on_error, lease, background }, .. } =
            &*self.0;
        write!(formatter, "PreparedPolicy({policy}, on_error: {on_error:?}, lease: {lease}")?;
        background.map_or(Ok(()), |deadline| write!(formatter, ", background: {deadline:?}"))?;
        formatter.write_str(")")
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn attached_first_store_looks_up_once() {
        let policy: PreparedPolicy = "gcra:1/1s".parse().unwrap();
        let (first, second, calls) = (StoreId::new(), StoreId::new(), Cell::new(0));
        let look_up = || {
            calls.set(calls.get() + 1);
            calls.get()
        };
        assert_eq!(policy.attached(&first, look_up), Some(&1));
        assert_eq!(policy.clone().attached(&first, look_up), Some(&1));
        assert_eq!(policy.attached(&second, look_up), None);
        // Other settings are another prepared policy.
        assert_eq!(policy.on_error(OnError::Allow).attached(&second, look_up), Some(&2));
    }

    #[test]
    fn on_error_is_a_decision_or_a_share() {
        for (text, expected) in [
            ("deny", Some(OnError::Deny)),
            ("allow", Some(OnError::Allow)),
            ("fail", Some(OnError::Fail)),
            ("local", Some(OnError::Local(Share::ALL))),
            ("local=1/4", Share::of(1, 4).ok().map(OnError::Local)),
            ("local=4/1", None),
            ("local=", None),
            ("local1/4", None),
            ("Deny", None),
            ("", None),
        ] {
            assert_eq!(text.parse().ok(), expected, "{text}");
        }
    }

    #[test]
    fn lease_unsuitable_policy_is_rejected() {
        for (policy, limit, reason) in [
            ("leaky-queue:1/1s", "leaky-queue:1/1s", "it delays each request"),
            ("gcra:9/1s,gcra:1/1s:borrow", "gcra:1/1s:borrow", "more than is available"),
            (
                "token-bucket:1/1s:refill=interval:borrow",
                "token-bucket:1/1s:",
                "more than is available",
            ),
            ("concurrency:1/1s", "concurrency:1/1s", "it limits open holds"),
            (
                "fixed-window:1/1s:count=all",
                "fixed-window:1/1s:count=all",
                "it counts denied requests",
            ),
            (
                "sliding-log:1/1s:count=all",
                "sliding-log:1/1s:count=all",
                "it counts denied requests",
            ),
        ] {
            let policy: PreparedPolicy = policy.parse().unwrap();
            let error = policy.lease(2).unwrap_err().to_string();
            assert!(error.contains(&format!("for a lease: `{limit}")), "{error}");
            assert!(error.contains(reason), "{error}");
            assert!(policy.lease(1).is_ok());
        }
    }

    #[test]
    fn lease_suits_policies_of_which_several_units_may_be_taken_at_once() {
        for policy in [
            "gcra:9/1s,leaky-bucket:1/1s",
            "token-bucket:9/1s:refill=interval,token-bucket:5/1s",
            "fixed-window:1/1s,fixed-window:1/1s:align=clock,fixed-window:9/day",
            "sliding-log:9/1s,sliding-counter:9/1s",
        ] {
            assert!(policy.parse::<PreparedPolicy>().unwrap().lease(2).is_ok(), "{policy}");
        }
    }
}
