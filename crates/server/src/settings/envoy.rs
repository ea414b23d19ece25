//! What may be said of the face of Envoy.

use std::time::Duration;

/// How the rate limit service of Envoy answers. Part of a [`Config`](crate::Config).
///
/// ```
/// use sluicegate_server::{Config, EnvoyHeaders};
///
/// let mut config = Config::default();
/// config.envoy.headers = EnvoyHeaders::XRateLimit;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnvoyConfig {
    /// What Envoy is to add to responses. Default: nothing; Envoy can do so by itself.
    pub headers: EnvoyHeaders,
    /// Whether Envoy is told, for the filters that come after, what it asked and which limits of the
    /// quota mode are over. Default: no.
    pub metadata: bool,
    /// A connection is ended at about this age, when its calls are answered, so that clients spread
    /// over servers anew; zero: never. Default: never.
    pub max_age: Duration,
}

/// Header fields that Envoy is to add to responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnvoyHeaders {
    /// None.
    #[default]
    None,
    /// `RateLimit-Limit`, `RateLimit-Remaining`, `RateLimit-Reset`.
    RateLimit,
    /// The same with `X-` before them.
    XRateLimit,
}
