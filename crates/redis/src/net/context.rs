//! State that all connections of a store share, its counters, and how a connection is established.

use std::{
    fmt, fs,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use ahash::RandomState;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo,
    IntoConnectionInfo, ProtocolVersion, PushInfo, RedisConnectionInfo, TlsCertificates,
    aio::MultiplexedConnection, from_redis_value, io::tcp::TcpSettings,
};
use sluicegate_commands::plain_error;
use sluicegate_core::{Clock, Counters, OnError, RoundTrips, StoreError, Timestamp};
use sluicegate_memory::SystemClock;
use tokio::sync::Notify;

use super::{
    report::OutageLine,
    url::{Address, Kind, Url},
};
use crate::Options;

/// Commands that wait to be written; the default of redis-rs is 50.
const PIPELINE_BUFFER: usize = 4096;
/// Bytes after which commands are written; the default of redis-rs is 8 KiB.
const WRITE_BUFFER_BYTES: usize = 64 << 10;

/// State that all connections of a store share.
pub(crate) struct Context {
    pub(crate) url: Url,
    pub(crate) options: Options,
    pub(crate) clock: SystemClock,
    pub(crate) counts: CounterValues,
    /// Durations of round trips.
    pub(crate) round_trips: LatencyHistogram,
    certificates: TlsCertificates,
    /// Wakes the task that reads the map of the cluster again, because a node is unavailable.
    pub(super) node_unavailable: Notify,
    /// Index of the sentinel to query first.
    sentinel: AtomicUsize,
}

/// The server of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    At(Address),
    /// The primary of this name, according to the sentinels.
    Primary {
        sentinels: Vec<Address>,
        name: String,
    },
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(formatter),
            Self::Primary { name, .. } => write!(formatter, "primary `{name}`"),
        }
    }
}

/// Advice for a connection with TLS that is not established in time: a server without TLS waits for more bytes.
pub(super) const TLS_ADVICE: &str =
    "; the server does not answer the TLS handshake: if the port has no TLS, use `redis://`";

