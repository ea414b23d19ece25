//! Requests in flight: units that are held until the body of the response has ended.

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{HeaderMap, HeaderName, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use sluicegate_core::{Answer, Operation, Retry, Store, wait::peeks_first};
use sluicegate_holds::{HoldGuard, HoldId, PendingRequest};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Head, NamedPolicy, ProblemJson, RateLimitLayer, RejectionHandler, key::Key,
    response::ResponseHeaders, settings::Shared, wait::wait,
};

/// A service that holds units while a request is in flight, created by [`HoldLayer`](crate::HoldLayer).
pub struct HoldService<T, S, R = ProblemJson> {
    inner: T,
    shared: Arc<Shared<S, R>>,
    settings: Arc<HoldSettings>,
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
                let waiting = hold_and_call(Arc::clone(shared), *pending, ready, request);
                HoldFuture { kind: Kind::Waiting { waiting: Box::pin(waiting) } }
            }
        }
    }
}

/// The state of a call after its first step.
enum CallState<C, S: Store + 'static> {
    Passes(Option<Box<Held<S>>>, Option<Box<ResponseHeaders>>),
    Rejected(Box<Response<C>>),
    Waits(Box<HoldRequest<S>>),
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
    let mut guard = HoldGuard::new(&shared.store, &key, prepared, HoldId::random(), Some(ttl));
    key.leave();
    let (wait, used_from) = (shared.settings.hold_wait(), settings.used_from.clone());
    let waits = !wait.timeout().is_zero();
    let peeks = waits && peeks_first(policy.policy());
    let first = if peeks { None } else { guard.open(cost).now() };
    let is_open = first.as_ref().is_some_and(|it| it.as_ref().is_ok_and(|it| guard.decide(it)));
    let first = match first {
        Some(Ok(answer)) if !is_open && waits && answer.retry() != Some(Retry::Never) => {
            Some(answer)
        }
        Some(result) => return decided(shared, &policy, head, guard, used_from, &result),
        None => None,
    };
    let mut pending = PendingRequest::hold(&shared.store, [guard].into(), [cost], wait, false);
    if let Some(answer) = first {
        pending = pending.answered(answer);
    }
    CallState::Waits(Box::new(HoldRequest { policy: policy.into_owned(), pending, used_from }))
}

/// Passes or rejects a request that the store has answered at once.
fn decided<S, R, C>(
    shared: &Shared<S, R>,
    policy: &NamedPolicy,
    head: Head<'_>,
    guard: HoldGuard<S>,
    used_from: Option<HeaderName>,
    result: &Result<Answer, S::Error>,
) -> CallState<C, S>
where
    S: Store,
    R: RejectionHandler<C>,
{
    // In a box, because it moves from the call to the response and to its body.
    let held = Box::new(Held { guard, used_from });
    let answer = result.as_ref().ok();
    if shared.settings.passes(policy, result.as_ref()) {
        CallState::Passes(Some(held), shared.response_headers(answer, policy))
    } else {
        CallState::Rejected(Box::new(shared.reject(head, policy, answer)))
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

// The layer that holds units while a request is in flight.

/// The default lifetime of a hold.
const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// A layer that holds the units of each request until the body of its response has ended or is dropped: a limit on
/// requests in flight, per key, over any store, alone or beside rates.
///
/// Made by [`RateLimitLayer::hold`], whose settings it keeps. The hold is settled also if the service fails or panics,
/// or if the client disconnects. It is renewed as long as the response takes. If the process dies, the hold expires
/// after its [`ttl`](Self::ttl).
///
/// ```
/// use std::time::Duration;
/// use http::{HeaderName, Request, Response};
/// use http_body_util::{BodyExt, Full};
/// use sluicegate::{LocalLimiter, PreparedPolicy};
/// use sluicegate_tower::{KeyPart, NamedPolicy, RateLimitLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// // At most 20 000 tokens in flight, and 100 000 a minute. A request holds 4000, and reports its usage.
/// let policy = NamedPolicy::new("tokens", "concurrency:20000/30s,token-bucket:100000/1m".parse()?);
/// let layer = RateLimitLayer::new(LocalLimiter::new(), policy)
///     .by(KeyPart::header(HeaderName::from_static("x-team")))
///     .cost(4000)
///     .hold()
///     .used_from(HeaderName::from_static("x-tokens-used"));
///
/// let service = layer.layer(service_fn(async |_: Request<()>| {
///     let response = Response::builder().header("x-tokens-used", 2310);
///     response.body(Full::<bytes::Bytes>::from("hello"))
/// }));
/// let response = service.oneshot(Request::new(())).await?;
/// // The units are held until here.
/// let body = response.into_body().collect().await?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct HoldLayer<S, R = ProblemJson> {
    layer: RateLimitLayer<S, R>,
    settings: HoldSettings,
}

impl<S, R> RateLimitLayer<S, R> {
    /// Holds units while a request is in flight, instead of taking them. Policies with `concurrency` limits need this. A
    /// policy with a `leaky-queue` cannot hold: each request is an error of the store.
    #[must_use]
    pub fn hold(self) -> HoldLayer<S, R> {
        HoldLayer {
            layer: self,
            settings: HoldSettings { ttl: DEFAULT_TTL, only_ttl: None, used_from: None },
        }
    }
}

impl<S, R> HoldLayer<S, R> {
    /// Sets the lifetime of a hold that is not renewed, because the process died: 1 ms to 24 h; default 30 s. Under
    /// `concurrency` limits it is at most their shortest period. A lifetime outside of this range is an error of the store
    /// for each request.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// Settles with the units that the header or the trailer `name` of the response has, a decimal number, which may be
    /// more or less than the cost of the request. A response without a valid one is settled with its cost, as it is
    /// without this option. `concurrency` limits charge nothing in any case.
    #[must_use]
    pub fn used_from(mut self, name: HeaderName) -> Self {
        self.settings.used_from = Some(name);
        self
    }
}

impl<S, R, T> Layer<T> for HoldLayer<S, R> {
    type Service = HoldService<T, S, R>;

    fn layer(&self, inner: T) -> Self::Service {
        let RateLimitLayer { store, settings, handler } = self.layer.clone();
        let only_ttl = settings.rules.one().map(|policy| self.settings.ttl_under(policy));
        let holds = Arc::new(HoldSettings { only_ttl, ..self.settings.clone() });
        HoldService {
            inner,
            shared: Arc::new(Shared { store, settings, handler }),
            settings: holds,
        }
    }
}

/// Clones share the store.
impl<S, R> Clone for HoldLayer<S, R> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), settings: self.settings.clone() }
    }
}

