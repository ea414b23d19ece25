//! Events of a request that metrics count by rule.

use sluicegate_core::{Decision, Source};

use super::{Evaluation, MatchOutcome, RuleOperation};
use crate::rule::{Match, Treatment};

/// An event that metrics count by rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleEvent {
    /// The rule allowed a request.
    Allowed,
    /// The rule allowed a request, with less than a fifth of the limit remaining.
    NearLimit,
    /// The rule denied a request.
    Denied,
    /// The rule would have denied an allowed request, but is a shadow rule.
    ShadowDenied,
    /// The rule exempted a request from limits.
    Unlimited,
    /// The rule blocked a request.
    Blocked,
    /// A request was decided without the store, because it is unavailable.
    Fallback,
}

impl RuleEvent {
    /// All events, in the order of the metrics.
    pub const ALL: [Self; 7] = [
        Self::Allowed,
        Self::NearLimit,
        Self::Denied,
        Self::ShadowDenied,
        Self::Unlimited,
        Self::Blocked,
        Self::Fallback,
    ];

    /// Its name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::NearLimit => "near_limit",
            Self::Denied => "denied",
            Self::ShadowDenied => "shadow_denied",
            Self::Unlimited => "unlimited",
            Self::Blocked => "blocked",
            Self::Fallback => "fallback",
        }
    }

    /// Whether the rule denied the request, blocked it, or would have done either.
    #[must_use]
    pub const fn is_denial(self) -> bool {
        matches!(self, Self::Denied | Self::ShadowDenied | Self::Blocked)
    }

    /// Whether another event counts the same request as well.
    #[must_use]
    pub const fn is_additional(self) -> bool {
        matches!(self, Self::NearLimit | Self::Fallback)
    }
}

impl<'m, 's> Evaluation<'m, 's> {
    /// The events of each match, for metrics. Only takes have any.
    pub fn events(
        &self,
    ) -> impl Iterator<Item = (&'m Match<'s>, impl Iterator<Item = RuleEvent> + use<>)> {
        let matches = match self.operation {
            RuleOperation::Take(_) => self.matches,
            RuleOperation::Peek(_) | RuleOperation::Refund(_) => &[],
        };
        let allowed = self.outcome.allowed;
        let outcomes = &self.outcome.matches;
        matches.iter().zip(outcomes).map(move |(found, outcome)| {
            (found, events(found, outcome, allowed).into_iter().flatten())
        })
    }
}

/// The events of one match of a request that is `allowed` or not.
fn events(found: &Match<'_>, outcome: &MatchOutcome, allowed: bool) -> [Option<RuleEvent>; 3] {
    // A rule that would allow a denied request did not decide, nor did a shadow rule.
    let is_undecided = found.treatment == Treatment::Limit && outcome.decision.is_none();
    if is_undecided || !allowed && (outcome.allowed || found.shadow) {
        return [None; 3];
    }
    let event = match (found.treatment, outcome.allowed) {
        (_, false) if found.shadow => RuleEvent::ShadowDenied,
        (Treatment::Unlimited, _) => RuleEvent::Unlimited,
        (Treatment::Block, _) => RuleEvent::Blocked,
        (Treatment::Limit, true) => RuleEvent::Allowed,
        (Treatment::Limit, false) => RuleEvent::Denied,
    };
    let is_near = |it: &Decision| u64::from(it.remaining) * 5 < u64::from(it.limit);
    let is_near = event == RuleEvent::Allowed && outcome.decision.as_ref().is_some_and(is_near);
    let is_fallback = outcome.source == Source::Fallback;
    [
        is_near.then_some(RuleEvent::NearLimit),
        is_fallback.then_some(RuleEvent::Fallback),
        Some(event),
    ]
}
