//! The layer.

use std::{fmt, sync::Arc, time::Duration};

use sluicegate_core::Store;
use sluicegate_holds::Jitter;
use tower_layer::Layer;

use crate::{
    Event, Head, HeaderStyle, KeyPart, ProblemJson, RateLimit, Rules,
    settings::{Cost, Settings, Shared},
};

/// A layer that limits the requests to a service.
///
/// All requests share one count, unless [`by`](Self::by) sets a key. A denied request does not reach the
/// service: the response is 429 with a problem document (RFC 9457), or set by [`on_rejection`](Self::on_rejection). While
/// the store is unavailable, every request gets 503, or passes with
/// [`allow_on_error`](Self::allow_on_error).
///
/// A `leaky-queue` delays requests, which needs a tokio runtime with timers.
///
/// Layers on one store share their counts if the names of their policies and the parts of their keys are equal.
///
/// ```
/// use http::{Request, Response, StatusCode};
/// use sluicegate::LocalLimiter;
/// use sluicegate_tower::{ClientAddress, NamedPolicy, RateLimitLayer};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let policy = NamedPolicy::new("hello", "gcra:30/60s:burst=1".parse()?);
/// let layer = RateLimitLayer::new(LocalLimiter::new(), policy).by(ClientAddress::peer());
///
/// let hello = service_fn(async |_: Request<()>| {
///     Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
/// });
/// let service = layer.layer(hello);
///
/// let first = service.clone().oneshot(Request::new(())).await?;
/// assert_eq!(first.headers()["ratelimit"], r#""hello";r=0;t=2"#);
/// let second = service.oneshot(Request::new(())).await?;
/// assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
/// assert_eq!(second.headers()["retry-after"], "2");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RateLimitLayer<S, R = ProblemJson> {
    pub(crate) store: Arc<S>,
    pub(crate) settings: Settings,
    pub(crate) handler: Arc<R>,
}

impl<S: Store> RateLimitLayer<S> {
    /// A layer over `store`: a `Limiter` or `LocalLimiter` of the crate `sluicegate`, or any other [`Store`]. The
    /// rules are a policy, a [`NamedPolicy`](crate::NamedPolicy), [`Routes`](crate::Routes), or a function
    /// ([`Rules::by`]).
    #[must_use]
    pub fn new(store: S, rules: impl Into<Rules>) -> Self {
        let settings = Settings {
            rules: rules.into(),
            parts: Vec::new(),
            cost: Cost::Fixed(1),
            headers: HeaderStyle::default(),
            max_wait: None,
            jitter: Jitter::NONE,
            shadow: false,
            allow_on_error: false,
            observe: None,
        };
        Self { store: Arc::new(store), settings, handler: Arc::new(ProblemJson) }
    }
}

impl<S, R> RateLimitLayer<S, R> {
    /// Adds a part to the key. Requests without it, such as those without the header, share one count.
    #[must_use]
    pub fn by(mut self, part: impl Into<KeyPart>) -> Self {
        self.settings.parts.push(part.into());
        self
    }

    /// Sets the cost of every request, in units; default 1.
    #[must_use]
    pub fn cost(mut self, cost: u32) -> Self {
        self.settings.cost = Cost::Fixed(cost);
        self
    }