impl Context {
    pub(crate) fn new(url: Url, options: Options) -> Result<Arc<Self>, StoreError> {
        let read = |path: &std::path::PathBuf| {
            fs::read(path)
                .map_err(|error| StoreError::Settings(format!("file {}: {error}", path.display())))
        };
        let mut certificates = TlsCertificates { client_tls: None, root_cert: None };
        if let Some((cert, key)) = &options.tls.client {
            let client_tls = ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? };
            certificates.client_tls = Some(client_tls);
        }
        certificates.root_cert = options.tls.ca.as_ref().map(read).transpose()?;
        Ok(Arc::new(Self {
            url,
            options,
            clock: SystemClock::new(),
            counts: CounterValues::default(),
            round_trips: LatencyHistogram::default(),
            certificates,
            node_unavailable: Notify::new(),
            sentinel: AtomicUsize::new(0),
        }))
    }

    pub(crate) fn now(&self) -> Timestamp {
        match &self.options.environment {
            None => self.clock.now(),
            Some(environment) => environment.now(),
        }
    }

    /// A random number.
    fn random(&self) -> u64 {
        match &self.options.environment {
            None => RandomState::new().hash_one(0),
            Some(environment) => environment.random(),
        }
    }

    /// A hash function with keys that nobody else knows.
    pub(crate) fn hasher(&self) -> RandomState {
        match &self.options.environment {
            None => RandomState::new(),
            Some(_) => {
                RandomState::with_seeds(self.random(), self.random(), self.random(), self.random())
            }
        }
    }

    /// From half to one and a half times `span`, at random.
    pub(crate) fn jitter(&self, span: Duration) -> Duration {
        let random = u32::try_from(self.random() % 1025).unwrap_or_default();
        span / 2 + span * random / 1024
    }

    /// Runs `task` in the background, on the configured runtime if there is one.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        match (&self.options.environment, &self.options.runtime) {
            (Some(environment), _) => environment.spawn(Box::pin(task)),
            (None, Some(runtime)) => drop(runtime.spawn(task)),
            (None, None) => drop(tokio::spawn(task)),
        }
    }

    /// Establishes a connection; `pushed` is called when it is closed.
    pub(crate) async fn connect(
        &self,
        endpoint: &Endpoint,
        pushed: impl Fn(PushInfo) -> Result<(), ()> + Send + Sync + 'static,
    ) -> Result<(MultiplexedConnection, Address), StoreError> {
        let address = match endpoint {
            Endpoint::At(address) => address.clone(),
            Endpoint::Primary { sentinels, name } => self.primary(sentinels, name).await?,
        };
        let Url { user, password, database, .. } = &self.url;
        // RESP3, because only then redis-rs reports that an idle connection was closed.
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_lib_name("sluicegate", env!("CARGO_PKG_VERSION"))
            .set_db(*database);
        if let Some(user) = user {
            login = login.set_username(user);
        }
        if let Some(password) = password {
            login = login.set_password(password);
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.options.connect_timeout))
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE_BUFFER)
            .set_concurrency_limit(self.options.max_in_flight.max(1))
            .set_write_backpressure_boundary(WRITE_BUFFER_BYTES)
            .set_push_sender(pushed);
        let connection = self.open(&address, login, &config).await?;
        Ok((connection, address))
    }

    /// Logs that a node became unavailable, or answers again.
    pub(super) fn log_outage(&self, node: &dyn fmt::Display, line: OutageLine, why: &str) {
        match line {
            OutageLine::Unavailable { more } => {
                let decision = fallback_text(self.options.on_error);
                let before = if more > 0 {
                    format!("; {more} outages before this one were not logged")
                } else {
                    String::new()
                };
                tracing::warn!(
                    %node,
                    reason = why,
                    "the store is unavailable: until it answers, {decision}{before}"
                );
            }
            OutageLine::Available { after } => {
                let seconds = after.as_secs_f64();
                tracing::info!(%node, "the store answers again, after {seconds:.1} s");
            }
            OutageLine::WasUnavailable { times } => {
                tracing::info!(%node, "the store answers; it was unavailable {times} more times");
            }
        }
    }

    async fn open(
        &self,
        address: &Address,
        login: RedisConnectionInfo,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, StoreError> {
        let unavailable = |error: redis::RedisError| {
            // The library quotes the class of the server's error: `"WRONGPASS": ...`.
            let mut text = plain_error(&error).replacen("\": ", " ", 1);
            if error.kind() == redis::ErrorKind::Parse {
                text = "it does not speak the Redis protocol: expected Redis, Valkey, or the Redis protocol of a Sluicegate server".to_owned();
            }
            if self.url.tls && (error.is_timeout() || text.contains("corrupt message")) {
                text.push_str(TLS_ADVICE);
            }
            StoreError::Unavailable(text.trim_start_matches('"').to_owned())
        };
        let Address { host, port } = address.clone();
        if let Some(environment) = &self.options.environment {
            let stream = environment.connect(&host, port).await;
            let stream = stream.map_err(|error| StoreError::Unavailable(error.to_string()))?;
            let made = MultiplexedConnection::new_with_config(&login, stream, config.clone());
            let (connection, driver) = made.await.map_err(unavailable)?;
            environment.spawn(Box::pin(driver));
            return Ok(connection);
        }
        let at = match (&self.url.kind, self.url.tls) {
            (Kind::Unix, _) => ConnectionAddr::Unix(host.into()),
            (_, true) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
            (_, false) => ConnectionAddr::Tcp(host, port),
        };
        let info: ConnectionInfo = at.into_connection_info().map_err(unavailable)?;
        let info = info
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(login);
        let client = if self.url.tls {
            Client::build_with_tls(info, self.certificates.clone())
        } else {
            Client::open(info)
        };
        let client = client.map_err(|error| StoreError::Settings(error.to_string()))?;
        client.get_multiplexed_async_connection_with_config(config).await.map_err(unavailable)
    }

    /// The address of the primary according to a sentinel. Each call begins with another one, because after a
    /// failover some of them know the new primary seconds before the others.
    pub(super) async fn primary(
        &self,
        sentinels: &[Address],
        name: &str,
    ) -> Result<Address, StoreError> {
        let mut why = String::new();
        let first = self.sentinel.fetch_add(1, Ordering::Relaxed) % sentinels.len().max(1);
        let (before, from_first) = sentinels.split_at(first);
        for sentinel in from_first.iter().chain(before) {
            let each =
                self.options.connect_timeout / u32::try_from(sentinels.len()).unwrap_or(1).max(1);
            match tokio::time::timeout(each, self.primary_of(sentinel, name)).await {
                Ok(Ok(address)) => return Ok(address),
                Ok(Err(error)) => why = format!("sentinel {sentinel}: {error}"),
                Err(_) => why = format!("sentinel {sentinel} does not answer"),
            }
        }
        Err(StoreError::Unavailable(why))
    }

    async fn primary_of(&self, sentinel: &Address, name: &str) -> Result<Address, StoreError> {
        let config = AsyncConnectionConfig::new();
        let login = RedisConnectionInfo::default();
        let mut connection = self.open(sentinel, login, &config).await?;
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer = connection.send_packed_command(&command).await;
        let answer = answer.map_err(|error| StoreError::Unavailable(plain_error(&error)))?;
        let unknown = || StoreError::Unavailable(format!("primary `{name}` is unknown there"));
        let (host, port) = from_redis_value(answer).map_err(|_| unknown())?;
        Ok(Address { host, port })
    }
}

