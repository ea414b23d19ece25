//! The settings of a layer, and the next step that they give for a decision.

use std::{fmt, sync::Arc, time::Duration};

use sluicegate_core::{Answer, Operation, Outcome, Retry, Source, Store, StoreError};
use sluicegate_holds::{Jitter, PendingRequest, WaitOptions};

use crate::{Event, Head, HeaderStyle, KeyPart, NamedPolicy, Rules};

/// The settings of a layer, except for the response to rejected requests.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) rules: Rules,
    pub(crate) parts: Vec<KeyPart>,
    pub(crate) cost: Cost,
    pub(crate) headers: HeaderStyle,
    pub(crate) max_wait: Option<Duration>,
    pub(crate) jitter: Jitter,
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
    pub(crate) handler: Arc<R>,
}

/// The next step of a request after the first answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextStep {
    /// It passes.
    Pass,
    /// It is rejected.
    Reject,
    /// It waits.
    Wait,
}

impl Settings {
    pub(crate) fn cost_of(&self, head: &Head<'_>) -> u32 {
        match &self.cost {
            Cost::Fixed(cost) => *cost,
            Cost::By(cost) => cost(head),
        }
    }

    /// The first operation for a request of `cost` units. If it may wait, and does not peek first, that is the
    /// first operation of its [wait](Self::pending_take).
    #[inline]
    pub(crate) fn operation(&self, policy: &NamedPolicy, cost: u32) -> Operation<'static> {
        match self.max_wait {
            Some(max_wait) if policy.policy().can_reserve() && !self.shadow => {
                Operation::Reserve { cost, max_wait }
            }
            _ => Operation::Take(cost),
        }
    }

    /// A request that waits until its take passes.
    pub(crate) fn pending_take<S: Store + 'static>(
        &self,
        store: &Arc<S>,
        key: &[u8],
        policy: &NamedPolicy,
        cost: u32,
    ) -> PendingRequest<S> {
        let policy = &policy.inner().policy;
        match self.max_wait {
            Some(max_wait) => {
                PendingRequest::take(store, key, policy, cost, self.wait_up_to(max_wait))
            }
            None => PendingRequest::take_once(store, key, policy, cost),
        }
    }

    /// How a request waits until its units are held.
    pub(crate) fn hold_wait(&self) -> WaitOptions {
        let max_wait = self.max_wait.filter(|_| !self.shadow);
        self.wait_up_to(max_wait.unwrap_or_default())
    }

    const fn wait_up_to(&self, max_wait: Duration) -> WaitOptions {
        WaitOptions::up_to(max_wait).jitter(self.jitter)
    }

    /// The next step after the first answer.
    #[inline]
    pub(crate) fn next(&self, policy: &NamedPolicy, answer: &Answer) -> NextStep {
        if !self.shadow && self.waits(policy, answer) {
            return NextStep::Wait;
        }
        let passes = self.passes(policy, Ok::<_, &StoreError>(answer));
        if passes { NextStep::Pass } else { NextStep::Reject }
    }

    /// Whether a request waits after the first answer.
    #[inline]
    fn waits(&self, policy: &NamedPolicy, answer: &Answer) -> bool {
        match answer.outcome {
            Outcome::Allow { delay } => !delay.is_zero(),
            Outcome::Deny { retry: Retry::After(wait) } => {
                self.max_wait.is_some_and(|max_wait| wait <= max_wait)
                    && (!policy.policy().can_reserve() || answer.source == Source::Fallback)
            }
            Outcome::Deny { retry: Retry::Never } => false,
        }
    }

    // A function of its own, because the observer needs the answer in memory.
    #[inline(never)]
    fn call_observer(
        &self,
        observe: &Observe,
        policy: &NamedPolicy,
        result: Result<&Answer, &dyn std::error::Error>,
    ) {
        observe(&Event { policy: policy.name(), result, shadow: self.shadow });
    }

    /// Whether a request passes after its last result, which the observer gets.
    #[inline]
    pub(crate) fn passes<E: std::error::Error + 'static>(
        &self,
        policy: &NamedPolicy,
        result: Result<&Answer, &E>,
    ) -> bool {
        if let Some(observe) = &self.observe {
            let result = result.map_err(|error| error as &dyn std::error::Error);
            self.call_observer(&**observe, policy, result);
        }
        self.shadow
            || match result {
                Ok(answer) => answer.allowed(),
                Err(error) => self.allow_on_error && !is_of_caller(error),
            }
    }

    pub(crate) fn debug(&self, name: &str, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct(name)
            .field("rules", &self.rules)
            .field("parts", &self.parts)
            .field("headers", &self.headers)
            .field("max_wait", &self.max_wait)
            .field("jitter", &self.jitter)
            .field("shadow", &self.shadow)
            .field("allow_on_error", &self.allow_on_error)
            .finish_non_exhaustive()
    }
}

/// Whether the store rejects the operation, rather than being unavailable.
fn is_of_caller(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(error.downcast_ref(), Some(StoreError::Key(_) | StoreError::Arguments(_)))
}
