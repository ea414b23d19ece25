//! What becomes of a request that can be decided at once, and who decides the others.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{HeaderMap, Request, Response};
use pin_project_lite::pin_project;
use sluicegate_core::{Decision, Store};
use tower_service::Service;

use crate::{
    Head, Headers, NamedPolicy, ProblemJson, Refusal, Refuse,
    ask::{Asked, Next, ask},
    layer::Shared,
};

/// A service behind a limit, made by [`RateLimitLayer`](crate::RateLimitLayer).
pub struct RateLimit<T, S, R = ProblemJson> {
    pub(crate) inner: T,
    pub(crate) shared: Arc<Shared<S, R>>,
}

impl<T, S, R, B, C> Service<Request<B>> for RateLimit<T, S, R>
where
    T: Service<Request<B>, Response = Response<C>> + Clone + Send + 'static,
    T::Future: Send,
    S: Store + Send + Sync + 'static,
    R: Refuse<C> + Send + Sync + 'static,
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
        let kind = match shared.begin(&request) {
            Begun::Passes(None) => Kind::Passing { passing: inner.call(request) },
            Begun::Passes(Some(told)) => Kind::Telling { passing: inner.call(request), told },
            Begun::Refused(response) => Kind::Refused { response: Some(response) },
            // Somebody has to be waited for. The service that was made ready goes along.
            Begun::Asks(asked) => {
                let clone = inner.clone();
                let ready = std::mem::replace(inner, clone);
                let asking = ask(Arc::clone(shared), *asked, ready, request);
                Kind::Asking { asking: Box::pin(asking) }
            }
        };
        ResponseFuture { kind }
    }
}

/// What becomes of a request, as far as it is known at once.
enum Begun<C> {
    Passes(Option<Told>),
    Refused(Response<C>),
    Asks(Box<Asked>),
}

impl<S, R> Shared<S, R> {
    /// Asks the store, where it can answer at once.
    #[inline(always)]
    fn begin<B, C>(&self, request: &Request<B>) -> Begun<C>
    where
        S: Store,
        R: Refuse<C>,
    {
        let settings = &self.settings;
        let head = Head::of(request);
        let Some(policy) = settings.rules.find(&head) else { return Begun::Passes(None) };
        // The key stays where it is written: one that moves right after is waited for.
        let mut key = policy.inner().start.start();
        settings.push_parts(&head, &mut key);
        let cost = settings.cost_of(&head);
        let operation = settings.operation(&policy, cost, None);
        let first = self.store.apply_now(&key, policy.policy(), operation);
        let next = first.as_ref().map(|result| settings.next(&policy, result, None));
        match (next, &first) {
            (Some(Next::Pass), Some(result)) => {
                Begun::Passes(self.told(result.as_ref().ok(), || policy.into_owned()))
            }
            (Some(Next::Refuse), Some(result)) => {
                Begun::Refused(self.refusal(head, &policy, result.as_ref().ok()))
            }
            _ => {
                let first = next.zip(first.map(Result::ok));
                Begun::Asks(Box::new(Asked { policy: policy.into_owned(), key, cost, first }))
            }
        }
    }
}

impl<S, R> Shared<S, R> {
    /// What the response is to say, where it says anything.
    pub(crate) fn told(
        &self,
        decision: Option<&Decision>,
        policy: impl FnOnce() -> NamedPolicy,
    ) -> Option<Told> {
        let headers = self.settings.headers;
        let decision = decision.filter(|_| headers != Headers::None && !self.settings.shadow)?;
        Some(Told { headers, policy: policy(), decision: *decision })
    }

    /// What is answered in place of the service.
    #[inline(never)]
    pub(crate) fn refusal<C>(
        &self,
        head: Head<'_>,
        policy: &NamedPolicy,
        denied: Option<&Decision>,
    ) -> Response<C>
    where
        R: Refuse<C>,
    {
        let mut response = self.refuse.refuse(&Refusal { head, policy, denied });
        if let Some(denied) = denied {
            Headers::tell_retry(denied, response.headers_mut());
            self.settings.headers.tell(policy.inner(), denied, response.headers_mut());
        }
        response
    }
}

/// What a response is to say.
#[derive(Debug)]
pub(crate) struct Told {
    headers: Headers,
    policy: NamedPolicy,
    decision: Decision,
}

impl Told {
    #[inline(never)]
    pub(crate) fn write(&self, headers: &mut HeaderMap) {
        self.headers.tell(self.policy.inner(), &self.decision, headers);
    }
}

pin_project! {
    /// The response of a [`RateLimit`].
    pub struct ResponseFuture<F, C, E> {
        #[pin]
        kind: Kind<F, C, E>,
    }
}

pin_project! {
    #[project = KindProjection]
    enum Kind<F, C, E> {
        Passing { #[pin] passing: F },
        Telling { #[pin] passing: F, told: Told },
        Refused { response: Option<Response<C>> },
        Asking { asking: Asking<C, E> },
    }
}

/// Boxed, as the future of a store has no name.
type Asking<C, E> = Pin<Box<dyn Future<Output = Result<Response<C>, E>> + Send>>;

impl<F, C, E> Future for ResponseFuture<F, C, E>
where
    F: Future<Output = Result<Response<C>, E>>,
{
    type Output = Result<Response<C>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passing { passing } => passing.poll(context),
            KindProjection::Telling { passing, told } => {
                let mut response = ready!(passing.poll(context))?;
                told.write(response.headers_mut());
                Poll::Ready(Ok(response))
            }
            KindProjection::Refused { response } => {
                Poll::Ready(Ok(response.take().expect("nobody polls what is done")))
            }
            KindProjection::Asking { asking } => asking.as_mut().poll(context),
        }
    }
}

impl<F, C, E> fmt::Debug for ResponseFuture<F, C, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.kind {
            Kind::Passing { .. } | Kind::Telling { .. } => "passing",
            Kind::Refused { .. } => "refused",
            Kind::Asking { .. } => "asking",
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
