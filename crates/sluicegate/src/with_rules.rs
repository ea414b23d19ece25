//! A limiter as a store with settings per policy.

use std::sync::Arc;

use sluicegate_core::{Decision, Operation, Policy, Store};

use crate::{Error, Limiter, Rule};

/// A [`Limiter`] as a [`Store`] that uses the settings of rules for their policies: leases, and the decision
/// while the store is unavailable. Created by [`Limiter::with_rules`]; cheap to clone.
///
/// ```
/// use sluicegate::{Limiter, OnError, Operation, Rule, Share, Store};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let limiter = Limiter::in_memory(); // or Limiter::connect("redis://127.0.0.1/").await?
/// let rule: Rule = "gcra:1000/1s".parse()?;
/// let rule = rule.lease(100)?.on_error(OnError::Local(Share::of(1, 4)?));
///
/// let store = limiter.with_rules([rule.clone()]);
/// assert!(store.apply(b"user7", rule.policy(), Operation::Take(1)).await?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WithRules {
    limiter: Limiter,
    rules: Arc<[Rule]>,
}

impl Limiter {
    /// A [`Store`] that uses the settings of these rules for their policies: leases, and the decision while
    /// the store is unavailable. A `Limiter` alone, used as a store, calls Redis for each decision, and
    /// returns an error while Redis is unavailable.
    #[must_use]
    pub fn with_rules(&self, rules: impl IntoIterator<Item = Rule>) -> WithRules {
        WithRules { limiter: self.clone(), rules: rules.into_iter().collect() }
    }
}

impl WithRules {
    /// The rule of a policy, if there is one.
    fn rule(&self, policy: &Policy) -> Option<&Rule> {
        let same = |rule: &&Rule| rule.policy().is(policy);
        let equal = |rule: &&Rule| rule.policy() == policy;
        self.rules.iter().find(same).or_else(|| self.rules.iter().find(equal))
    }
}

/// A policy without a rule is decided as by the limiter alone.
impl Store for WithRules {
    type Error = Error;

    async fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Result<Decision, Error> {
        match self.rule(policy) {
            Some(rule) => Ok(self.limiter.ask(key, rule, operation).await?.decision),
            None => self.limiter.apply(key, policy, operation).await,
        }
    }

    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, Error>> {
        match self.rule(policy) {
            Some(rule) => self.limiter.ask_now(key, rule, operation),
            None => self.limiter.apply_now(key, policy, operation),
        }
    }
}
