//! Requests whose units are not held at once: calls of a remote store, and waiting for units in use.

use std::{future::poll_fn, sync::Arc, time::Duration};

use http::{Request, Response};
use http_body::Body;
use sluicegate_core::{Answer, Outcome, Retry, Store};
use tokio::time::{Instant, sleep};
use tower_service::Service;

use super::body::{Held, HeldBody, respond};
use crate::{
    Head, NamedPolicy, RejectionHandler,
    settings::{Settings, Shared},
};

/// Pause before a hold is tried again; it doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause: units may be settled at any time, which the store does not report.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// A request whose units are not held yet.
pub(super) struct HoldRequest<S: Store + 'static> {
    pub(super) policy: NamedPolicy,
    /// Units to hold.
    pub(super) cost: u32,
    pub(super) held: Box<Held<S>>,
    /// The first answer, if the store gave it at once.
    pub(super) first: Option<Answer>,
}

impl Settings {
    /// Whether a request waits after an answer.
    pub(super) fn waits_for_hold(&self, answer: &Answer) -> bool {
        let never = matches!(answer.outcome, Outcome::Deny { retry: Retry::Never });
        self.max_wait.is_some() && !self.shadow && !answer.allowed() && !never
    }
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
    let deadline = Instant::now() + shared.settings.max_wait.unwrap_or_default();
    let (mut pause, mut is_ready) = (FIRST_PAUSE, true);
    let result = loop {
        let result = match first.take() {
            Some(answer) => Ok(answer),
            None => held.guard.open(cost).await,
        };
        let Ok(answer) = &result else { break result };
        let left = deadline.saturating_duration_since(Instant::now());
        if held.guard.decide(answer) || !shared.settings.waits_for_hold(answer) || left.is_zero() {
            break result;
        }
        // A ready service may hold a slot in a queue that other requests could use. A clone holds none.
        service = service.clone();
        is_ready = false;
        let retry = match answer.retry() {
            Some(Retry::After(retry)) => retry,
            Some(Retry::Never) | None => left,
        };
        sleep(pause.min(left).min(retry)).await;
        pause = (pause * 2).min(MAX_PAUSE);
    };
    let decision = result.as_ref().ok().map(|answer| answer.decision);
    if !shared.settings.passes(&policy, result.as_ref()) {
        let response = shared.reject(Head::of(&request), &policy, decision);
        return Ok(response.map(|body| HeldBody::new(body, None)));
    }
    held.guard.keep_alive();
    if !is_ready {
        poll_fn(|context| service.poll_ready(context)).await?;
    }
    let headers = shared.response_headers(decision, &policy);
    let response = service.call(request).await?;
    Ok(respond(response, Some(held), headers))
}
