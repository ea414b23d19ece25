//! The settings of a server: one struct for each module.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hyper::header::HeaderName;
use sluicegate_core::OnError;
use sluicegate_headers::HeaderStyle;
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_redis::Options;

use crate::telemetry::Telemetry;

/// The settings of a server. Start from the default and change what differs.
///
/// ```
/// use sluicegate_server::Config;
///
/// let mut config = Config::default();
/// assert_eq!(config.resp.address.to_string(), "127.0.0.1:6380");
/// config.resp.address.set_port(0);
/// config.http.address = None;
/// config.envoy.address = None;
/// config.memory.max_bytes = 256 << 20;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How Redis clients are served.
    pub resp: RespConfig,
    /// How clients of HTTP are served.
    pub http: HttpConfig,
    /// How Envoy is served.
    pub envoy: EnvoyConfig,
    /// Content of the dashboard, at `/` of HTTP. Default: everything.
    pub dashboard: DashboardMode,
    /// How long clients may take.
    pub timeouts: TimeoutConfig,
    /// Whether the server starts only if every port beyond loopback has a secret: a password, a token or client
    /// certificates. Default: no, it warns.
    pub require_secrets: bool,
    /// Maximum number of clients at a time; further ones are rejected. Default: 10 000.
    pub max_clients: usize,
    /// Bytes that the server may buffer for all clients together: unread input, request bodies and
    /// unsent replies. A client that needs more is rejected. Default: 64 MiB.
    pub max_buffer_memory: usize,
    /// Threads that serve clients. Default: one for each available core.
    pub workers: Option<usize>,
    /// How state is kept in this process.
    pub memory: MemoryConfig,
    /// Keeps the state in Redis or Valkey, together with any number of other servers. Not together with a
    /// state file; the other settings of `memory` then mean nothing. Default: in this process.
    pub store: Option<StoreConfig>,
    /// The status of a denial because the store is unavailable. Default: 503.
    pub fallback_denial: FallbackDenial,
    /// Rules files, or directories of them: all files that end in `.yaml`, `.yml` or `.toml`. They are
    /// reloaded when they change. Default: none.
    pub rules: Vec<PathBuf>,
    /// Where spans of requests go. Default: nowhere.
    pub telemetry: Option<Telemetry>,
    /// Where the denial log goes: why requests were denied, a line of JSON for each key and second. Default: nowhere.
    pub denial_log: Option<DenialOutput>,
    /// Whether requests may set the time (`AT us`), so that each key has its own clock. Only
    /// for tests and simulations. Default: no.
    pub test_clock: bool,
}

/// How Redis clients are served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RespConfig {
    /// Where to listen; port 0 picks a free one. Default: 127.0.0.1:6380.
    pub address: SocketAddr,
    /// An additional Unix socket. The file of an unused socket is replaced. Default: none.
    pub unix: Option<PathBuf>,
    /// Permissions of the Unix socket. Default: 0o700, its owner alone.
    pub unix_permissions: u32,
    /// Speaks TLS at `address`, and nothing else. Default: plain text.
    pub tls: Option<TlsConfig>,
    /// The password that clients must send before other commands. Default: none.
    pub password: Option<String>,
}

/// How clients of HTTP are served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HttpConfig {
    /// Where to listen for HTTP/1.1 and HTTP/2; `None`: nowhere. Default: 127.0.0.1:8080.
    pub address: Option<SocketAddr>,
    /// Speaks TLS at `address`, and nothing else. Default: plain text.
    pub tls: Option<TlsConfig>,
    /// The token that clients must send (`Authorization: Bearer ...`), except for health and
    /// documentation. Default: none.
    pub token: Option<String>,
    /// Names of the server, with or without a port, besides `localhost` and loopback addresses. If there are any,
    /// or the server listens on a loopback address without a token, requests by other names are rejected
    /// (DNS rebinding), except at the gate. Default: none.
    pub allowed_hosts: Vec<String>,
    /// The rate limit headers of responses, unless a request says otherwise. Default: `RateLimit`.
    pub headers: HeaderStyle,
    /// Number of trusted proxies in front of the gate: this many entries of the list of addresses are
    /// trusted, from the last. Default: 1, the proxy that calls the gate.
    pub trusted_hops: usize,
    /// The headers by which a proxy describes a request to the gate.
    pub gate: GateConfig,
}

/// How long clients may take before they are closed.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct TimeoutConfig {
    /// Until the next request; zero: any time. Default: any time.
    pub idle: Duration,
    /// From the start of a command or request to its end, however many bytes come; zero: any time.
    /// Default: 30 s.
    pub input: Duration,
    /// Until the client reads something of its replies. Default: 10 s.
    pub output: Duration,
}

/// How state is kept in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryConfig {
    /// Bytes that the state of keys may take up; at least 2 MiB. Default: 1 GiB.
    pub max_bytes: usize,
    /// The decision on new keys while the table is full. Default: deny.
    pub when_full: WhenFull,
    /// The file that state is read from at the start, and written to. Default: none: a restart resets all
    /// limits. Not together with `test_clock`.
    pub state_file: Option<PathBuf>,
    /// The time between snapshots to the file; zero: only when the server stops. Default: 60 s.
    pub snapshot_every: Duration,
}

