//! Requests whose units are not held at once: calls of a remote store, and waiting for units in use.

use std::{future::poll_fn, sync::Arc};

use http::{HeaderName, Request, Response};
use http_body::Body;
use sluicegate_core::Store;
use sluicegate_holds::PendingRequest;
use tower_service::Service;

use super::body::{Held, HeldBody, respond};
use crate::{Head, NamedPolicy, RejectionHandler, settings::Shared, wait::wait};

/// A request whose units are not held yet.
pub(super) struct HoldRequest<S: Store + 'static> {
    pub(super) policy: NamedPolicy,
    pub(super) pending: PendingRequest<S>,
    /// The header or trailer with the units that were used.
    pub(super) used_from: Option<HeaderName>,
}

/// Holds the units of a request, waits for them if needed, and calls the service or rejects the request.
pub(super) async fn hold_and_call<T, S, R, B, C>(
    shared: Arc<Shared<S, R>>,
    HoldRequest { policy, mut pending, used_from }: HoldRequest<S>,
    mut service: T,
    request: Request<B>,
) -> Result<Response<HeldBody<C, S>>, T::Error>
where
    T: Service<Request<B>, Response = Response<C>> + Clone,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
    C: Body,
{
    let mut is_ready = true;
    let result = wait(&mut pending, &mut service, &mut is_ready).await?;
    let answer = result.as_ref().ok().cloned();
    if !shared.settings.passes(&policy, result.as_ref()) {
        let response = shared.reject(Head::of(&request), &policy, answer);
        return Ok(response.map(|body| HeldBody::new(body, None)));
    }
    let guard = pending.into_guards().pop().expect("a hold of one key has one guard");
    let mut held = Box::new(Held { guard, used_from });
    held.guard.keep_alive();
    if !is_ready {
        poll_fn(|context| service.poll_ready(context)).await?;
    }
    let headers = shared.response_headers(answer, &policy);
    let response = service.call(request).await?;
    Ok(respond(response, Some(held), headers))
}
