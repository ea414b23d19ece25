//! Accepting clients, and stopping.

use std::{future::Future, io, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use rustls::ServerConfig;
use sluicegate_core::Clock;
use sluicegate_memory::{SystemClock, limit_free_memory, release_free_memory};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval, sleep},
};

use crate::{
    Config, descriptors, exposure,
    face::Face,
    home::Home,
    listen::{Accepted, Addresses, Listeners},
    ruleset::{self, Live, Reloaded},
    shared::{Clients, Shared},
    snapshot_file,
    snapshots::{SnapshotSource, SnapshotWriter},
    state_file::StateFile,
    tls,
    worker::Workers,
};

/// How long to wait after a failed accept: it fails again at once where file descriptors are out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// How often the server checks whether memory is to be returned to the system, and adds a sample to the
/// dashboard's history.
const UPKEEP: Duration = Duration::from_secs(1);

/// A server that listens.
///
/// ```
/// use sluicegate_server::{Config, Server};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut config = Config::default();
/// config.listen.set_port(0);
/// (config.http, config.grpc) = (None, None);
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
    shared: Arc<Shared>,
    state_file: Option<StateFile>,
}

impl Server {
    /// Starts to listen, and reads the state file. Clients may connect from now on; they are served
    /// once it runs.
    ///
    /// # Errors
    /// What the system says if it cannot listen there, or cannot read a file that it needs; a store or
    /// a combination of settings that cannot be. A state file that can be read but not understood is no
    /// error: it is set aside. Nor is a store that is away. A state file that another server uses, or that
    /// cannot be written, is one.
    pub async fn bind(mut config: Config) -> io::Result<Self> {
        let tls = read_tls(&config)?;
        let listeners = Listeners::bind(&config).await?;
        let addresses = listeners.addresses()?;
        let clock = SystemClock::new();
        let state_file = snapshot_file::open(&config)?;
        let home = Home::open(&config, clock.now()).await?;
        let rules = Live::open(&config, clock.now())?;
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let workers = config.workers.unwrap_or_else(cores).max(1);
        config.workers = Some(workers);
        config.max_clients = descriptors::prepare(&config, workers);
        exposure::warn(&config, &addresses);
        let shared = Shared::new(config, addresses, home, rules, clock, tls);
        Ok(Self { listeners, shared: Arc::new(shared), state_file })
    }