/// Headers by which a proxy describes the original request to the gate. A header that is named here is the
/// only one that counts. Where none is named, all known headers that are present must agree; if they
/// differ, the request is rejected, because a client may have sent one of them.
///
/// ```
/// use sluicegate_server::{GateConfig, HeaderName};
///
/// let mut gate = GateConfig::default();
/// gate.uri_header = Some(HeaderName::from_static("x-original-uri"));
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct GateConfig {
    /// Path and query. Known: `X-Forwarded-Uri`, `X-Original-URI`, `X-Original-URL`.
    pub uri_header: Option<HeaderName>,
    /// The method. Known: `X-Forwarded-Method`, `X-Original-Method`.
    pub method_header: Option<HeaderName>,
    /// The list of addresses; `Forwarded` is read as in RFC 7239. Known: `X-Forwarded-For`, `Forwarded`.
    pub address_header: Option<HeaderName>,
}

/// The status of a denial because the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackDenial {
    /// Status 503 over HTTP, and `UNAVAILABLE` over gRPC.
    #[default]
    Unavailable,
    /// Status 429 over HTTP, and `OVER_LIMIT` over gRPC.
    TooManyRequests,
}

impl FallbackDenial {
    /// The status of HTTP.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::Unavailable => 503,
            Self::TooManyRequests => 429,
        }
    }
}

/// Content of the dashboard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DashboardMode {
    /// Everything, hot keys included.
    #[default]
    On,
    /// The same, with a mask in place of each key, which is the same until a restart.
    Masked,
    /// Everything but keys: none is sampled.
    NoKeys,
    /// Nothing: there is no dashboard.
    Off,
}

/// Where the denial log goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DenialOutput {
    /// Standard error, beside the lines of the log of the server. Lines that its reader does not take in time are
    /// dropped and counted.
    Stderr,
    /// A file, to which lines are appended. It is created, for its owner alone, if it does not exist. A named pipe needs
    /// a reader when the server starts.
    File(PathBuf),
}

/// A store outside of this process: in Redis or Valkey.
///
/// ```
/// use sluicegate_server::StoreConfig;
///
/// let mut store = StoreConfig::new("redis://127.0.0.1/");
/// store.redis.prefix = b"limits:".to_vec();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Its URL, as for [`RedisStore::connect`](sluicegate_redis::RedisStore::connect).
    pub url: String,
    /// Options of a store in Redis or Valkey. The server sets their runtime.
    pub redis: Options,
    /// The fallback while it is unavailable. Default: deny.
    pub on_error: OnError,
    /// The units of a lease under policies that can have one, unless the rules set their own; 0 and 1 are no leases.
    /// Default: 0.
    pub lease: u32,
}

impl StoreConfig {
    /// The store at `url`, with default options.
    #[must_use]
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), redis: Options::default(), on_error: OnError::default(), lease: 0 }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            resp: RespConfig::default(),
            http: HttpConfig::default(),
            envoy: EnvoyConfig::default(),
            dashboard: DashboardMode::default(),
            timeouts: TimeoutConfig::default(),
            max_clients: 10_000,
            max_buffer_memory: 64 << 20,
            workers: None,
            memory: MemoryConfig::default(),
            store: None,
            fallback_denial: FallbackDenial::default(),
            rules: Vec::new(),
            require_secrets: false,
            telemetry: None,
            denial_log: None,
            test_clock: false,
        }
    }
}

impl Default for RespConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from(([127, 0, 0, 1], 6380)),
            unix: None,
            unix_permissions: 0o700,
            tls: None,
            password: None,
        }
    }
}

impl Default for HttpConfig {
    fn default() -> Self {
        Self {
            address: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
            tls: None,
            token: None,
            allowed_hosts: Vec::new(),
            headers: HeaderStyle::default(),
            trusted_hops: 1,
            gate: GateConfig::default(),
        }
    }
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        let [input, output] = [30, 10].map(Duration::from_secs);
        Self { idle: Duration::ZERO, input, output }
    }
}

impl Default for MemoryConfig {
    fn default() -> Self {
        Self {
            max_bytes: MemoryStore::DEFAULT_MAX_BYTES,
            when_full: WhenFull::default(),
            state_file: None,
            snapshot_every: Duration::from_secs(60),
        }
    }
}

/// The files of TLS, in PEM.
///
/// ```
/// use sluicegate_server::TlsConfig;
///
/// let tls = TlsConfig {
///     cert: "/etc/sluicegate/server.crt".into(),
///     key: "/etc/sluicegate/server.key".into(),
///     client_ca: None,
/// };
/// # let _ = tls;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsConfig {
    /// The certificate of the server, and its intermediate certificates.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities of client certificates; `None`: clients need no certificate.
    pub client_ca: Option<PathBuf>,
}

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
