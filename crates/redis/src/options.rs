//! Settings of a store, and the parts of the system that a simulation replaces: time, random numbers, tasks and connections.

use std::{fmt, io, ops::Deref, path::PathBuf, sync::Arc, time::Duration};

use sluicegate_core::{BoxFuture, Clock, OnError, Timestamp};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    runtime::Handle,
};

/// Settings of a store. Start from the default and change what differs.
///
/// ```no_run
/// use std::time::Duration;
/// use sluicegate_redis::{Options, RedisStore};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut options = Options::default();
/// options.prefix = b"limits:".to_vec();
/// options.deadline = Duration::from_millis(50);
/// let store = RedisStore::connect_with("redis://127.0.0.1/", options).await?;
/// # Ok::<(), sluicegate_core::StoreError>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Prefix of every key in the store. Default: none.
    pub prefix: Vec<u8>,
    /// Longest time for one decision, connecting included. Afterwards [`OnError`] decides. Default: 15 ms.
    pub deadline: Duration,
    /// Longest time to establish the first connection, and later ones in the background. Default: 500 ms.
    pub connect_timeout: Duration,
    /// Longest time to repeat a denial from the cache. Refunds, resets and policy changes by other processes
    /// may take effect this much later. 0 disables the cache. Default: 1 s.
    pub max_denial_cache: Duration,
    /// Maximum number of keys in the cache. Default: 65 536.
    pub max_known_keys: usize,
    /// Consecutive failures after which the circuit breaker of a node opens. The node then receives only a
    /// probe every [`PROBE_EVERY`](crate::PROBE_EVERY), until one succeeds. The breaker opens immediately if no
    /// connection can be established, the node accepts no writes, or a probe gets no reply. Default: 10.
    pub breaker_failures: u32,
    /// Maximum number of requests in flight to one node. Further requests wait, and are not sent once their
    /// deadline has passed. Default: 1024.
    pub max_in_flight: usize,
    /// Lifetime of a lease, after which its unused units are returned. Default: 1 s.
    pub lease_lifetime: Duration,
    /// Maximum number of leased keys. Others are decided request by request. Default: 4096.
    pub max_leases: usize,
    /// Memory for the states of [`OnError::Local`], in bytes. Default: 64 MiB.
    pub max_local_memory: usize,
    /// TLS settings. By default, the system's authorities are trusted.
    pub tls: TlsOptions,
    /// How often to check whether a node has
    /// [the module](https://github.com/sluicegate/sluicegate/blob/main/docs/module.md) by now. Each new connection checks
    /// too. `None`: use scripts only. Default: 10 s.
    pub look_for_module: Option<Duration>,
    /// The fallback that the log names when the store becomes unavailable. Each
    /// [`PreparedPolicy`](sluicegate_core::PreparedPolicy) has
    /// its own setting, which decides. Default: deny.
    pub on_error: OnError,
    /// A clock whose time is sent with each operation, in place of the store's own, for tests and simulations. Keys then
    /// have the prefix [`TEST_PREFIX`](crate::script::TEST_PREFIX) and no other, and live for at least an hour; no
    /// cache, lease or fallback is used. Default: none.
    pub test_clock: Option<TestClock>,
    /// Runtime of the connections, which close with it. Set it if the store is used from several runtimes.
    /// Default: the runtime of the first request.
    pub runtime: Option<Handle>,
    /// What to use in place of the system's clock, connections, tasks and random numbers, for simulations. Default: none.
    pub environment: Option<Arc<dyn Environment>>,
}

/// A clock of a test or a simulation. It is read when an operation is called, and not when its answer is awaited.
#[derive(Clone)]
pub struct TestClock(Arc<dyn Clock + Send + Sync>);

impl TestClock {
    /// The clock of a store.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock + Send + Sync>) -> Self {
        Self(clock)
    }
}

impl Deref for TestClock {
    type Target = dyn Clock + Send + Sync;

    fn deref(&self) -> &Self::Target {
        &*self.0
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "TestClock({})", self.now())
    }
}

/// TLS settings. All files are PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// The only authority to trust. Default: the authorities of the system.
    pub ca: Option<PathBuf>,
    /// Client certificate and its private key. Default: none.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            deadline: Duration::from_millis(15),
            connect_timeout: Duration::from_millis(500),
            max_denial_cache: Duration::from_secs(1),
            max_known_keys: 1 << 16,
            breaker_failures: 10,
            max_in_flight: 1024,
            lease_lifetime: Duration::from_secs(1),
            max_leases: 4096,
            max_local_memory: 64 << 20,
            tls: TlsOptions::default(),
            look_for_module: Some(Duration::from_secs(10)),
            on_error: OnError::Deny,
            test_clock: None,
            runtime: None,
            environment: None,
        }
    }
}

/// A replacement for the system, so that a simulation decides what happens, in which order and when. Set it in
/// [`Options`](crate::Options). Timers are those of tokio, whose time a simulation pauses.
pub trait Environment: fmt::Debug + Send + Sync {
    /// The time of this process, which never goes back.
    fn now(&self) -> Timestamp;

    /// A random number.
    fn random(&self) -> u64;

    /// Runs `task` in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// A connection to a server.
    ///
    /// # Errors
    /// The reason why it failed.
    fn connect(&self, host: &str, port: u16)
    -> BoxFuture<'static, io::Result<Box<dyn Connection>>>;
}

/// A connection, as bytes in both directions.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}