/// The fallback decision, for the log.
fn fallback_text(on_error: OnError) -> &'static str {
    match on_error {
        OnError::Deny => "requests are denied (on_error: deny)",
        OnError::Allow => "requests are allowed without a limit (on_error: allow)",
        OnError::Local(_) => "requests are decided in this process (on_error: local)",
        _ => "requests fail (on_error: fail)",
    }
}

// Durations of round trips to the store, as a histogram.

/// The round trips of many threads.
#[derive(Debug, Default)]
pub(crate) struct LatencyHistogram {
    counts: [Counter; RoundTrips::BUCKETS],
    micros: Counter,
}

impl LatencyHistogram {
    pub(crate) fn record(&self, micros: u64) {
        self.counts[RoundTrips::BOUNDS.partition_point(|&bound| bound < micros)].one();
        self.micros.add(micros);
    }

    pub(crate) fn read(&self) -> RoundTrips {
        RoundTrips {
            counts: std::array::from_fn(|index| self.counts[index].read()),
            total: Duration::from_micros(self.micros.read()),
        }
    }
}

/// A count that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self) {
        self.add(1);
    }

    pub(crate) fn read(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counter_values {
    ($($(#[doc = $text:literal])+ $name:ident,)+) => {
        /// The values of [`Counters`].
        #[derive(Debug, Default)]
        pub(crate) struct CounterValues {
            $(pub(crate) $name: Counter,)+
        }

        impl CounterValues {
            pub(crate) fn read(&self) -> Counters {
                let mut counters = Counters::default();
                $(counters.$name = self.$name.read();)+
                counters
            }
        }
    };
}

sluicegate_core::store_counters!(counter_values);

#[cfg(test)]
mod tests_of_latency {
    use super::*;

    #[test]
    fn record_duration_at_a_bound_counts_below_it() {
        let histogram = LatencyHistogram::default();
        for micros in [0, 50, 51, 1_000_000, 1_000_001] {
            histogram.record(micros);
        }
        let read = histogram.read();
        let filled: Vec<_> = read.buckets().filter(|(_, count)| *count > 0).collect();
        let bound = |micros| Some(Duration::from_micros(micros));
        assert_eq!(filled, [(bound(50), 2), (bound(100), 1), (bound(1_000_000), 1), (None, 1)]);
        assert_eq!(read.total, Duration::from_micros(2_000_102));
    }
}
