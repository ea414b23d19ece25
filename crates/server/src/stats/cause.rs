//! Which limit denied a key.

use serde::Serialize;
use sluicegate_core::{Decision, Policy};

/// The policy of a decision, and the rule from a rules file that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause<'a> {
    pub(crate) rule: Option<&'a str>,
    pub(crate) policy: &'a Policy,
}

/// The limit that denied a key last.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Denier {
    rule: Option<Box<str>>,
    policy: Policy,
    /// The binding limit, as an index into those of the policy.
    limit: usize,
}

/// A [`Denier`], as the dashboard shows it.
#[derive(Debug, Serialize)]
pub(crate) struct DeniedBy {
    rule: Option<Box<str>>,
    limit: String,
}

impl<'a> Cause<'a> {
    /// The cause of a decision under a policy that the request names itself.
    #[inline]
    pub(crate) const fn policy(policy: &'a Policy) -> Self {
        Self { rule: None, policy }
    }

    /// What denied, if `decision` is a denial.
    pub(crate) fn denier(self, decision: &Decision) -> Option<Denier> {
        (!decision.allowed()).then(|| Denier {
            rule: self.rule.map(Box::from),
            policy: self.policy.clone(),
            limit: decision.binding,
        })
    }
}

impl Denier {
    pub(crate) fn to_denied_by(&self) -> DeniedBy {
        let limit = self.policy.limits().get(self.limit);
        DeniedBy {
            rule: self.rule.clone(),
            limit: limit.map_or_else(|| self.policy.to_string(), ToString::to_string),
        }
    }
}
