//! Asking a store, and waiting: what becomes of a request that cannot be decided at once.

use std::{future::poll_fn, sync::Arc, time::Duration};

use http::{Request, Response};
use sluicegate_core::{Decision, Operation, Outcome, Retry, Store};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tower_service::Service;

use crate::{
    Event, Head, NamedPolicy, Refuse,
    key::Bytes,
    layer::{Settings, Shared},
};

/// Whom a request is about, and how much of it there is.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) key: Bytes,
    pub(crate) cost: u32,
}

/// What is to be done about a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Next {
    /// It passes, and the response tells the decision, if there is one.
    Pass(Option<Decision>),
    /// It does not, by this denial, or as nobody could tell.
    Refuse(Option<Decision>),
    /// It waits so long; then it passes by the decision, if there is one, and asks again if not.
    Sleep(Duration, Option<Decision>),
}

impl Question {
    /// What is asked, by one who has waited and may wait for so much longer.
    pub(crate) fn operation(
        &self,
        settings: &Settings,
        policy: &NamedPolicy,
        left: Option<Duration>,
    ) -> Operation {
        let cost = self.cost;
        match left.or(settings.max_wait) {
            Some(max_wait) if policy.inner().reserves && !settings.shadow => {
                Operation::Reserve { cost, max_wait }
            }
            _ => Operation::Take(cost),
        }
    }
}

impl<S: Store, R> Shared<S, R> {
    /// What an answer comes to, for one who may wait for so much longer.
    pub(crate) fn next(
        &self,
        policy: &NamedPolicy,
        result: &Result<Decision, S::Error>,
        left: Option<Duration>,
    ) -> Next {
        let settings = &self.settings;
        let shadow = settings.shadow;
        let next = match result {
            Ok(decision) if shadow => Next::Pass(Some(*decision)),
            Err(_) if shadow || settings.allow_on_error => Next::Pass(None),
            Err(_) => Next::Refuse(None),
            Ok(decision) => match decision.outcome {
                Outcome::Allow { delay } if delay.is_zero() => Next::Pass(Some(*decision)),
                Outcome::Allow { delay } => Next::Sleep(delay, Some(*decision)),
                Outcome::Deny { retry: Retry::After(wait) }
                    if !policy.inner().reserves
                        && left.or(settings.max_wait).is_some_and(|left| wait <= left) =>
                {
                    return Next::Sleep(wait, None);
                }
                Outcome::Deny { .. } => Next::Refuse(Some(*decision)),
            },
        };
        let result = result.as_ref().map_err(|error| error as &dyn std::error::Error);
        settings.tell(&Event { policy: policy.name(), result, shadow });
        next
    }
}

/// Asks and waits until it is known what becomes of `request`, and does it.
pub(crate) async fn ask<T, S, R, B, C>(
    shared: Arc<Shared<S, R>>,
    (policy, question): (NamedPolicy, Question),
    mut first: Option<Next>,
    mut service: T,
    request: Request<B>,
) -> Result<Response<C>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + Send + Sync + 'static,
    R: Refuse<C> + Send + Sync + 'static,
{
    // When waiting ends, where there is an end to it.
    let settings = &shared.settings;
    let start = settings.max_wait.map(|_| Instant::now());
    loop {
        let left = || Some(settings.max_wait?.saturating_sub(start?.elapsed()));
        let next = match first.take() {
            Some(next) => next,
            None => {
                let operation = question.operation(settings, &policy, left());
                let result = shared.store.apply(&question.key, policy.policy(), operation).await;
                shared.next(&policy, &result, left())
            }
        };
        let decision = match next {
            Next::Pass(decision) => decision,
            Next::Refuse(denied) => {
                return Ok(shared.refusal(Head::of(&request), &policy, denied.as_ref()));
            }
            Next::Sleep(wait, decision) => {
                // What was made ready may be a place in a queue that others could use meanwhile. A clone has
                // none.
                service = service.clone();
                let held = decision.map(|_| Held {
                    shared: &shared,
                    policy: &policy,
                    question: &question,
                });
                sleep(wait).await;
                if held.is_none() {
                    continue;
                }
                poll_fn(|context| service.poll_ready(context)).await?;
                // Its turn has come.
                std::mem::forget(held);
                decision
            }
        };
        let told = shared.told(decision, || policy.clone());
        let mut response = service.call(request).await?;
        if let Some(told) = told {
            told.write(response.headers_mut());
        }
        return Ok(response);
    }
}

/// What is reserved, and given back by whoever goes away before its turn.
struct Held<'a, S: Store + Send + Sync + 'static, R: Send + Sync + 'static> {
    shared: &'a Arc<Shared<S, R>>,
    policy: &'a NamedPolicy,
    question: &'a Question,
}

impl<S: Store + Send + Sync + 'static, R: Send + Sync + 'static> Drop for Held<'_, S, R> {
    fn drop(&mut self) {
        let Self { shared, policy, question } = self;
        let refund = Operation::Refund(question.cost);
        let now = shared.store.apply_now(&question.key, policy.policy(), refund);
        if now.is_some() {
            return;
        }
        // Who drops cannot wait; somebody else can, while there is a runtime.
        if let Ok(runtime) = Handle::try_current() {
            let store = Arc::clone(&shared.store);
            let (key, policy) = (question.key.clone(), (*policy).clone());
            runtime.spawn(async move {
                // If it fails, it recovers in time by itself.
                drop(store.apply(&key, policy.policy(), refund).await);
            });
        }
    }
}
