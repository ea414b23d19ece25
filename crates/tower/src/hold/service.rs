//! The service: holds the units of a request, and hands them to the response.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use sluicegate_core::Store;
use sluicegate_holds::{HoldGuard, HoldId};
use tower_service::Service;

use super::{
    body::{Held, HeldBody, respond},
    settings::HoldSettings,
    wait::{HoldRequest, hold_and_call},
};
use crate::{
    Head, ProblemJson, RejectionHandler, key::Key, response::ResponseHeaders, settings::Shared,
};

/// A service that holds units while a request is in flight, created by [`HoldLayer`](crate::HoldLayer).
pub struct HoldService<T, S, R = ProblemJson> {
    pub(super) inner: T,
    pub(super) shared: Arc<Shared<S, R>>,
    pub(super) settings: Arc<HoldSettings>,
}

impl<T, S, R, B, C> Service<Request<B>> for HoldService<T, S, R>
where
    T: Service<Request<B>, Response = Response<C>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
    B: Send + 'static,
    C: Body + 'static,
{
    type Response = Response<HeldBody<C, S>>;
    type Error = T::Error;
    type Future = HoldFuture<T::Future, C, T::Error, S>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { inner, shared, settings } = self;
        match begin(shared, settings, &request) {
            CallState::Passes(held, headers) => {
                let passing = inner.call(request);
                HoldFuture { kind: Kind::Passing { passing, held, headers } }
            }
            CallState::Rejected(response) => {
                HoldFuture { kind: Kind::Rejected { response: Some(response) } }
            }
            CallState::Waits(pending) => {
                let clone = inner.clone();
                let ready = std::mem::replace(inner, clone);
                let waiting = hold_and_call(Arc::clone(shared), pending, ready, request);
                HoldFuture { kind: Kind::Waiting { waiting: Box::pin(waiting) } }
            }
        }
    }
}

/// The state of a call after its first step.
enum CallState<C, S: Store + 'static> {
    Passes(Option<Box<Held<S>>>, Option<Box<ResponseHeaders>>),
    Rejected(Box<Response<C>>),
    Waits(HoldRequest<S>),
}

/// Finds the policy, and holds if the store answers at once.
fn begin<S, R, B, C>(
    shared: &Shared<S, R>,
    settings: &HoldSettings,
    request: &Request<B>,
) -> CallState<C, S>
where
    S: Store,
    R: RejectionHandler<C>,
{
    let head = Head::of(request);
    let Some(policy) = shared.settings.rules.find(&head) else {
        return CallState::Passes(None, None);
    };
    let cost = shared.settings.cost_of(&head);
    let mut key = Key::take();
    key.write(policy.inner(), &shared.settings.parts, &head);
    if let Err(error) = shared.store.check_key(&key) {
        key.leave();
        return match shared.reject_key(head, &policy, &error) {
            Some(response) => CallState::Rejected(Box::new(response)),
            None => CallState::Passes(None, None),
        };
    }
    let prepared = &policy.inner().policy;
    let ttl = settings.only_ttl.unwrap_or_else(|| settings.ttl_under(&policy));
    let guard = HoldGuard::new(&shared.store, &key, prepared, HoldId::random(), Some(ttl));
    key.leave();
    // In a box, because it moves from the call to the response and to its body.
    let mut held = Box::new(Held { guard, used_from: settings.used_from.clone() });
    let wait = shared.settings.hold_wait();
    let peeks = wait.peeks(Duration::ZERO, &policy.inner().policy);
    let first = if peeks { None } else { held.guard.open(cost).now() };
    let Some(result) = first else {
        let policy = policy.into_owned();
        return CallState::Waits(HoldRequest { policy, cost, held, first: None });
    };
    if let Ok(answer) = &result
        && !held.guard.decide(answer)
        && wait.pause(Duration::ZERO, answer.retry()).is_some()
    {
        let (policy, first) = (policy.into_owned(), Some(answer.clone()));
        return CallState::Waits(HoldRequest { policy, cost, held, first });
    }
    let answer = result.as_ref().ok();
    if shared.settings.passes(&policy, result.as_ref()) {
        CallState::Passes(Some(held), shared.response_headers(answer, &policy))
    } else {
        CallState::Rejected(Box::new(shared.reject(head, &policy, answer)))
    }
}

pin_project! {
    /// The response of a [`HoldService`].
    #[must_use = "a future must be polled"]
    pub struct HoldFuture<F, C, E, S>
    where
        S: Store,
        S: 'static,
    {
        #[pin]
        kind: Kind<F, C, E, S>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, C, E, S>
    where
        S: Store,
        S: 'static,
    {
        // The call is dropped before the units are settled.
        Passing { #[pin] passing: F, held: Option<Box<Held<S>>>, headers: Option<Box<ResponseHeaders>> },
        Rejected { response: Option<Box<Response<C>>> },
        Waiting { waiting: Waiting<C, E, S> },
    }
}

/// Boxed, because the future of a store has no name.
type Waiting<C, E, S> = Pin<Box<dyn Future<Output = Result<Response<HeldBody<C, S>>, E>> + Send>>;

impl<F, C, E, S> Future for HoldFuture<F, C, E, S>
where
    F: Future<Output = Result<Response<C>, E>>,
    C: Body,
    S: Store,
{
    type Output = Result<Response<HeldBody<C, S>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passing { passing, held, headers } => {
                let polled = passing.poll(context);
                if let (Poll::Pending, Some(held)) = (&polled, held.as_mut()) {
                    held.guard.keep_alive();
                }
                // A call that has failed is no longer in flight.
                let result = ready!(polled);
                let (held, headers) = (held.take(), headers.take());
                Poll::Ready(result.map(|response| respond(response, held, headers)))
            }
            KindProjection::Rejected { response } => {
                let response = response.take().expect("a future is not polled after it is ready");
                Poll::Ready(Ok(response.map(|body| HeldBody::new(body, None))))
            }
            KindProjection::Waiting { waiting } => waiting.as_mut().poll(context),
        }
    }
}

impl<F, C, E, S: Store> fmt::Debug for HoldFuture<F, C, E, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.kind {
            Kind::Passing { .. } => "passing",
            Kind::Rejected { .. } => "rejected",
            Kind::Waiting { .. } => "waiting",
        };
        write!(formatter, "HoldFuture({state})")
    }
}

impl<T: Clone, S, R> Clone for HoldService<T, S, R> {
    fn clone(&self) -> Self {
        let Self { inner, shared, settings } = self;
        Self { inner: inner.clone(), shared: Arc::clone(shared), settings: Arc::clone(settings) }
    }
}

impl<T, S, R> fmt::Debug for HoldService<T, S, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.settings.debug("HoldService", formatter)
    }
}
