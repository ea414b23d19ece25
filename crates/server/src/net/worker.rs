//! The threads that serve clients: one per core, each with its own runtime, connections and counters.
//!
//! One acceptor assigns each client to the worker with the fewest. A listener per worker
//! (`SO_REUSEPORT`) would save that step for each connection, but the system would then distribute clients by
//! a hash: in one of eight cases, four clients of two cores would all be on one core.

use std::{
    any::Any,
    cell::Cell,
    fmt,
    future::ready,
    io,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::future::LocalBoxFuture;
use rustls::ServerConfig;
use sluicegate_memory::release_end_of_heap;
use tokio::{
    runtime::{Builder, LocalOptions},
    sync::{mpsc, oneshot, watch},
    task::{self, JoinError, JoinSet, spawn_local},
    time::timeout,
};

use crate::{
    budgets::turn::Turns,
    net::{
        clients::{Client, ConnectionPermit},
        protocol::Protocol,
        stream::{Socket, Stream},
    },
    stats::{ServerStats, Stats},
    stopping::stopped,
};

/// How long a server that stops waits for its clients to read their replies: it ends within five
/// seconds, the last snapshot included.
const GRACE: Duration = Duration::from_secs(3);

/// How long a client has for the TLS handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// The state that connections of one thread share.
#[derive(Debug)]
pub(crate) struct Worker {
    /// The turns of connections.
    pub(crate) turns: Turns,
    /// Whether the server is to stop.
    pub(crate) stopping: Cell<bool>,
    /// The same, to wait for.
    pub(crate) stop: watch::Sender<bool>,
}

/// The state that connections of one protocol on one worker share.
#[derive(Clone, Debug)]
pub(crate) struct Port {
    pub(crate) worker: Rc<Worker>,
    pub(crate) stats: Arc<Stats>,
    /// The configuration of TLS, if it is spoken.
    pub(crate) tls: Option<Arc<ServerConfig>>,
}

/// Serves the clients of one protocol on one worker.
pub(crate) trait Service {
    /// Serves a client, as one of `tasks`, until it leaves, is closed, or the server stops.
    fn serve(self: Rc<Self>, socket: Socket, permit: ConnectionPermit, tasks: &mut JoinSet<()>);

    /// Called before the first client and, with `false`, when the server stops.
    fn set_serving(&self, _serving: bool) -> LocalBoxFuture<'_, ()> {
        Box::pin(ready(()))
    }
}

/// Makes the service of a protocol, on the thread of a worker.
pub(crate) type ServiceFactory = Box<dyn Fn(Port) -> Rc<dyn Service> + Send + Sync>;

/// A protocol as workers serve it.
pub(crate) struct ServedProtocol {
    pub(crate) protocol: &'static Protocol,
    pub(crate) tls: Option<Arc<ServerConfig>>,
    pub(crate) factory: ServiceFactory,
}

impl fmt::Debug for ServedProtocol {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ServedProtocol").finish_non_exhaustive()
    }
}

impl Worker {
    fn new() -> Self {
        let (turns, stop) = (Turns::default(), watch::Sender::new(false));
        Self { turns, stopping: Cell::new(false), stop }
    }
}

impl Port {
    /// The connection of a client, after the handshake where TLS is spoken. `None`: that failed, or the
    /// server stops.
    pub(crate) async fn open(
        &self,
        socket: Socket,
        client: &Client,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<Stream> {
        let tls = self.tls.as_ref();
        let opened = tokio::select! {
            // First, because a plain connection is open at once, and its requests may have arrived before the stop.
            biased;
            opened = timeout(HANDSHAKE, socket.open(tls)) => opened,
            () = stopped(stopping) => return None,
        };
        match opened {
            Ok(Ok(stream)) => Some(stream),
            failed => {
                if tls.is_some() {
                    self.stats.tls_failures.add();
                }
                let error = failed.err();
                tracing::debug!(client = client.id, ?error, "could not set up a connection");
                None
            }
        }
    }
}

#[derive(Debug)]
enum Job {
    /// Serve a client of the protocol with this index.
    Serve(usize, Socket, ConnectionPermit),
    /// Return free memory of this thread to the system.
    ReleaseMemory,
    Stop,
}

/// All workers. To drop them instead of [stopping](Workers::stop) closes all connections at once.
pub(crate) struct Workers {
    handles: Vec<Handle>,
}

struct Handle {
    jobs: mpsc::UnboundedSender<Job>,
    ended: oneshot::Receiver<()>,
    thread: JoinHandle<()>,
}

impl Workers {
    /// Starts the workers that `stats` counts for. They serve `protocols`, in the order of their registration.
    pub(crate) fn start(
        protocols: &Arc<[ServedProtocol]>,
        stats: &Arc<ServerStats>,
    ) -> io::Result<Self> {
        let start = |index| {
            let (jobs, waiting) = mpsc::unbounded_channel();
            let (ending, ended) = oneshot::channel();
            let (protocols, stats) = (Arc::clone(protocols), Arc::clone(stats));
            // The runtime is created on its thread, because it cannot move.
            let (starting, started) = std::sync::mpsc::channel();
            let run = move || {
                let runtime =
                    Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => {
                        let _ = starting.send(Ok(()));
                        runtime.block_on(run(index, (&protocols, &stats), waiting));
                    }
                    Err(error) => drop(starting.send(Err(error))),
                }
                let _ = ending.send(());
            };
            let thread = thread::Builder::new().name(format!("sluicegate-{index}")).spawn(run)?;
            started.recv().unwrap_or_else(|_| Err(io::Error::other("a worker did not start")))?;
            Ok(Handle { jobs, ended, thread })
        };
        let handles = (0..stats.workers()).map(start).collect::<io::Result<_>>()?;
        Ok(Self { handles })
    }