    /// Sets the cost of each request with a function, in units. A request of cost 0 always passes.
    ///
    /// ```
    /// # use sluicegate_tower::RateLimitLayer;
    /// # let limiter = sluicegate::LocalLimiter::new();
    /// # let policy: sluicegate::Policy = "gcra:100/1s".parse()?;
    /// let layer = RateLimitLayer::new(limiter, policy)
    ///     .cost_by(|head| if head.path().starts_with("/search") { 10 } else { 1 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cost_by(mut self, cost: impl Fn(&Head<'_>) -> u32 + Send + Sync + 'static) -> Self {
        self.settings.cost = Cost::By(Arc::new(cost));
        self
    }

    /// Sets the rate limit headers of responses; default [`HeaderStyle::Ietf`].
    #[must_use]
    pub fn headers(mut self, headers: HeaderStyle) -> Self {
        self.settings.headers = headers;
        self
    }

    /// Sets the response to rejected requests: [`Grpc`](crate::Grpc), a function, or any other
    /// [`RejectionHandler`](crate::RejectionHandler).
    ///
    /// ```
    /// use http::Response;
    /// use sluicegate_tower::{RateLimitLayer, Rejection};
    /// # let limiter = sluicegate::LocalLimiter::new();
    /// # let policy: sluicegate::Policy = "gcra:100/1s".parse()?;
    ///
    /// let layer = RateLimitLayer::new(limiter, policy).on_rejection(|rejection: &Rejection<'_>| {
    ///     let mut response = Response::new("slow down\n".to_owned());
    ///     *response.status_mut() = rejection.status();
    ///     response
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn on_rejection<R2>(self, handler: R2) -> RateLimitLayer<S, R2> {
        RateLimitLayer { store: self.store, settings: self.settings, handler: Arc::new(handler) }
    }

    /// Delays a request that would pass within `max_wait`, and denies others immediately. Needs tokio's timer.
    ///
    /// With limits of the gcra family and `leaky-queue`, waiting requests pass in arrival order, evenly spaced. A
    /// cancelled request releases its reservation to later ones. With other limits, a waiting request tries again
    /// after its retry time, and reserves nothing. A waiting request uses no capacity of the service.
    ///
    /// ```
    /// use std::time::Duration;
    /// use http::{Request, Response};
    /// use sluicegate::LocalLimiter;
    /// use sluicegate_tower::{NamedPolicy, RateLimitLayer};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// // Three requests at once, and a hundred a second: the others wait.
    /// let policy = NamedPolicy::new("partner", "gcra:100/1s:burst=3".parse()?);
    /// let layer = RateLimitLayer::new(LocalLimiter::new(), policy).wait_up_to(Duration::from_secs(60));
    ///
    /// let hello = service_fn(async |_: Request<()>| {
    ///     Ok::<_, std::convert::Infallible>(Response::new("hello".to_owned()))
    /// });
    /// let service = layer.layer(hello);
    /// for _ in 0..5 {
    ///     assert_eq!(service.clone().oneshot(Request::new(())).await?.status(), 200);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Panics
    /// The future of a request panics if it has to wait outside of a tokio runtime with timers.
    #[must_use]
    pub fn wait_up_to(mut self, max_wait: Duration) -> Self {
        self.settings.max_wait = Some(max_wait);
        self
    }

    /// Adds a random delay to each wait of [`wait_up_to`](Self::wait_up_to), so that requests that wait for the same moment,
    /// such as the start of a window, do not all arrive at once. A wait still ends within its maximum, and no request passes
    /// before its reservation. A request that need not wait is not delayed. Default: [`Jitter::NONE`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use sluicegate_tower::{Jitter, RateLimitLayer};
    /// # let limiter = sluicegate::LocalLimiter::new();
    /// # let policy: sluicegate::Policy = "fixed-window:100/1s".parse()?;
    ///
    /// let layer = RateLimitLayer::new(limiter, policy)
    ///     .wait_up_to(Duration::from_secs(5))
    ///     .jitter(Jitter::up_to(Duration::from_millis(50)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn jitter(mut self, jitter: Jitter) -> Self {
        self.settings.jitter = jitter;
        self
    }

    /// Decides and calls [`observe`](Self::observe), but lets every request pass unchanged, to try a limit on real
    /// traffic before it denies anything.
    ///
    /// ```
    /// use sluicegate_tower::RateLimitLayer;
    /// # let limiter = sluicegate::LocalLimiter::new();
    /// # let policy: sluicegate::Policy = "gcra:100/1s".parse()?;
    ///
    /// let layer = RateLimitLayer::new(limiter, policy)
    ///     .shadow(true)
    ///     .observe(|event| println!("{event}")); // default: denied (shadow)
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn shadow(mut self, shadow: bool) -> Self {
        self.settings.shadow = shadow;
        self
    }

    /// Lets requests pass after an error of the store, instead of responding with 503. A denial by the
    /// [`OnError`](sluicegate_core::OnError) of a [prepared policy](crate::NamedPolicy::prepared) is not an error.
    #[must_use]
    pub fn allow_on_error(mut self, allow: bool) -> Self {
        self.settings.allow_on_error = allow;
        self
    }

    /// Calls `observe` with each decision and each error of the store, for metrics and logs. It is called before the
    /// service or the rejection, on the task of the request, and should be quick.
    ///
    /// ```
    /// use std::sync::{Arc, atomic::{AtomicU64, Ordering}};
    /// use sluicegate_tower::RateLimitLayer;
    /// # let limiter = sluicegate::LocalLimiter::new();
    /// # let policy: sluicegate::Policy = "gcra:100/1s".parse()?;
    ///
    /// let denied = Arc::new(AtomicU64::new(0));
    /// let counter = Arc::clone(&denied);
    /// let layer = RateLimitLayer::new(limiter, policy).observe(move |event| match event.result {
    ///     Ok(answer) if answer.allowed() => {}
    ///     Ok(answer) => {
    ///         println!("{}: denied by the {}", event.policy, answer.source.as_str());
    ///         counter.fetch_add(1, Ordering::Relaxed);
    ///     }
    ///     Err(error) => eprintln!("{}: {error}", event.policy),
    /// });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn observe(mut self, observe: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.settings.observe = Some(Arc::new(observe));
        self
    }
}

impl<S, R, T> Layer<T> for RateLimitLayer<S, R> {
    type Service = RateLimit<T, S, R>;

    fn layer(&self, inner: T) -> Self::Service {
        let Self { store, settings, handler } = self.clone();
        RateLimit { inner, shared: Arc::new(Shared { store, settings, handler }) }
    }
}

/// Clones share the store.
impl<S, R> Clone for RateLimitLayer<S, R> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            settings: self.settings.clone(),
            handler: Arc::clone(&self.handler),
        }
    }
}

impl<S, R> fmt::Debug for RateLimitLayer<S, R> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.debug("RateLimitLayer", formatter)
    }
}
