//! The rules in force, as this face asks for them.

use sluicegate_core::{Policy, Timestamp};
use sluicegate_redis::OnError;
use sluicegate_rules::{Charge, RuleSet};

use crate::home::{Home, HomeRule};

/// Rules, each policy as its home knows it.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(super) set: RuleSet,
    prepared: Vec<HomeRule>,
}

impl Rules {
    /// The policy of a charge, as its home knows it.
    pub(super) fn prepared(&self, charge: &Charge<'_>, home: &Home, now: Timestamp) -> HomeRule {
        let known = charge.index.and_then(|index| self.prepared.get(index));
        known.cloned().unwrap_or_else(|| prepare(&charge.policy, home, now))
    }
}

/// A policy that came with a request.
pub(super) fn prepare(policy: &Policy, home: &Home, now: Timestamp) -> HomeRule {
    home.rule(policy, OnError::default(), now)
}
