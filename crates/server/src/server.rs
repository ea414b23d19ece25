//! Accepting clients, and stopping.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    io::AsyncWriteExt,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinError, JoinSet},
    time::{sleep, timeout},
};

use crate::{Config, resp, shared::Shared};

/// How long a server that stops waits for its clients to take their answers.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait after a failed accept: it fails again at once where file descriptors are out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// A server that listens.
///
/// ```
/// use sluicegate_server::{Config, Server};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let mut config = Config::default();
/// config.listen.set_port(0);
/// let server = Server::bind(config).await?;
/// assert_ne!(server.local_addr()?.port(), 0);
/// server.run(async { /* until a signal comes */ }).await
/// # })
/// # ;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    shared: Arc<Shared>,
}

impl Server {
    /// Starts to listen. Clients may connect from now on; they are served once it runs.
    ///
    /// # Errors
    /// What the system says if it cannot listen there.
    pub async fn bind(config: Config) -> io::Result<Self> {
        let listener = TcpListener::bind(config.listen).await?;
        let address = listener.local_addr()?;
        Ok(Self { listener, shared: Arc::new(Shared::new(config, address)) })
    }

    /// Where it listens, the port that was picked for port 0 included.
    ///
    /// # Errors
    /// What the system says if it cannot tell.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown` is ready; then takes no more clients, answers every request that was
    /// read (those that wait with a denial) and closes, within 5 seconds.
    ///
    /// Must run on a tokio runtime with I/O and time enabled. To drop it instead closes all
    /// connections at once.
    ///
    /// # Errors
    /// None for now: an accept that fails is logged and tried again.
    pub async fn run(self, shutdown: impl Future<Output = ()>) -> io::Result<()> {
        let Self { listener, shared } = self;
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tokio::pin!(shutdown);
        tracing::info!(address = %shared.address, "listening");
        if shared.config.test_clock {
            tracing::warn!("clients tell the time (test clock): not for production");
        }

        let mut full = false;
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(ended) = tasks.join_next() => { report(ended); }
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let refused = admit(stream, peer, &shared, &stopping, &mut tasks);
                        if refused && !full {
                            let most = shared.config.max_clients;
                            tracing::warn!(%peer, most, "refusing clients: there are too many");
                        }
                        full = refused;
                    }
                    Err(error) => {
                        tracing::warn!(%error, "could not accept a client");
                        sleep(ACCEPT_PAUSE).await;
                    }
                }
            }
        }

        drop(listener);
        tracing::info!(clients = tasks.len(), "stopping");
        stop.send_replace(true);
        let all_ended = async {
            while let Some(ended) = tasks.join_next().await {
                report(ended);
            }
        };
        if timeout(GRACE, all_ended).await.is_err() {
            tracing::warn!(clients = tasks.len(), "closing clients that do not take their answers");
            tasks.shutdown().await;
        }
        tracing::info!("stopped");
        Ok(())
    }
}

/// Serves a client, or refuses it: then `true`.
fn admit(
    mut stream: TcpStream,
    peer: SocketAddr,
    shared: &Arc<Shared>,
    stopping: &watch::Receiver<bool>,
    tasks: &mut JoinSet<()>,
) -> bool {
    let Some(client) = shared.clients.enter(peer, shared.now(), shared.config.max_clients) else {
        shared.stats.refused.add();
        tasks.spawn(async move {
            let told = stream.write_all(b"-ERR max number of clients reached\r\n");
            // Whether it hears that or not, it is closed.
            let _ = timeout(Duration::from_secs(1), told).await;
        });
        return true;
    };
    shared.stats.connections.add();
    tasks.spawn(resp::serve(stream, Arc::clone(shared), client, stopping.clone()));
    false
}

/// Logs a connection that ended in a panic.
fn report(ended: Result<(), JoinError>) -> bool {
    match ended {
        Err(error) if error.is_panic() => {
            let panic = error.into_panic();
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            tracing::error!(
                panic = text.unwrap_or("unknown"),
                "a connection failed; it was closed"
            );
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
