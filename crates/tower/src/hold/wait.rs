//! Requests whose units are not held at once: calls of a remote store, and waiting for units in use.

use std::{future::poll_fn, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use sluicegate_core::{Answer, Operation, Request as StoreRequest, Store};
use sluicegate_holds::{HoldGuard, HoldWait};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::body::{Held, HeldBody, respond};
use crate::{Head, NamedPolicy, RejectionHandler, settings::Shared};

/// A request whose units are not held yet.
pub(super) struct HoldRequest<S: Store + 'static> {
    pub(super) policy: NamedPolicy,
    /// Units to hold.
    pub(super) cost: u32,
    pub(super) held: Box<Held<S>>,
    /// The first answer, if the store gave it at once.
    pub(super) first: Option<Answer>,
}

/// Holds the units of `pending`, waits for them if needed, and calls the service or rejects the request.
pub(super) async fn hold_and_call<T, S, R, B, C>(
    shared: Arc<Shared<S, R>>,
    pending: HoldRequest<S>,
    mut service: T,
    request: Request<B>,
) -> Result<Response<HeldBody<C, S>>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
    C: Body,
{
    let HoldRequest { policy, cost, mut held, mut first } = pending;
    let (wait, start, mut is_ready) = (shared.settings.hold_wait(), Instant::now(), true);
    let result = loop {
        let attempted = match first.take() {
            Some(answer) => {
                let pause = wait.pause(start.elapsed(), answer.retry());
                Ok((answer, pause))
            }
            None => attempt(&*shared.store, &mut held.guard, cost, &wait, start).await,
        };
        let pause = match attempted {
            Ok((_, Some(pause))) => pause,
            Ok((answer, None)) => break Ok(answer),
            Err(error) => break Err(error),
        };
        // A ready service may hold a slot in a queue that other requests could use. A clone holds none.
        service = service.clone();
        is_ready = false;
        sleep(pause).await;
    };
    let answer = result.as_ref().ok();
    if !shared.settings.passes(&policy, result.as_ref()) {
        let response = shared.reject(Head::of(&request), &policy, answer);
        return Ok(response.map(|body| HeldBody::new(body, None)));
    }
    held.guard.keep_alive();
    if !is_ready {
        poll_fn(|context| service.poll_ready(context)).await?;
    }
    let headers = shared.response_headers(answer, &policy);
    let response = service.call(request).await?;
    Ok(respond(response, Some(held), headers))
}

/// Tries once. Returns the answer and, if the request waits, how long it pauses.
async fn attempt<S: Store + 'static>(
    store: &S,
    guard: &mut HoldGuard<S>,
    cost: u32,
    wait: &HoldWait,
    start: Instant,
) -> Result<(Answer, Option<Duration>), S::Error> {
    // The request's own hold, whose answer was lost, could deny its peek.
    if !guard.may_be_open() && wait.peeks(start.elapsed(), guard.policy()) {
        let peek = store
            .apply(StoreRequest::one(guard.key(), guard.policy(), Operation::Peek(cost)))
            .await?;
        let pause = wait.pause(start.elapsed(), peek.retry());
        // A denial that is the answer is recorded by the hold below.
        if pause.is_some() {
            return Ok((peek, pause));
        }
    }
    let answer = guard.open(cost).await?;
    guard.decide(&answer);
    let pause = wait.pause(start.elapsed(), answer.retry());
    Ok((answer, pause))
}
