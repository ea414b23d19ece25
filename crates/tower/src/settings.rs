//! The settings of a layer, and the next step that they give for a decision.

use std::{fmt, sync::Arc, time::Duration};

use sluicegate_core::{Decision, Operation, Outcome, Retry};

use crate::{Event, Head, HeaderStyle, KeyPart, NamedPolicy, Rules, rules::Named};

/// The settings of a layer, except for the response to rejected requests.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) rules: Rules,
    pub(crate) parts: Vec<KeyPart>,
    pub(crate) cost: Cost,
    pub(crate) headers: HeaderStyle,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) shadow: bool,
    pub(crate) allow_on_error: bool,
    pub(crate) observe: Option<Arc<Observe>>,
}

pub(crate) type Observe = dyn Fn(&Event<'_>) + Send + Sync;

#[derive(Clone)]
pub(crate) enum Cost {
    Fixed(u32),
    By(Arc<dyn Fn(&Head<'_>) -> u32 + Send + Sync>),
}

/// The data that all clones of a service share.
pub(crate) struct Shared<S, R> {
    pub(crate) store: Arc<S>,
    pub(crate) settings: Settings,
    pub(crate) refuse: Arc<R>,
}

/// The next step of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// It passes.
    Pass,
    /// It is rejected.
    Reject,
    /// It passes after this delay; its units are taken.
    PassAfter(Duration),
    /// It tries again after this delay.
    RetryAfter(Duration),
}

impl Settings {
    pub(crate) fn cost_of(&self, head: &Head<'_>) -> u32 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::By(cost) => cost(head),
        }
    }

    /// Passes a decision or an error to the observer.
    #[inline(always)]
    pub(crate) fn observe<E: std::error::Error>(
        &self,
        policy: &Named,
        result: Result<Decision, &E>,
    ) {
        if let Some(observe) = &self.observe {
            let result = result.map_err(|error| error as &dyn std::error::Error);
            self.call_observer(&**observe, policy, result);
        }
    }

    // A function of its own, because the observer needs the decision in memory.
    #[inline(never)]
    fn call_observer(
        &self,
        observe: &Observe,
        policy: &Named,
        result: Result<Decision, &dyn std::error::Error>,
    ) {
        let result = result.as_ref().map_err(|error| *error);
        observe(&Event { policy: &policy.name, result, shadow: self.shadow });
    }

    /// The operation for a request of `cost` units; `left`: how much longer it may wait, if it has waited already.
    #[inline]
    pub(crate) fn operation(
        &self,
        policy: &NamedPolicy,
        cost: u32,
        left: Option<Duration>,
    ) -> Operation {
        match left.or(self.max_wait) {
            Some(max_wait) if policy.inner().reserves && !self.shadow => {
                Operation::Reserve { cost, max_wait }
            }
            _ => Operation::Take(cost),
        }
    }

    /// The next step after a result; `left`: how much longer the request may wait.
    #[inline]
    pub(crate) fn next<E: std::error::Error>(
        &self,
        policy: &NamedPolicy,
        result: Result<Decision, &E>,
        left: Option<Duration>,
    ) -> NextStep {
        let policy = policy.inner();
        let next = match result {
            _ if self.shadow => NextStep::Pass,
            Err(_) if self.allow_on_error => NextStep::Pass,
            Err(_) => NextStep::Reject,
            Ok(decision) => match decision.outcome {
                Outcome::Allow { delay } if delay.is_zero() => NextStep::Pass,
                Outcome::Allow { delay } => NextStep::PassAfter(delay),
                Outcome::Deny { retry: Retry::After(wait) }
                    if !policy.reserves
                        && left.or(self.max_wait).is_some_and(|left| wait <= left) =>
                {
                    return NextStep::RetryAfter(wait);
                }
                Outcome::Deny { .. } => NextStep::Reject,
            },
        };
        self.observe(policy, result);
        next
    }

    pub(crate) fn debug(&self, name: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct(name)
            .field("rules", &self.rules)
            .field("parts", &self.parts)
            .field("headers", &self.headers)
            .field("max_wait", &self.max_wait)
            .field("shadow", &self.shadow)
            .field("allow_on_error", &self.allow_on_error)
            .finish_non_exhaustive()
    }
}
