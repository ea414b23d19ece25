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
    Head, NamedPolicy, Refuse,
    layer::{Settings, Shared},
};

/// What is asked for a request that cannot be decided at once.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) policy: NamedPolicy,
    /// Whom it is about.
    pub(crate) key: Vec<u8>,
    /// How much of it there is.
    pub(crate) cost: u32,
    /// The first answer, where there was one.
    pub(crate) first: Option<Answered>,
}

/// What is to be done about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It passes.
    Pass,
    /// It does not.
    Refuse,
    /// It passes after so long, and what it takes is taken.
    PassAfter(Duration),
    /// It asks again after so long.
    AskAfter(Duration),
}

/// What was answered, and what comes of it; without a decision where nobody could tell.
pub(crate) type Answered = (Next, Option<Decision>);

impl Settings {
    /// What is asked for a request of so many units, by one who has waited and may wait for so much longer.
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

    /// What comes of an answer, for one who may wait for so much longer.
    #[inline]
    pub(crate) fn next<E: std::error::Error>(
        &self,
        policy: &NamedPolicy,
        result: Result<Decision, &E>,
        left: Option<Duration>,
    ) -> Next {
        let policy = policy.inner();
        let next = match result {
            _ if self.shadow => Next::Pass,
            Err(_) if self.allow_on_error => Next::Pass,
            Err(_) => Next::Refuse,
            Ok(decision) => match decision.outcome {
                Outcome::Allow { delay } if delay.is_zero() => Next::Pass,
                Outcome::Allow { delay } => Next::PassAfter(delay),
                Outcome::Deny { retry: Retry::After(wait) }
                    if !policy.reserves
                        && left.or(self.max_wait).is_some_and(|left| wait <= left) =>
                {
                    return Next::AskAfter(wait);
                }
                Outcome::Deny { .. } => Next::Refuse,
            },
        };
        self.tell(policy, result);
        next
    }
}

/// Asks and waits until it is known what becomes of `request`, and does it.
pub(crate) async fn ask<T, S, R, B, C>(
    shared: Arc<Shared<S, R>>,
    mut asked: Asked,
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
    // Whether the service is another than the one that was made ready.
    let mut released = false;
    loop {
        let left = || Some(settings.max_wait?.saturating_sub(start?.elapsed()));
        let (next, decision) = match asked.first.take() {
            Some(answered) => answered,
            None => {
                let operation = settings.operation(&asked.policy, asked.cost, left());
                let result = shared.store.apply(&asked.key, asked.policy.policy(), operation).await;
                (settings.next(&asked.policy, result.as_ref().map(|it| *it), left()), result.ok())
            }
        };
        match next {
            Next::Pass => {}
            Next::Refuse => {
                return Ok(shared.refusal(Head::of(&request), &asked.policy, decision));
            }
            Next::PassAfter(wait) => {
                // What was made ready may be a place in a queue that others could use meanwhile. A clone
                // has none.
                service = service.clone();
                let held = Held { shared: &shared, asked: &asked };
                sleep(wait).await;
                poll_fn(|context| service.poll_ready(context)).await?;
                // Its turn has come.
                std::mem::forget(held);
            }
            Next::AskAfter(wait) => {
                service = service.clone();
                sleep(wait).await;
                released = true;
                continue;
            }
        }
        if released {
            poll_fn(|context| service.poll_ready(context)).await?;
        }
        let told = shared.told(decision, &asked.policy);
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
    asked: &'a Asked,
}

impl<S: Store + Send + Sync + 'static, R: Send + Sync + 'static> Drop for Held<'_, S, R> {
    fn drop(&mut self) {
        let Self { shared, asked: Asked { policy, key, cost, .. } } = self;
        let refund = Operation::Refund(*cost);
        let now = shared.store.apply_now(key, policy.policy(), refund);
        if now.is_some() {
            return;
        }
        // Who drops cannot wait; somebody else can, while there is a runtime.
        if let Ok(runtime) = Handle::try_current() {
            let store = Arc::clone(&shared.store);
            let (key, policy) = (key.clone(), policy.clone());
            runtime.spawn(async move {
                // If it fails, it recovers in time by itself.
                drop(store.apply(&key, policy.policy(), refund).await);
            });
        }
    }
}
