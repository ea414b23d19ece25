//! Requests that cannot be decided at once: calls of the store, and waiting.

use std::{future::poll_fn, sync::Arc};

use http::{Request, Response};
use sluicegate_core::{
    Answer, Operation, Request as StoreRequest, Store, Timestamp,
    wait::{Event, Step},
};
use sluicegate_holds::{TakeWait, return_units};
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};
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

/// Decides `request`, waits if needed, and calls the service or rejects it.
pub(crate) async fn decide<T, S, R, B, C>(
    mut reservation: Reservation<S, R>,
    mut service: T,
    request: Request<B>,
) -> Result<Response<C>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
{
    let mut is_ready = true;
    let result = if reservation.shared.settings.shadow {
        let Reservation { shared, pending, .. } = &reservation;
        let take = Operation::Take(pending.cost);
        shared
            .store
            .apply(StoreRequest::one(&pending.key, &pending.policy.inner().policy, take))
            .await
    } else {
        reservation.wait(&mut service, &mut is_ready).await?
    };
    let Reservation { shared, pending, .. } = &reservation;
    let answer = result.as_ref().ok();
    if !shared.settings.passes(&pending.policy, result.as_ref()) {
        return Ok(shared.reject(Head::of(&request), &pending.policy, answer));
    }
    if !is_ready {
        poll_fn(|context| service.poll_ready(context)).await?;
    }
    let headers = shared.response_headers(answer, &pending.policy);
    let mut response = service.call(request).await?;
    if let Some(headers) = headers {
        headers.write(response.headers_mut());
    }
    Ok(response)
}

/// A waiting request. When it is dropped, its unused reservation is refunded: also if its future was never polled.
pub(crate) struct Reservation<S: Store + 'static, R: Send + Sync + 'static> {
    shared: Arc<Shared<S, R>>,
    pending: DecisionRequest,
    wait: TakeWait,
}

impl<S: Store + 'static, R: Send + Sync + 'static> Reservation<S, R> {
    pub(crate) fn new(shared: Arc<Shared<S, R>>, pending: DecisionRequest) -> Self {
        let wait = shared.settings.take_wait(&pending.policy, pending.cost);
        Self { shared, pending, wait }
    }

    /// Waits for the last result, in which the request passes or does not.
    ///
    /// `service` is ready at first, and afterwards only if `is_ready`.
    async fn wait<T, B>(
        &mut self,
        service: &mut T,
        is_ready: &mut bool,
    ) -> Result<Result<Answer, S::Error>, T::Error>
    where
        T: Service<Request<B>> + Clone,
    {
        let Self { shared, pending: DecisionRequest { policy, key, first, .. }, wait } = self;
        let start = Instant::now();
        let now = || Timestamp::EPOCH + start.elapsed();
        let mut event = Event::Start;
        loop {
            event = match wait.poll(now(), event) {
                Step::Apply(operation) => Event::Answered(match first.take() {
                    Some(answer) => answer,
                    None => {
                        let request = StoreRequest::one(key, &policy.inner().policy, operation);
                        match shared.store.apply(request).await {
                            Ok(answer) => answer,
                            Err(error) => return Ok(Err(error)),
                        }
                    }
                }),
                Step::Observe => Event::Observed(None),
                Step::SleepUntil(then) => {
                    // A ready service may hold a slot in a queue that other requests could use in the
                    // meantime. A clone holds none.
                    *service = service.clone();
                    *is_ready = false;
                    sleep(then.since(now())).await;
                    if wait.cancel().is_some() {
                        // The reservation is used only once the service is ready.
                        poll_fn(|context| service.poll_ready(context)).await?;
                        *is_ready = true;
                    }
                    Event::Woken
                }
                Step::Done(answer) => return Ok(Ok(answer)),
            };
        }
    }
}

impl<S: Store + 'static, R: Send + Sync + 'static> Drop for Reservation<S, R> {
    fn drop(&mut self) {
        let Self { shared, pending: DecisionRequest { policy, key, first, .. }, wait } = self;
        if let Some(answer) = first.take() {
            for event in [Event::Start, Event::Answered(answer)] {
                let _ = wait.poll(Timestamp::EPOCH, event);
            }
        }
        if let Some(refund) = wait.cancel() {
            let runtime = Handle::try_current().ok();
            return_units(&shared.store, key, &policy.inner().policy, refund, runtime.as_ref());
        }
    }
}
