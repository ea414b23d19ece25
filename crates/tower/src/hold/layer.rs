//! The layer that holds units while a request is in flight.

use std::{fmt, sync::Arc, time::Duration};

use http::HeaderName;
use tower_layer::Layer;

use super::{service::HoldService, settings::HoldSettings};
use crate::{ProblemJson, RateLimitLayer, settings::Shared};

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
    pub(super) layer: RateLimitLayer<S, R>,
    pub(super) settings: HoldSettings,
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
