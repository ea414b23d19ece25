//! The settings of Envoy's rate limit service.

use std::{net::SocketAddr, time::Duration};

use super::tls::TlsConfig;

/// How the rate limit service of Envoy answers. Part of a [`Config`](crate::Config).
///
/// ```
/// use sluicegate_server::{Config, EnvoyHeaders};
///
/// let mut config = Config::default();
/// config.envoy.headers = EnvoyHeaders::XRateLimit;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnvoyConfig {
    /// Where to listen for gRPC; `None`: nowhere. Default: 127.0.0.1:8081.
    pub address: Option<SocketAddr>,
    /// Speaks TLS at `address`, and nothing else. Default: plain text.
    pub tls: Option<TlsConfig>,
    /// Headers that Envoy adds to responses. Default: none, because Envoy can add its own.
    pub headers: EnvoyHeaders,
    /// Whether responses have metadata for later filters: the request, and the limits of the
    /// quota mode that deny. Default: no.
    pub metadata: bool,
    /// A connection is ended at about this age, after its calls are answered, so that clients
    /// redistribute over servers; zero: never. Default: never.
    pub max_age: Duration,
    /// Maximum number of streams of the quota service, one for each Envoy. Default: 1000.
    pub max_quota_streams: usize,
    /// Maximum number of buckets that one of them reports. Default: 20 000.
    pub max_quota_buckets: usize,
}

/// Headers that Envoy adds to responses.
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

impl Default for EnvoyConfig {
    fn default() -> Self {
        Self {
            address: Some(SocketAddr::from(([127, 0, 0, 1], 8081))),
            tls: None,
            headers: EnvoyHeaders::default(),
            metadata: false,
            max_age: Duration::ZERO,
            max_quota_streams: 1000,
            max_quota_buckets: 20_000,
        }
    }
}
