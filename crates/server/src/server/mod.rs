//! Start, accepting clients, and stop.

mod exposure;
mod file_descriptors;
mod parts;
pub mod simulation;

use std::{future::Future, io, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use sluicegate_core::Clock as _;
use sluicegate_memory::{limit_free_memory, release_free_memory};
use tokio::{
    task::spawn_blocking,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};

use self::{
    exposure::ExposedPort,
    parts::{Parts, Registration, registrations},
};
use crate::{
    Config,
    budgets::buffers::BufferBudget,
    clock::ServerClock,
    denial_log,
    net::{
        listen::{AcceptedClient, Listeners},
        tls,
        worker::{ServedProtocol, Workers},
    },
    policies::rule_store::{FileWatcher, ReloadReport, RuleStore},
    protocols::{envoy, http, resp},
    stats::ServerStats,
    store::{
        open::{LocalStore, open},
        snapshot_file,
        snapshots::{SnapshotSource, SnapshotWriter},
        state_file::StateFile,
    },
    telemetry::Telemetry,
};

/// The pause after a failed accept, which would fail again at once while descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// The time between two lines of the log about rejected clients.
const REJECTING: Duration = Duration::from_secs(60);
/// How long the store may take for the units of leases that are given back at the end.
const CLOSE_STORE: Duration = Duration::from_secs(2);

/// The interval at which the server checks for memory to return to the system, and adds a sample to the
/// dashboard's history.
const UPKEEP: Duration = Duration::from_secs(1);

/// A server that listens.
///
/// ```
/// use sluicegate_server::{Config, Server};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut config = Config::default();
/// config.resp.address.set_port(0);
/// (config.http.address, config.envoy.address) = (None, None);
/// let server = Server::bind(config).await?;
/// assert_ne!(server.local_addr()?.port(), 0);
/// server.run(async { /* until a signal comes */ }).await
/// # })
/// # ;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    listeners: Listeners,
    /// The state file, and the store whose state it keeps.
    saved: Option<(StateFile, Arc<LocalStore>)>,
    parts: Parts,
    protocols: Arc<[ServedProtocol]>,
}

impl Server {
    /// Starts to listen, and reads the state file. Clients may connect from now on; they are served
    /// once it runs.
    ///
    /// # Errors
    /// It cannot listen on an address or read a file, the settings are invalid, or the state file is used by
    /// another server, is of another kind or cannot be written. A damaged state file is no error: it is renamed. Nor is a store that
    /// is unavailable.
    pub async fn bind(mut config: Config) -> io::Result<Self> {
        let registrations = registrations(&config);
        let tls = registrations
            .iter()
            .map(|it| it.tls.as_ref().map(|files| tls::read(files, it.protocol)).transpose());
        let tls = tls.collect::<io::Result<Vec<_>>>()?;
        let ports: Vec<_> = registrations.iter().map(|it| (it.protocol, it.address)).collect();
        if config.require_secrets {
            exposure::require_secrets(&exposed_ports(&registrations, |it| it.address))?;
        }
        let unix = config.resp.unix.as_deref().map(|path| (path, config.resp.unix_permissions));
        let listeners = Listeners::bind(&ports, unix)?;
        let clock = ServerClock::system();
        let denials = config.denial_log.as_ref().map(denial_log::Output::open).transpose()?;
        let state_file = snapshot_file::open(&config)?;
        let store = open(&config, clock.now()).await?;
        let saved = state_file.zip(store.local.clone());
        let rules = RuleStore::open(&config, clock.now())?;
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let workers = config.workers.unwrap_or_else(cores).max(1);
        config.max_clients = file_descriptors::prepare(&config, workers);
        let exposed =
            exposed_ports(&registrations, |it| listeners.addresses.address_of(it.protocol));
        exposure::warn(&exposed, config.resp.password.is_some());

        let stats = Arc::new(ServerStats::new(ports.iter().map(|it| it.0.name), workers));
        let addresses = listeners.addresses.clone();
        let parts = Parts::new(config, addresses, clock, (store, rules), stats, denials);
        let protocols = registrations.iter().zip(tls).map(|(it, tls)| ServedProtocol {
            protocol: it.protocol,
            tls,
            factory: (it.service)(&parts),
        });
        let protocols = protocols.collect();
        Ok(Self { listeners, saved, parts, protocols })
    }

