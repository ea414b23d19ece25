//! The service: decides requests that need no waiting, and passes the others on.

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
    ask::{Answered, Asked, Next, ask},
    key::Key,
    layer::Shared,
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
        // Each is made where it is returned: a service's future may be long, and is moved once less.
        match shared.begin(&request) {
            Begun::Passes(told) => {
                ResponseFuture { kind: Kind::Passing { passing: inner.call(request), told } }
            }
            Begun::Refused(response) => {
                ResponseFuture { kind: Kind::Refused { response: Some(response) } }
            }
            // Somebody has to be waited for. The service that was made ready goes along.
            Begun::Asks(asked) => {
                let clone = inner.clone();
                let ready = std::mem::replace(inner, clone);
                let asking = ask(Arc::clone(shared), *asked, ready, request);
                ResponseFuture { kind: Kind::Asking { asking: Box::pin(asking) } }
            }
        }
    }
}

/// What becomes of a request, as far as it is known at once.
enum Begun<C> {
    Passes(Option<Box<Told>>),
    Refused(Box<Response<C>>),
    Asks(Box<Asked>),
}

impl<S, R> Shared<S, R> {
    /// Finds the policy, and asks.
    #[inline(always)]
    fn begin<B, C>(&self, request: &Request<B>) -> Begun<C>
    where
        S: Store,
        R: Refuse<C>,
    {
        let head = Head::of(request);
        match self.settings.rules.one() {
            Some(policy) => self.ask_now(&head, policy),
            None => self.find_and_ask(&head),
        }
    }

    // Apart, so that the way of one policy for all is short.
    #[inline(never)]
    fn find_and_ask<C>(&self, head: &Head<'_>) -> Begun<C>
    where
        S: Store,
        R: Refuse<C>,
    {
        match self.settings.rules.find(head) {
            Some(policy) => self.ask_now(head, &policy),
            None => Begun::Passes(None),
        }
    }

    /// Asks the store, where it can answer at once.
    #[inline(always)]
    fn ask_now<C>(&self, head: &Head<'_>, policy: &NamedPolicy) -> Begun<C>
    where
        S: Store,
        R: Refuse<C>,
    {
        let settings = &self.settings;
        let cost = settings.cost_of(head);
        let operation = settings.operation(policy, cost, None);
        let mut key = Key::take();
        key.write(policy.inner(), &settings.parts, head);
        let answered = match self.store.apply_now(&key, policy.policy(), operation) {
            Some(Ok(decision)) => {
                (settings.next::<S::Error>(policy, Ok(decision), None), Some(decision))
            }
            Some(Err(error)) => (settings.next(policy, Err(&error), None), None),
            None => return Begun::asks(policy, key, cost, None),
        };
        let begun = match answered {
            (Next::Pass, decision) => Begun::Passes(self.told(decision, policy)),
            (Next::Refuse, decision) => {
                Begun::Refused(Box::new(self.refusal(*head, policy, decision)))
            }
            _ => return Begun::asks(policy, key, cost, Some(answered)),
        };
        key.leave();
        begun
    }
}

impl<C> Begun<C> {
    #[inline(never)]
    fn asks(policy: &NamedPolicy, key: Box<Key>, cost: u32, first: Option<Answered>) -> Self {
        let asked = Asked { policy: policy.clone(), key: key.to_vec(), cost, first };
        key.leave();
        Self::Asks(Box::new(asked))
    }
}

impl<S, R> Shared<S, R> {
    /// What the response is to say, where it says anything.
    #[inline(always)]
    pub(crate) fn told(
        &self,
        decision: Option<Decision>,
        policy: &NamedPolicy,
    ) -> Option<Box<Told>> {
        let headers = self.settings.headers;
        let decision = decision.filter(|_| headers != Headers::None && !self.settings.shadow)?;
        Some(Box::new(Told { headers, policy: policy.clone(), decision }))
    }

    /// What is answered in place of the service.
    #[inline(never)]
    pub(crate) fn refusal<C>(
        &self,
        head: Head<'_>,
        policy: &NamedPolicy,
        denied: Option<Decision>,
    ) -> Response<C>
    where
        R: Refuse<C>,
    {
        let denied = denied.as_ref();
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
        Passing { #[pin] passing: F, told: Option<Box<Told>> },
        Refused { response: Option<Box<Response<C>>> },
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

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().kind.project() {
            KindProjection::Passing { passing, told } => {
                let Some(told) = told else { return passing.poll(context) };
                let mut response = ready!(passing.poll(context))?;
                told.write(response.headers_mut());
                Poll::Ready(Ok(response))
            }
            KindProjection::Refused { response } => {
                Poll::Ready(Ok(*response.take().expect("nobody polls what is done")))
            }
            KindProjection::Asking { asking } => asking.as_mut().poll(context),
        }
    }
}

impl<F, C, E> fmt::Debug for ResponseFuture<F, C, E> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.kind {
            Kind::Passing { .. } => "passing",
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
