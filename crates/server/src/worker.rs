//! The threads that serve clients: one a core, each with a runtime, connections, counters and rules
//! of its own.
//!
//! One acceptor hands clients out, each to the worker that has the fewest. Listeners of their own
//! (`SO_REUSEPORT`) would spare that step once a connection, but the system then spreads clients by
//! a hash: of four clients on two cores, all would be on one core in one case of eight.

use std::{
    cell::{Cell, RefCell},
    io,
    rc::Rc,
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use sluicegate_memory::release_end_of_heap;
use tokio::{
    runtime::{Builder, LocalOptions, LocalRuntime},
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinSet},
    time::timeout,
};

use crate::{
    envoy::{self, Services},
    face::Face,
    http, resp,
    rules::Rules,
    shared::{Client, Seat, Shared, stopped},
    stats::Stats,
    stream::{Socket, Stream},
    turn::Turns,
};

/// How long a server that stops waits for its clients to take their answers: it ends within five
/// seconds, the last snapshot included.
const GRACE: Duration = Duration::from_secs(3);

/// How long a client has for agreeing on TLS.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// What the connections of one thread have in common.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    /// Its own of those in `shared`.
    stats: Arc<Stats>,
    pub(crate) rules: RefCell<Rules>,
    /// What was asked last.
    pub(crate) again: RefCell<resp::Again>,
    /// What the batch that is being read asks of a store elsewhere.
    pub(crate) deferred: RefCell<resp::Deferred>,
    /// What answers calls of gRPC.
    pub(crate) grpc: Rc<Services>,
    /// Read and reply buffers that the connections share.
    pub(crate) buffers: resp::BufferPool,
    /// How long clients occupy this worker.
    pub(crate) turns: Turns,
    /// Work since the clock was last read for it: a decision is 1.
    pub(crate) work: Cell<u32>,
    /// Decisions that the batch which is being read has asked for.
    pub(crate) gathered: Cell<usize>,
    /// Whether the server is to stop.
    pub(crate) stopping: Cell<bool>,
    /// The same, to wait for.
    pub(crate) stop: watch::Sender<bool>,
}

impl Worker {
    fn new(shared: Arc<Shared>, index: usize) -> Self {
        let stop = watch::Sender::new(false);
        let grpc = Rc::new(Services::new(&shared, index));
        let stats = Arc::clone(&shared.stats.workers[index]);
        Self {
            shared,
            stats,
            rules: RefCell::default(),
            again: RefCell::default(),
            deferred: RefCell::default(),
            grpc,
            buffers: resp::BufferPool::default(),
            turns: Turns::default(),
            work: Cell::new(0),
            gathered: Cell::new(0),
            stopping: Cell::new(false),
            stop,
        }
    }

    /// What this worker counts.
    #[inline]
    pub(crate) fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The connection of a client, once both agree on TLS where it is spoken. `None`: they do not,
    /// or the server stops.
    pub(crate) async fn open(
        &self,
        socket: Socket,
        client: &Client,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<Stream> {
        let tls = self.shared.tls(client.face);
        let opened = tokio::select! {
            opened = timeout(HANDSHAKE, socket.open(tls)) => opened,
            () = stopped(stopping) => return None,
        };
        match opened {
            Ok(Ok(stream)) => Some(stream),
            failed => {
                if tls.is_some() {
                    self.stats().tls_failures.add();
                }
                let error = failed.err();
                tracing::debug!(client = client.id, ?error, "could not set up a connection");
                None
            }
        }
    }
}

enum Job {
    Serve(Socket, Seat),
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
    pub(crate) fn start(shared: &Arc<Shared>) -> io::Result<Self> {
        let start = |index| {
            let (jobs, waiting) = mpsc::unbounded_channel();
            let (ending, ended) = oneshot::channel();
            let worker_shared = Arc::clone(shared);
            // The runtime is made on its thread, and never leaves it.
            let (starting, started) = std::sync::mpsc::channel();
            let run = move || {
                let runtime =
                    Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
                match runtime {
                    Ok(runtime) => {
                        let _ = starting.send(Ok(()));
                        run(&runtime, Worker::new(worker_shared, index), waiting);
                    }
                    Err(error) => drop(starting.send(Err(error))),
                }
                let _ = ending.send(());
            };
            let thread = thread::Builder::new().name(format!("sluicegate-{index}")).spawn(run)?;
            started.recv().unwrap_or_else(|_| Err(io::Error::other("a worker did not start")))?;
            Ok(Handle { jobs, ended, thread })
        };
        let handles = (0..shared.stats.workers.len()).map(start).collect::<io::Result<_>>()?;
        Ok(Self { handles })
    }

    /// Hands a client to its worker.
    pub(crate) fn serve(&self, socket: Socket, seat: Seat) {
        let handle = &self.handles[seat.client.worker];
        if handle.jobs.send(Job::Serve(socket, seat)).is_err() {
            tracing::error!("a worker has stopped: closed a client");
        }
    }

    /// Has every worker return free memory of its thread, after memory of the process was released in `released`.
    pub(crate) fn release_memory(&self, released: impl Future<Output: Send> + Send + 'static) {
        let jobs: Vec<_> = self.handles.iter().map(|handle| handle.jobs.clone()).collect();
        tokio::spawn(async move {
            released.await;
            for jobs in jobs {
                // An error is a worker that has ended.
                let _ = jobs.send(Job::ReleaseMemory);
            }
        });
    }

    /// Answers all that was read, closes all connections and ends the threads.
    pub(crate) async fn stop(self) {
        for handle in &self.handles {
            let _ = handle.jobs.send(Job::Stop);
        }
        for handle in self.handles {
            // An error is a worker that failed: its thread ends as well.
            let _ = handle.ended.await;
            let _ = handle.thread.join();
        }
    }
}

fn run(runtime: &LocalRuntime, worker: Worker, mut jobs: mpsc::UnboundedReceiver<Job>) {
    let worker = Rc::new(worker);
    runtime.block_on(async {
        worker.grpc.set_serving(true).await;
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                Some(ended) = tasks.join_next() => { report(ended); }
                job = jobs.recv() => match job {
                    Some(Job::Serve(socket, seat)) => {
                        worker.stats().connections.add();
                        let worker = Rc::clone(&worker);
                        match seat.client.face {
                            Face::Resp => tasks.spawn_local(resp::serve(socket, seat, worker)),
                            Face::Http => tasks.spawn_local(http::serve(socket, seat, worker)),
                            Face::Grpc => tasks.spawn_local(envoy::serve(socket, seat, worker)),
                        };
                    }
                    Some(Job::ReleaseMemory) => release_end_of_heap(),
                    Some(Job::Stop) => break,
                    // The server was dropped.
                    None => return tasks.shutdown().await,
                }
            }
        }
        worker.stopping.set(true);
        worker.grpc.set_serving(false).await;
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
    });
}

/// Logs a connection that ended in a panic.
fn report(ended: Result<(), JoinError>) -> bool {
    match ended {
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(panic = text.unwrap_or("unknown"), "a connection failed: closed it");
            true
        }
        Ok(()) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_connection_that_panics_is_told_from_one_that_ends() {
        let mut tasks = JoinSet::new();
        tasks.spawn(async { panic!("as a test") });
        assert!(report(tasks.join_next().await.unwrap()));
        tasks.spawn(async {});
        assert!(!report(tasks.join_next().await.unwrap()));
    }
}