    /// Hands a client of the protocol with the index `protocol` to its worker.
    pub(crate) fn serve(&self, protocol: usize, socket: Socket, permit: ConnectionPermit) {
        let handle = &self.handles[permit.client.worker];
        if handle.jobs.send(Job::Serve(protocol, socket, permit)).is_err() {
            tracing::error!("a worker has stopped: closed a client");
        }
    }

    /// Makes every worker return free memory of its thread, after `released` has returned that of the process.
    pub(crate) fn release_memory(&self, released: impl Future<Output: Send> + Send + 'static) {
        let jobs: Vec<_> = self.handles.iter().map(|handle| handle.jobs.clone()).collect();
        tokio::spawn(async move {
            released.await;
            for jobs in jobs {
                // An error means that the worker has ended.
                let _ = jobs.send(Job::ReleaseMemory);
            }
        });
    }

    /// Answers all requests that were read, closes all connections and ends the threads.
    pub(crate) async fn stop(self) {
        for handle in &self.handles {
            let _ = handle.jobs.send(Job::Stop);
        }
        for handle in self.handles {
            // An error means that the worker failed; its thread ends as well.
            let _ = handle.ended.await;
            let _ = handle.thread.join();
        }
    }
}

/// A worker on the runtime of its caller, which is local, in place of a thread. To drop it instead of
/// [stopping](LocalWorker::stop) closes all connections.
#[derive(Debug)]
pub(crate) struct LocalWorker {
    jobs: mpsc::UnboundedSender<Job>,
    running: task::JoinHandle<()>,
}

impl LocalWorker {
    /// Starts the first of the workers that `stats` counts for.
    pub(crate) fn start(protocols: Arc<[ServedProtocol]>, stats: Arc<ServerStats>) -> Self {
        let (jobs, waiting) = mpsc::unbounded_channel();
        let running = spawn_local(async move { run(0, (&protocols, &stats), waiting).await });
        Self { jobs, running }
    }

    /// Serves a client of the protocol with the index `protocol`. Whether the worker runs.
    pub(crate) fn serve(&self, protocol: usize, socket: Socket, permit: ConnectionPermit) -> bool {
        self.jobs.send(Job::Serve(protocol, socket, permit)).is_ok()
    }

    /// Answers all requests that were read, and closes all connections. May be called once.
    pub(crate) async fn stop(&mut self) -> Result<(), JoinError> {
        // An error means that the worker failed, which is returned.
        let _ = self.jobs.send(Job::Stop);
        (&mut self.running).await
    }
}

/// Serves clients until the server stops.
async fn run(
    index: usize,
    (protocols, stats): (&[ServedProtocol], &ServerStats),
    mut jobs: mpsc::UnboundedReceiver<Job>,
) {
    let worker = Rc::new(Worker::new());
    let services = protocols.iter().enumerate().map(|(protocol, it)| {
        let stats = Arc::clone(stats.stats(protocol, index));
        (it.factory)(Port { worker: Rc::clone(&worker), stats, tls: it.tls.clone() })
    });
    let services: Vec<_> = services.collect();
    for service in &services {
        service.set_serving(true).await;
    }
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            Some(ended) = tasks.join_next() => { report(ended); }
            job = jobs.recv() => match job {
                Some(Job::Serve(protocol, socket, permit)) => {
                    stats.stats(protocol, index).connections.add();
                    Rc::clone(&services[protocol]).serve(socket, permit, &mut tasks);
                }
                Some(Job::ReleaseMemory) => release_end_of_heap(),
                Some(Job::Stop) => break,
                // The server was dropped.
                None => return tasks.shutdown().await,
            }
        }
    }
    worker.stopping.set(true);
    for service in &services {
        service.set_serving(false).await;
    }
    worker.stop.send_replace(true);
    let all_ended = async {
        while let Some(ended) = tasks.join_next().await {
            report(ended);
        }
    };
    if timeout(GRACE, all_ended).await.is_err() {
        tracing::warn!(clients = tasks.len(), "closing clients that do not read their replies");
        tasks.shutdown().await;
    }
}

/// Logs a connection that ended in a panic.
fn report(ended: Result<(), JoinError>) -> bool {
    match ended {
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            tracing::error!(panic = panic_text(&*panic), "a connection failed: closed it");
            true
        }
        Ok(()) | Err(_) => false,
    }
}

/// The text of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn report_detects_a_connection_that_panics() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("as a test") });
        assert!(report(tasks.join_next().await.unwrap()));
        tasks.spawn(async {});
        assert!(!report(tasks.join_next().await.unwrap()));
    }
}
