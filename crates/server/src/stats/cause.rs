//! Which limit denied a key.

use serde::Serialize;
use sluicegate_core::{Decision, Policy, Source, Usage};

/// The policy of a decision, and the rule from a rules file that brought it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cause<'a> {
    pub(crate) rule: Option<&'a str>,
    pub(crate) policy: &'a Policy,
}

/// What the server knows of a denial besides its decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DenialFacts {
    /// The usage of the binding limit, if the state is in this process; `None` also if it has changed since the denial.
    pub(crate) usage: Option<Usage>,
    /// Whether it was denied because the table is full.
    pub(crate) is_table_full: bool,
    /// Whether it was denied because an operator has blocked the key.
    pub(crate) is_blocked: bool,
    /// Whether it was denied because the store is unavailable, without a state.
    pub(crate) is_without_state: bool,
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

impl DenialFacts {
    /// The source of the denial, which the store or its client states as `source`.
    pub(crate) const fn source(&self, source: Source) -> &'static str {
        match source {
            _ if self.is_blocked => "block",
            _ if self.is_table_full => "table_full",
            source => source.as_str(),
        }
    }

    /// Whether a limit denied: otherwise the decision has none.
    pub(crate) const fn is_by_limit(&self) -> bool {
        !self.is_blocked && !self.is_table_full && !self.is_without_state
    }
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