    /// Where it listens for RESP, the port that was picked for port 0 included.
    ///
    /// # Errors
    /// What the system says if it cannot tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.listeners.addresses()?.resp)
    }

    /// Where it listens for HTTP, the port that was picked for port 0 included; `None`: nowhere.
    #[must_use]
    pub fn http_addr(&self) -> Option<SocketAddr> {
        self.shared.addresses.http
    }

    /// Where it listens for gRPC, the port that was picked for port 0 included; `None`: nowhere.
    #[must_use]
    pub fn grpc_addr(&self) -> Option<SocketAddr> {
        self.shared.addresses.grpc
    }

    /// What has the rules read again while it runs, as for a signal.
    #[must_use]
    pub fn reloader(&self) -> Reloader {
        Reloader(Arc::clone(&self.shared))
    }

    /// Serves until `shutdown` is ready; then takes no more clients, answers every request that was
    /// read (those that wait with a denial), closes, within 3 seconds, and writes the state file.
    ///
    /// Must run on a tokio runtime with I/O and time enabled, which only accepts clients: they are
    /// served by threads of the server's own. To drop it instead closes all connections at once,
    /// and writes no state.
    ///
    /// # Errors
    /// What the system says if it starts no thread. An accept that fails is logged and tried again.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let Self { listeners, shared, state_file } = self;
        limit_free_memory();
        let workers = Workers::start(&shared)?;
        let decider = &shared.decider;
        let source = SnapshotSource {
            store: Arc::clone(&decider.store),
            clock: decider.clock,
            log: Arc::clone(&shared.snapshots),
        };
        let every = shared.config.snapshot_every;
        let snapshots = SnapshotWriter::start(state_file, every, source)?;
        let watching = ruleset::Watch::start(&decider.rules, decider.clock)?;
        tokio::pin!(shutdown);
        let Addresses { resp, http, grpc } = shared.addresses;
        let shown = |address: Option<SocketAddr>| {
            address.map_or_else(|| "off".to_owned(), |address| address.to_string())
        };
        let (version, threads) = (env!("CARGO_PKG_VERSION"), shared.stats.workers.len());
        tracing::info!(version, workers = threads, "started");
        // `serve` prints the addresses.
        tracing::debug!(%resp, http = shown(http), grpc = shown(grpc), "listening");
        if shared.config.test_clock {
            tracing::warn!("--test-clock: clients choose the time; do not use it in production");
        }

        let (mut full, mut failing) = (false, false);
        let mut upkeep = interval(UPKEEP);
        upkeep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                _ = upkeep.tick() => {
                    release_memory(&shared, &workers);
                    shared.dashboard.sample(&shared);
                    shared.decider.blocks.expire(shared.decider.now());
                }
                accepted = listeners.accept() => match accepted {
                    Ok(accepted) => {
                        failing = false;
                        full = admit(accepted, &shared, &workers, full);
                    }
                    Err(error) => {
                        shared.stats.accepting.errors.add();
                        if !std::mem::replace(&mut failing, true) {
                            tracing::warn!(%error, "cannot accept clients; retrying");
                        }
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }

        drop(listeners);
        tracing::info!(clients = shared.clients.len(), "stopping");
        workers.stop().await;
        drop(watching);
        if let Some(snapshots) = snapshots {
            snapshots.finish().await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Returns freed memory to the system when clients have let go of much of it.
fn release_memory(shared: &Shared, workers: &Workers) {
    if shared.buffers.take_release_due() {
        // It takes milliseconds, in which clients are accepted.
        workers.release_memory(spawn_blocking(release_free_memory));
    }
}

/// Has the rules of a server read again.
#[derive(Clone, Debug)]
pub struct Reloader(Arc<Shared>);

impl Reloader {
    /// Reads the files now, whatever was heard of them. What is wrong with them leaves the rules in
    /// force as they are, and is logged.
    ///
    /// # Errors
    /// What is wrong, with the file, the line and the column.
    pub async fn reload(&self) -> Result<Reloaded, String> {
        self.0.decider.rules.reload().await
    }
}

/// Hands a client to a worker, or refuses it: then `true`. `full`: so was the one before.
fn admit(accepted: Accepted, shared: &Arc<Shared>, workers: &Workers, full: bool) -> bool {
    let Accepted { socket, face, address } = accepted;
    let Some(seat) = Clients::enter(shared, face, address) else {
        shared.stats.accepting.refused.add();
        if shared.tls(face).is_none() {
            socket.say(face.full());
        }
        if !full {
            let most = shared.config.max_clients;
            tracing::warn!(
                max_clients = most,
                "rejecting clients: the limit of connections is reached"
            );
        }
        return true;
    };
    workers.serve(socket, seat);
    false
}

/// What each face needs for TLS, in the order of [`Face::ALL`].
fn read_tls(config: &Config) -> io::Result<[Option<Arc<ServerConfig>>; 3]> {
    let mut read = [const { None }; 3];
    for face in Face::ALL {
        let files = match face {
            Face::Resp => &config.tls,
            Face::Http => &config.http_tls,
            Face::Grpc => &config.grpc_tls,
        };
        read[face.index()] = files.as_ref().map(|files| tls::read(files, face)).transpose()?;
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::TcpStream,
    };

    use tokio::sync::oneshot;

    use super::*;

    /// Resident memory of this process, in KiB; 0 where the system does not tell.
    fn resident_kib() -> usize {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
    }

    /// A server as a part of another program: when it has ended, nothing of it is left.
    #[tokio::test]
    async fn viewers_that_come_and_go_leave_nothing_of_the_server() {
        let mut config = Config { grpc: None, workers: Some(1), ..Config::default() };
        config.listen.set_port(0);
        config.http.iter_mut().for_each(|http| http.set_port(0));
        let server = Server::bind(config).await.unwrap();
        let (http, shared) = (server.http_addr().unwrap(), Arc::downgrade(&server.shared));
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(server.run(async { drop(stopped.await) }));
        let size = |name, usual| {
            std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
        };
        let viewers: usize = size("SLUICEGATE_VIEWERS", 100);
        let seen = Arc::downgrade(&shared.upgrade().unwrap());
        let watching = spawn_blocking(move || {
            let publishing = || {
                let shared = seen.upgrade().unwrap();
                let stats = &shared.stats.workers[0].watch;
                stats.looked_at().is_some()
            };
            let ask = b"GET /dashboard/events HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let mut resident = Vec::new();
            for round in 0..viewers / 50 {
                let mut streams: Vec<_> = (0..50)
                    .map(|_| {
                        let mut stream = TcpStream::connect(http).unwrap();
                        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                        stream.write_all(ask).unwrap();
                        stream
                    })
                    .collect();
                for stream in &mut streams {
                    assert!(stream.read(&mut [0; 64]).unwrap() > 0);
                }
                assert!(publishing(), "in round {round}");
                drop(streams);
                // The task that writes frames ends when it finds no viewer.
                while publishing() {
                    std::thread::yield_now();
                }
                resident.push(resident_kib());
            }
            resident
        });
        let resident = watching.await.unwrap();
        stop.send(()).unwrap();
        running.await.unwrap().unwrap();
        println!(
            "figure: {viewers} viewers came and went; {} hold the server; KiB resident after each 50: {resident:?}",
            shared.strong_count()
        );
        assert_eq!(shared.strong_count(), 0);
        // In its full size it runs alone: what other tests allocate is not in the figures.
        if viewers >= 1000 {
            let (early, late) = (resident[resident.len() / 4], resident[resident.len() - 1]);
            assert!(late <= early + 1024, "{resident:?}");
        }
    }
}
