//! The service: decides requests that need no waiting, and hands others to `wait`.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use sluicegate_core::{Answer, Request as StoreRequest, Store, wait::peeks_first};
use tower_service::Service;

use crate::{
    Head, NamedPolicy, ProblemJson, RejectionHandler,
    key::Key,
    response::ResponseHeaders,
    settings::{NextStep, Shared},
    wait::{DecisionRequest, Waiting, decide},
};

/// A rate limited service, created by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<T, S, R = ProblemJson> {
    pub(crate) inner: T,
    pub(crate) shared: Arc<Shared<S, R>>,
}

impl<T, S, R, B, C> Service<Request<B>> for RateLimit<T, S, R>
where
    T: Service<Request<B>, Response = Response<C>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store + 'static,
    R: RejectionHandler<C> + Send + Sync + 'static,
    B: Send + 'static,
    C: 'static,
{
    type Response = Response<C>;
    type Error = T::Error;
    type Future = ResponseFuture<T::Future, C, T::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), T::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Self { inner, shared } = self;
        // Each future is created where it is returned: it may be large, and is moved once less.
        match shared.begin(&request) {
            CallState::Passes(headers) => {
                ResponseFuture { kind: Kind::Passing { passing: inner.call(request), headers } }
            }
            CallState::Rejected(response) => {
                ResponseFuture { kind: Kind::Rejected { response: Some(response) } }
            }
            // The request has to wait. It takes the service that is ready.
            CallState::Waits(pending) => {
                let clone = inner.clone();
                let ready = std::mem::replace(inner, clone);
                let waiting = Waiting::new(Arc::clone(shared), *pending);
                let waiting = decide(waiting, ready, request);
                ResponseFuture { kind: Kind::Waiting { waiting: Box::pin(waiting) } }
            }
        }
    }
}

/// The state of a call after its first step.
enum CallState<C> {
    Passes(Option<Box<ResponseHeaders>>),
    Rejected(Box<Response<C>>),
    Waits(Box<DecisionRequest>),
}

impl<S, R> Shared<S, R> {
    /// Finds the policy, and decides if the store can answer at once.
    #[expect(clippy::inline_always, reason = "faster within its caller; figure in ADR 40")]
    #[inline(always)]
    fn begin<B, C>(&self, request: &Request<B>) -> CallState<C>
    where
        S: Store,
        R: RejectionHandler<C>,
    {
        let (settings, head) = (&self.settings, &Head::of(request));
        let found;
        let policy = if let Some(only) = settings.rules.one() {
            only
        } else {
            found = settings.rules.find(head);
            let Some(found) = &found else { return CallState::Passes(None) };
            found
        };
        let cost = settings.cost_of(head);
        let operation = settings.operation(policy, cost);
        let mut key = Key::take();
        key.write(policy.inner(), &settings.parts, head);
        if let Err(error) = self.store.check_key(&key) {
            key.leave();
            return match self.reject_key(*head, policy, &error) {
                Some(response) => CallState::Rejected(Box::new(response)),
                None => CallState::Passes(None),
            };
        }
        // Only a waiter peeks before it takes.
        let (waits, limits) = (settings.max_wait.is_some(), policy.policy());
        if waits && !limits.can_reserve() && peeks_first(limits) {
            return CallState::waits(policy, key, cost, None);
        }
        let Some(result) =
            self.store.apply(StoreRequest::one(&key, &policy.inner().policy, operation)).now()
        else {
            // `wait` applies the operation, with a key of its own.
            return CallState::waits(policy, key, cost, None);
        };
        // The answer stays where it is: to move it costs time (ADR 40).
        let begun = match &result {
            Ok(answer) => match settings.next(policy, answer) {
                NextStep::Pass => CallState::Passes(self.response_headers(Some(answer), policy)),
                NextStep::Reject => {
                    CallState::Rejected(Box::new(self.reject(*head, policy, Some(answer))))
                }
                NextStep::Wait => return CallState::waits(policy, key, cost, result.ok()),
            },
            Err(error) if settings.passes(policy, Err(error)) => CallState::Passes(None),
            Err(_) => CallState::Rejected(Box::new(self.reject(*head, policy, None))),
        };
        key.leave();
        begun
    }
}

impl<C> CallState<C> {
    #[inline(never)]
    fn waits(policy: &NamedPolicy, key: Box<Key>, cost: u32, first: Option<Answer>) -> Self {
        let pending = DecisionRequest { policy: policy.clone(), key: key.to_vec(), cost, first };
        key.leave();
        Self::Waits(Box::new(pending))
    }
}

pin_project! {
    /// The response of a [`RateLimit`].
    #[must_use = "a future must be polled"]
    pub struct ResponseFuture<F, C, E> {
        #[pin]
        kind: Kind<F, C, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, C, E> {
        Passing { #[pin] passing: F, headers: Option<Box<ResponseHeaders>> },
        Rejected { response: Option<Box<Response<C>>> },
        Waiting { waiting: BoxedWait<C, E> },
    }
}

/// Boxed, because the future of a store has no name.
type BoxedWait<C, E> = Pin<Box<dyn Future<Output = Result<Response<C>, E>> + Send>>;

impl<F, C, E> Future for ResponseFuture<F, C, E>
where
    F: Future<Output = Result<Response<C>, E>>,
{
    type Output = Result<Response<C>, E>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passing { passing, headers } => {
                let Some(headers) = headers else { return passing.poll(context) };
                let mut response = ready!(passing.poll(context))?;
                headers.write(response.headers_mut());
                Poll::Ready(Ok(response))
            }
            KindProjection::Rejected { response } => {
                Poll::Ready(Ok(*response.take().expect("a future is not polled after it is ready")))
            }
            KindProjection::Waiting { waiting } => waiting.as_mut().poll(context),
        }
    }
}

impl<F, C, E> fmt::Debug for ResponseFuture<F, C, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.kind {
            Kind::Passing { .. } => "passing",
            Kind::Rejected { .. } => "rejected",
            Kind::Waiting { .. } => "waiting",
        };
        write!(formatter, "ResponseFuture({state})")
    }
}

impl<T: Clone, S, R> Clone for RateLimit<T, S, R> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<T, S, R> fmt::Debug for RateLimit<T, S, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.shared.settings.debug("RateLimit", formatter)
    }
}