    /// Where it listens for RESP, with the actual port in place of port 0.
    ///
    /// # Errors
    /// None at present.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.parts
            .addresses
            .address_of(&resp::PROTOCOL)
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Where it listens for HTTP, with the actual port in place of port 0; `None`: nowhere.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.parts.addresses.address_of(&http::PROTOCOL)
    }

    /// Where it listens for gRPC, with the actual port in place of port 0; `None`: nowhere.
    #[must_use]
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.parts.addresses.address_of(&envoy::PROTOCOL)
    }

    /// A handle that reloads the rules while the server runs, as on a signal.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.parts.decider.rules))
    }

    /// Serves until `shutdown` is ready. Then it accepts no more clients, answers every request that has
    /// arrived (waiting ones with a denial), closes all connections within 3 seconds, gives unspent units of leases back to
    /// the store within 2 more, and writes the state file.
    ///
    /// Must run on a tokio runtime with I/O and time enabled. The runtime only accepts clients; threads of the server
    /// serve them. Dropping the future instead closes all connections at once and writes no state.
    ///
    /// # Errors
    /// The system cannot start a thread. A failed accept is logged and tried again.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let Self { mut listeners, saved, parts, protocols } = self;
        limit_free_memory();
        let workers = Workers::start(&protocols, &parts.stats)?;
        let decider = &parts.decider;
        let start = |(file, store)| {
            let (clock, log) = (decider.clock, Arc::clone(&parts.snapshots));
            let every = parts.config.memory.snapshot_every;
            SnapshotWriter::start(file, every, SnapshotSource { store, clock, log })
        };
        let snapshots = saved.map(start).transpose()?;
        let exporting = parts.config.telemetry.as_ref().and_then(Telemetry::start);
        let denials = decider.denial_log.as_ref().map(|it| it.start(decider.clock)).transpose()?;
        let watching = FileWatcher::start(&decider.rules, decider.clock)?;
        tokio::pin!(shutdown);
        let (version, threads) = (env!("CARGO_PKG_VERSION"), parts.stats.workers());
        tracing::info!(version, workers = threads, "started");
        // `serve` prints the addresses.
        tracing::debug!(addresses = ?parts.addresses, "listening");
        if parts.config.test_clock {
            tracing::warn!("--test-clock: clients choose the time; do not use it in production");
        }
        if decider.is_local() && decider.rules.current().rules.has_leases() {
            tracing::warn!(
                "`lease` in the rules has no effect without --store: the state is in this process"
            );
        }

        let (mut rejecting, mut failing) = (None, false);
        let mut upkeep = interval(UPKEEP);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                _ = upkeep.tick() => {
                    release_memory(&parts.buffers, &workers);
                    parts.dashboard.sample();
                    decider.blocks.expire(decider.now());
                }
                accepted = listeners.accept() => match accepted {
                    Ok(accepted) => {
                        failing = false;
                        admit(accepted, &parts, (&protocols, &workers), &mut rejecting);
                    }
                    Err(error) => {
                        parts.stats.accepting.errors.add();
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "cannot accept clients; retrying");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }

        listeners.close(|client| admit(client, &parts, (&protocols, &workers), &mut rejecting));
        tracing::info!(clients = parts.clients.len(), "stopping");
        workers.stop().await;
        drop(watching);
        if timeout(CLOSE_STORE, decider.close()).await.is_err() {
            tracing::warn!("stopped before all leases were given back to the store");
        }
        if let Some(exporting) = exporting {
            exporting.finish().await;
        }
        if let Some(denials) = denials.flatten() {
            denials.finish().await;
        }
        if let Some(snapshots) = snapshots {
            snapshots.finish().await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Hands a client to a worker, unless there are too many. `rejecting`: when the log last said so.
fn admit(
    accepted: AcceptedClient,
    parts: &Parts,
    (protocols, workers): (&[ServedProtocol], &Workers),
    rejecting: &mut Option<Instant>,
) {
    let AcceptedClient { protocol, socket, address } = accepted;
    let ServedProtocol { protocol: kind, tls, .. } = &protocols[protocol];
    let Some(permit) = parts.clients.try_admit(kind, address, parts.decider.now()) else {
        parts.stats.accepting.rejected.add();
        if tls.is_none() {
            socket.write_and_close(kind.rejection);
        }
        if rejecting.is_none_or(|at| at.elapsed() >= REJECTING) {
            *rejecting = Some(Instant::now());
            tracing::warn!(
                max_clients = parts.clients.max,
                "rejecting clients: the limit of connections is reached"
            );
        }
        return;
    };
    workers.serve(protocol, socket, permit);
}

/// Returns freed memory to the system after clients have released much of it.
fn release_memory(buffers: &BufferBudget, workers: &Workers) {
    if buffers.take_release_due() {
        // It takes milliseconds, in which clients are still accepted.
        workers.release_memory(spawn_blocking(release_free_memory));
    }
}

fn exposed_ports(
    registrations: &[Registration],
    address: impl Fn(&Registration) -> Option<SocketAddr>,
) -> Vec<ExposedPort> {
    let ports = registrations.iter().filter_map(|it| {
        let has_ca = it.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        Some(ExposedPort {
            protocol: it.protocol.name,
            address: address(it)?,
            has_secret: it.has_secret || has_ca,
        })
    });
    ports.collect()
}

/// Reloads the rules of a server.
#[derive(Clone, Debug)]
pub struct Reloader(Arc<RuleStore>);

impl Reloader {
    /// Reads the files now, whether or not they have changed. Invalid files are logged, and the rules in force
    /// stay active.
    ///
    /// # Errors
    /// The files are invalid; the text names the file, the line and the column.
    pub async fn reload(&self) -> Result<ReloadReport, String> {
        self.0.reload().await
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use sluicegate_testing::{eventually_true, size};
    use tokio::sync::oneshot;

    use super::*;
    use crate::TlsConfig;

    /// Resident memory of this process, in KiB; 0 if the system does not provide it.
    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    #[tokio::test]
    async fn exposed_ports_have_a_secret_by_password_token_or_client_certificate() {
        let open = |config: &Config| -> Vec<_> {
            let exposed = exposed_ports(&registrations(config), |it| it.address);
            exposed.into_iter().filter(|it| !it.has_secret).map(|it| it.protocol).collect()
        };
        let tls = |client_ca| TlsConfig { cert: "c".into(), key: "k".into(), client_ca };
        let mut config = Config::default();
        assert_eq!(open(&config), ["resp", "http", "grpc"]);
        config.resp.password = Some("x".into());
        config.http.token = Some("x".into());
        assert_eq!(open(&config), ["grpc"]);
        config.envoy.tls = Some(tls(Some("a".into())));
        assert!(open(&config).is_empty());
        (config.http.token, config.http.tls) = (None, Some(tls(None)));
        assert_eq!(open(&config), ["http"]);
    }

    /// A server inside of another program leaves nothing behind after its end.
    #[tokio::test]
    async fn server_after_many_viewers_is_dropped_completely() {
        let mut config = Config { workers: Some(1), ..Config::default() };
        config.envoy.address = None;
        config.resp.address.set_port(0);
        config.http.address.iter_mut().for_each(|http| http.set_port(0));
        let server = Server::bind(config).await.unwrap();
        let http = server.http_addr().unwrap();
        let (dashboard, stats) = (&server.parts.dashboard, &server.parts.stats);
        let (dashboard, seen) = (Arc::downgrade(dashboard), Arc::downgrade(stats));
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async { drop(stopped.await) }));
        let viewers = size("SLUICEGATE_VIEWERS", 100);
        let watching = spawn_blocking(move || {
            let publishing = || {
                let stats = seen.upgrade().unwrap();
                stats.all().any(|it| it.sampler.active().is_some())
            };
            let request = b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let mut resident = Vec::new();
            for round in 0..viewers / 50 {
                let mut streams: Vec<_> = (0..50)
                    .map(|_| {
                        let mut stream = TcpStream::connect(http).unwrap();
                        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                        stream.write_all(request).unwrap();
                        stream
                    })
                    .collect();
                for stream in &mut streams {
                    assert!(stream.read(&mut [0; 64]).unwrap() > 0);
                }
                assert!(publishing(), "in round {round}");
                drop(streams);
                // The task that makes frames ends once there is no viewer.
                eventually_true("no frame is made any more", || !publishing());
                resident.push(resident_kib());
            }
            resident
        });
        let resident = watching.await.unwrap();
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
        println!(
            "figure: {viewers} viewers came and went; {} hold the server; KiB resident after each 50: {resident:?}",
            dashboard.strong_count()
        );
        assert_eq!(dashboard.strong_count(), 0);
        // In full size the test runs alone, so that allocations of other tests do not count.
        if viewers >= 1000 {
            let (early, late) = (resident[resident.len() / 4], resident[resident.len() - 1]);
            assert!(late <= early + 1024, "{resident:?}");
        }
    }
}
