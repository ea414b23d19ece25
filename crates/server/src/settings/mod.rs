//! How a server is to run.

mod envoy;

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hyper::header::HeaderName;
use sluicegate_core::OnError;
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_redis::Options;

pub use self::envoy::{EnvoyConfig, EnvoyHeaders};

/// How a server is to run. Start from the default and change what differs.
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
    /// What the dashboard shows, at `/` of HTTP. Default: all that it can.
    pub dashboard: DashboardMode,
    /// How long clients may take.
    pub timeouts: TimeoutConfig,
    /// Most clients at a time; those beyond are told so and closed. Default: 10 000.
    pub max_clients: usize,
    /// Bytes that the server may buffer for all clients together: unread input, request bodies and
    /// unsent replies. A client that needs more is rejected. Default: 64 MiB.
    pub max_buffer_memory: usize,
    /// Threads that serve clients. Default: one for each core that is available.
    pub workers: Option<usize>,
    /// How state is kept in this process.
    pub memory: MemoryConfig,
    /// Keeps the state in Redis or Valkey, together with any number of other servers. Not together with a
    /// state file; the other settings of `memory` then mean nothing. Default: in this process.
    pub store: Option<StoreConfig>,
    /// What a denial is answered with that was decided because the store is unavailable. Default: 503.
    pub fallback_denial: FallbackDenial,
    /// Files of rules, or folders of such: all that end in `.yaml`, `.yml` or `.toml`. They are read
    /// again whenever they change. Default: none.
    pub rules: Vec<PathBuf>,
    /// Whether requests may say what time it is (`AT us`), each key living by its own clock: only
    /// for tests and simulations. Default: no.
    pub test_clock: bool,
}

/// How Redis clients are served.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RespConfig {
    /// Where to listen; port 0 picks a free one. Default: 127.0.0.1:6380.
    pub address: SocketAddr,
    /// A Unix socket to listen on besides. A socket file that nobody listens on is replaced.
    /// Default: none.
    pub unix: Option<PathBuf>,
    /// Who may use the Unix socket, as for `chmod`. Default: 0o700, its owner alone.
    pub unix_permissions: u32,
    /// Speaks TLS at `address`, and nothing else. Default: plain text.
    pub tls: Option<TlsConfig>,
    /// The password that clients must give before anything else. Default: none is asked for.
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
    /// The token that clients must give (`Authorization: Bearer ...`), but for health and
    /// documentation. Default: none is asked for.
    pub token: Option<String>,
    /// Names by which clients may call the server, with or without a port, besides
    /// `localhost` and loopback addresses. Where some are given, or the server listens on a loopback
    /// address and asks for no token, requests by other names are rejected (DNS rebinding); the gate
    /// answers proxies by the names of their sites. Default: none.
    pub allowed_hosts: Vec<String>,
    /// The rate limit headers of responses, unless a request says otherwise. Default: `RateLimit`.
    pub headers: HttpHeaders,
    /// Number of trusted proxies in front of the gate: so many entries of the list of addresses are
    /// believed, from the last. Default: 1, the one that asks.
    pub trusted_hops: usize,
    /// By which headers a proxy describes the request that it asks the gate about.
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
    /// What to answer a new key for which there is no room. Default: deny.
    pub when_full: WhenFull,
    /// The file that state is read from at the start, and written to. Default: none, a restart
    /// forgets. Not together with `test_clock`.
    pub state_file: Option<PathBuf>,
    /// How often state is written to the file; zero: only when the server stops. Default: 60 s.
    pub snapshot_every: Duration,
}

/// What a response of HTTP says of a limit in its fields. A denial says `Retry-After` under each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HttpHeaders {
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-11.
    #[default]
    Ietf,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining`, and `X-RateLimit-Reset` in seconds from now.
    XRateLimit,
    /// Nothing.
    None,
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

/// What a client of HTTP or Envoy is answered when a request is denied because the store is unavailable.
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

/// What the dashboard shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DashboardMode {
    /// All that it can, the keys that are asked about most among it.
    #[default]
    On,
    /// The same, with a tag in the place of each key: the same one for a key until a restart.
    Masked,
    /// All but those keys: none is noted.
    NoKeys,
    /// Nothing: there is no dashboard.
    Off,
}

/// What TLS needs. All files hold PEM.
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
    /// The certificate of the server, and those between it and its authority.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The authorities that clients must have a certificate from; `None`: they need none.
    pub client_ca: Option<PathBuf>,
}

/// A store in Redis or Valkey.
///
/// ```
/// use sluicegate_server::StoreConfig;
///
/// let mut store = StoreConfig::at("redis://127.0.0.1/");
/// store.options.prefix = b"limits:".to_vec();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StoreConfig {
    /// Where it is, as [`RedisStore::connect`](sluicegate_redis::RedisStore::connect) takes it.
    pub url: String,
    /// How it is asked. The server says itself where its connections live.
    pub options: Options,
    /// What is answered while it is away. Default: deny.
    pub on_error: OnError,
}

impl StoreConfig {
    /// The store at `url`, with all else as by default.
    #[must_use]
    pub fn at(url: impl Into<String>) -> Self {
        Self { url: url.into(), options: Options::default(), on_error: OnError::default() }
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
            headers: HttpHeaders::default(),
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
