//! Requests that cannot be decided at once: calls of the store, and waiting.

use std::{future::poll_fn, sync::Arc};

use http::{Request, Response};
use sluicegate_core::{Answer, Store, Timestamp};
use sluicegate_holds::{PendingRequest, Progress};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use crate::{Head, NamedPolicy, RejectionHandler, settings::Shared};

/// A request that cannot be decided at once.
#[derive(Debug)]
pub(crate) struct DecisionRequest {
    pub(crate) policy: NamedPolicy,
    /// The key.
    pub(crate) key: Vec<u8>,
    /// Units to take.
    pub(crate) cost: u32,
    /// The answer to the first operation, if the store gave it at once.
    pub(crate) first: Option<Answer>,
}

/// The same with its wait.
pub(crate) struct Waiting<S: Store + 'static, R> {
    shared: Arc<Shared<S, R>>,
    request: DecisionRequest,
    pending: PendingRequest<S>,
}

impl<S: Store, R> Waiting<S, R> {
    pub(crate) fn new(shared: Arc<Shared<S, R>>, mut request: DecisionRequest) -> Self {
        let DecisionRequest { policy, key, cost, first } = &mut request;
        let mut pending = shared.settings.pending_take(&shared.store, key, policy, *cost);
        if let Some(answer) = first.take() {
            pending = pending.answered(answer);
        }
        Self { shared, request, pending }
    }
}

/// Decides a request, waits if needed, and calls the service or rejects it. When it is dropped, its unused reservation is
/// refunded: also if its future was never polled.
pub(crate) async fn decide<T, S, R, B, C>(
    Waiting { shared, request: DecisionRequest { policy, key, cost, .. }, mut pending }: Waiting<
        S,
        R,
    >,
    mut service: T,
    request: Request<B>,
) -> Result<Response<C>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
{
    let mut is_ready = true;
    let result = if shared.settings.shadow {
        shared.store.take(&key, &policy.inner().policy, cost).await
    } else {
        wait(&mut pending, &mut service, &mut is_ready).await?
    };
    let answer = result.as_ref().ok();
    if !shared.settings.passes(&policy, result.as_ref()) {
        return Ok(shared.reject(Head::of(&request), &policy, answer));
    }
    if !is_ready {
        poll_fn(|context| service.poll_ready(context)).await?;
    }
    let headers = shared.response_headers(answer, &policy);
    let mut response = service.call(request).await?;
    if let Some(headers) = headers {
        headers.write(response.headers_mut());
    }
    Ok(response)
}

/// Waits for the last result, in which the request passes or does not.
///
/// `service` is ready at first, and afterwards only if `is_ready`.
pub(crate) async fn wait<T, S, B>(
    pending: &mut PendingRequest<S>,
    service: &mut T,
    is_ready: &mut bool,
) -> Result<Result<Answer, S::Error>, T::Error>
where
    T: Service<Request<B>> + Clone,
    S: Store + 'static,
{
    let start = Instant::now();
    let now = || Timestamp::EPOCH + start.elapsed();
    loop {
        let then = match pending.advance(now).await {
            Err(error) => return Ok(Err(error)),
            Ok(Progress::Done(answer)) => return Ok(Ok(answer)),
            Ok(Progress::SleepUntil(then)) => then,
        };
        // A ready service may hold a slot in a queue that other requests could use in the meantime. A clone holds none.
        *service = service.clone();
        *is_ready = false;
        sleep(then.since(now())).await;
        if pending.has_reservation() {
            // The reservation is used only once the service is ready.
            poll_fn(|context| service.poll_ready(context)).await?;
            *is_ready = true;
        }
    }
}
