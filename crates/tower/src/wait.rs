//! Requests that cannot be decided at once: calls of the store, and waiting.

use std::{future::poll_fn, sync::Arc};

use http::{Request, Response};
use sluicegate_core::{Decision, Operation, Store};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
use tower_service::Service;

use crate::{
    Head, NamedPolicy, RejectionHandler,
    settings::{NextStep, Shared},
};

/// A request that cannot be decided at once.
#[derive(Debug)]
pub(crate) struct DecisionRequest {
    pub(crate) policy: NamedPolicy,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Units to take.
    pub(crate) cost: u32,
    /// The first result, if there is one.
    pub(crate) first: Option<Answered>,
}

/// The next step, and the decision behind it; no decision if the store is unavailable.
pub(crate) type Answered = (NextStep, Option<Decision>);

/// Decides `request`, waits if needed, and calls the service or rejects it.
pub(crate) async fn decide<T, S, R, B, C>(
    shared: Arc<Shared<S, R>>,
    mut pending: DecisionRequest,
    mut service: T,
    request: Request<B>,
) -> Result<Response<C>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
{
    // The start of waiting, if the request may wait.
    let settings = &shared.settings;
    let start = settings.max_wait.map(|_| Instant::now());
    // Whether `service` is a clone that is not ready yet.
    let mut released = false;
    loop {
        let left = || Some(settings.max_wait?.saturating_sub(start?.elapsed()));
        let (next, decision) = match pending.first.take() {
            Some(answered) => answered,
            None => {
                let operation = settings.operation(&pending.policy, pending.cost, left());
                let policy = &pending.policy.inner().policy;
                let result = shared.store.apply(&pending.key, policy, operation).await;
                let result = result.map(|answer| answer.decision);
                (settings.next(&pending.policy, result.as_ref().map(|it| *it), left()), result.ok())
            }
        };
        match next {
            NextStep::Pass => {}
            NextStep::Reject => {
                return Ok(shared.reject(Head::of(&request), &pending.policy, decision));
            }
            NextStep::PassAfter(wait) => {
                // A ready service may hold a slot in a queue that other requests could use meanwhile. A clone holds
                // none.
                service = service.clone();
                let reservation = Reservation { shared: &shared, pending: &pending };
                sleep(wait).await;
                poll_fn(|context| service.poll_ready(context)).await?;
                // The reservation is used.
                std::mem::forget(reservation);
            }
            NextStep::RetryAfter(wait) => {
                service = service.clone();
                sleep(wait).await;
                released = true;
                continue;
            }
        }
        if released {
            poll_fn(|context| service.poll_ready(context)).await?;
        }
        let headers = shared.response_headers(decision, &pending.policy);
        let mut response = service.call(request).await?;
        if let Some(headers) = headers {
            headers.write(response.headers_mut());
        }
        return Ok(response);
    }
}

/// A reservation, which is refunded when the request is cancelled.
struct Reservation<'a, S: Store + 'static, R: Send + Sync + 'static> {
    shared: &'a Arc<Shared<S, R>>,
    pending: &'a DecisionRequest,
}

impl<S: Store + 'static, R: Send + Sync + 'static> Drop for Reservation<'_, S, R> {
    fn drop(&mut self) {
        let Self { shared, pending: DecisionRequest { policy, key, cost, .. } } = self;
        let refund = Operation::Refund(*cost);
        if shared.store.apply(key, &policy.inner().policy, refund).now().is_some() {
            return;
        }
        // Drop cannot wait; a task can, if there is a runtime.
        if let Ok(runtime) = Handle::try_current() {
            let store = Arc::clone(&shared.store);
            let (key, policy) = (key.clone(), policy.clone());
            runtime.spawn(async move {
                // If the refund fails, the units recover in time.
                drop(store.apply(&key, &policy.inner().policy, refund).await);
            });
        }
    }
}