impl<S, R> fmt::Debug for HoldLayer<S, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, settings } = self;
        formatter
            .debug_struct("HoldLayer")
            .field("layer", layer)
            .field("settings", settings)
            .finish()
    }
}

// The settings that only layers with holds have.

/// The settings of a layer that only holds have.
#[derive(Clone, Debug)]
struct HoldSettings {
    ttl: Duration,
    /// The lifetime under the only policy, if there is one for all requests.
    only_ttl: Option<Duration>,
    /// The header or trailer of responses with the units that were used.
    used_from: Option<HeaderName>,
}

impl HoldSettings {
    /// The lifetime of holds under `policy`.
    fn ttl_under(&self, policy: &NamedPolicy) -> Duration {
        // An id and no lifetime: the longest one is then the default.
        let hold = Operation::Hold { id: b"-", cost: 0, ttl: None };
        let longest = policy.policy().check_operation(hold);
        longest.map_or(self.ttl, |micros| self.ttl.min(Duration::from_micros(micros)))
    }
}

// Requests whose units are not held at once: calls of a remote store, and waiting for units in use.

/// A request whose units are not held yet.
struct HoldRequest<S: Store + 'static> {
    policy: NamedPolicy,
    pending: PendingRequest<S>,
    /// The header or trailer with the units that were used.
    used_from: Option<HeaderName>,
}

/// Holds the units of a request, waits for them if needed, and calls the service or rejects the request.
async fn hold_and_call<T, S, R, B, C>(
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
    let answer = result.as_ref().ok();
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

// The body of a response whose request holds units.

pin_project! {
    /// The body of a response. The units of its request are held until it has ended or is dropped.
    pub struct HeldBody<C, S>
    where
        S: Store,
        S: 'static,
    {
        #[pin]
        body: C,
        held: Option<Box<Held<S>>>,
    }
}

/// The units of a request in flight.
struct Held<S: Store + 'static> {
    guard: HoldGuard<S>,
    /// The header or trailer with the units that were used.
    used_from: Option<HeaderName>,
}

impl<S: Store> Held<S> {
    /// Reads the units that were used, if a header or trailer has them.
    fn read_used(&mut self, headers: &HeaderMap) {
        let Some(name) = &self.used_from else { return };
        let value = headers.get(name).and_then(|value| value.to_str().ok());
        if let Some(used) = value.and_then(|value| value.parse::<u32>().ok()) {
            self.guard.set_used(used);
        }
    }
}

impl<C: Body, S: Store> HeldBody<C, S> {
    /// `body`, which holds nothing if it has ended already.
    fn new(body: C, held: Option<Box<Held<S>>>) -> Self {
        let held = held.filter(|_| !body.is_end_stream());
        Self { body, held }
    }
}

impl<C: Body, S: Store> Body for HeldBody<C, S> {
    type Data = C::Data;
    type Error = C::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<C::Data>, C::Error>>> {
        let mut this = self.project();
        let polled = this.body.as_mut().poll_frame(context);
        let Some(held) = this.held else { return polled };
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(trailers) = frame.trailers_ref()
        {
            held.read_used(trailers);
        }
        let has_ended = match &polled {
            Poll::Ready(Some(Ok(_))) => this.body.is_end_stream(),
            Poll::Ready(_) => true,
            Poll::Pending => false,
        };
        if has_ended {
            *this.held = None;
        } else {
            held.guard.keep_alive();
        }
        Poll::Ready(ready!(polled))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An empty body that holds nothing.
impl<C: Default, S: Store> Default for HeldBody<C, S> {
    fn default() -> Self {
        Self { body: C::default(), held: None }
    }
}

impl<C: fmt::Debug, S: Store> fmt::Debug for HeldBody<C, S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HeldBody")
            .field("body", &self.body)
            .field("is_held", &self.held.is_some())
            .finish()
    }
}

/// Hands the units to the body of the response.
fn respond<C: Body, S: Store>(
    mut response: Response<C>,
    mut held: Option<Box<Held<S>>>,
    headers: Option<Box<ResponseHeaders>>,
) -> Response<HeldBody<C, S>> {
    if let Some(held) = &mut held {
        held.read_used(response.headers());
    }
    if let Some(headers) = headers {
        headers.write(response.headers_mut());
    }
    response.map(|body| HeldBody::new(body, held))
}
