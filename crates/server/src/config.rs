//! How a server is to run.

use sluicegate_core::OnError;
use std::{net::SocketAddr, path::PathBuf, time::Duration};

use hyper::header::HeaderName;
use sluicegate_memory::{MemoryStore, WhenFull};
use sluicegate_redis::Options;

use crate::EnvoyConfig;

/// How a server is to run. Start from the default and change what differs.
///
/// ```
/// use sluicegate_server::Config;
///
/// let mut config = Config::default();
/// assert_eq!(config.listen.to_string(), "127.0.0.1:6380");
/// config.listen.set_port(0);
/// config.http = None;
/// config.grpc = None;
/// config.max_memory = 256 << 20;
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen for RESP; port 0 picks a free one. Default: 127.0.0.1:6380.
    pub listen: SocketAddr,
    /// Where to listen for HTTP/1.1 and HTTP/2; `None`: nowhere. Default: 127.0.0.1:8080.
    pub http: Option<SocketAddr>,
    /// Where to listen for gRPC, the rate limit service of Envoy; `None`: nowhere.
    /// Default: 127.0.0.1:8081.
    pub grpc: Option<SocketAddr>,
    /// A Unix socket to listen on besides. A socket file that nobody listens on is replaced.
    /// Default: none.
    pub unix: Option<PathBuf>,
    /// Who may use the Unix socket, as for `chmod`. Default: 0o700, its owner alone.
    pub unix_permissions: u32,
    /// Speaks TLS at `listen`, and nothing else. Default: plain text.
    pub tls: Option<TlsConfig>,
    /// Speaks TLS at `http`, and nothing else. Default: plain text.
    pub http_tls: Option<TlsConfig>,
    /// Speaks TLS at `grpc`, and nothing else. Default: plain text.
    pub grpc_tls: Option<TlsConfig>,
    /// How the rate limit service of Envoy answers.
    pub envoy: EnvoyConfig,
    /// The token that clients of HTTP must give (`Authorization: Bearer ...`), but for health and
    /// documentation. Default: none is asked for.
    pub http_token: Option<String>,
    /// Names by which clients may call the server at `http`, with or without a port, besides
    /// `localhost` and loopback addresses. Where some are given, or the server listens on a loopback
    /// address and asks for no token, requests by other names are rejected (DNS rebinding); the gate
    /// answers proxies by the names of their sites. Default: none.
    pub http_allowed_hosts: Vec<String>,
    /// What the responses of HTTP say of a limit in their fields, unless a request says otherwise.
    /// Default: `RateLimit`.
    pub http_headers: HttpHeaders,
    /// What the dashboard shows, at `/` of HTTP. Default: all that it can.
    pub dashboard: DashboardMode,
    /// How many proxies of ours a request has come through when one of them asks the gate of HTTP
    /// about it: of the list of addresses, so many entries are believed, from the last. Default: 1, the
    /// one that asks.
    pub http_trusted_hops: usize,
    /// By which headers a proxy describes the request that it asks the gate about.
    pub gate: GateConfig,
    /// The password that clients of RESP must give before anything else. Default: none is asked for.
    pub requirepass: Option<String>,
    /// Whether requests may say what time it is (`AT us`), each key living by its own clock: only
    /// for tests and simulations. Default: no.
    pub test_clock: bool,
    /// Most clients at a time; those beyond are told so and closed. Default: 10 000.
    pub max_clients: usize,
    /// Bytes that the server may buffer for all clients together: unread input, request bodies and
    /// unsent replies. A client that needs more is rejected. Default: 64 MiB.
    pub max_buffer_memory: usize,
    /// Threads that serve clients. Default: one for each core that is available.
    pub workers: Option<usize>,
    /// Bytes that the state of keys may take up; at least 2 MiB. Default: 1 GiB.
    pub max_memory: usize,
    /// What to answer a new key for which there is no room. Default: deny.
    pub when_full: WhenFull,
    /// The file that state is read from at the start, and written to. Default: none, a restart
    /// forgets. Not together with `test_clock`.
    pub state_file: Option<PathBuf>,
    /// How often state is written to the file; zero: only when the server stops. Default: 60 s.
    pub snapshot_every: Duration,
    /// Keeps the state in Redis or Valkey, together with any number of other servers. Not together with
    /// `state_file`; `max_memory` and `when_full` then mean nothing. Default: in this process.
    pub store: Option<StoreConfig>,
    /// What a denial is answered with that was decided because the store is unavailable. Default: 503.
    pub fallback_denial: FallbackDenial,
    /// Files of rules, or folders of such: all that end in `.yaml`, `.yml` or `.toml`. They are read
    /// again whenever they change. Default: none.
    pub rules: Vec<PathBuf>,
    /// A client that asks nothing for so long is closed; zero: never. Default: never.
    pub timeout: Duration,
    /// A client that does not finish a command for so long after it began it is closed, however
    /// many bytes it sends; zero: never. Default: 30 s.
    pub input_timeout: Duration,
    /// A client that does not take its replies for so long is closed. Default: 10 s.
    pub output_timeout: Duration,
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
            listen: SocketAddr::from(([127, 0, 0, 1], 6380)),
            http: Some(SocketAddr::from(([127, 0, 0, 1], 8080))),
            grpc: Some(SocketAddr::from(([127, 0, 0, 1], 8081))),
            unix: None,
            unix_permissions: 0o700,
            tls: None,
            http_tls: None,
            grpc_tls: None,
            envoy: EnvoyConfig::default(),
            http_token: None,
            http_allowed_hosts: Vec::new(),
            http_headers: HttpHeaders::default(),
            dashboard: DashboardMode::default(),
            http_trusted_hops: 1,
            gate: GateConfig::default(),
            requirepass: None,
            test_clock: false,
            max_clients: 10_000,
            max_buffer_memory: 64 << 20,
            workers: None,
            max_memory: MemoryStore::DEFAULT_MAX_BYTES,
            when_full: WhenFull::default(),
            state_file: None,
            snapshot_every: Duration::from_secs(60),
            store: None,
            fallback_denial: FallbackDenial::default(),
            rules: Vec::new(),
            timeout: Duration::ZERO,
            input_timeout: Duration::from_secs(30),
            output_timeout: Duration::from_secs(10),
        }
    }
}
