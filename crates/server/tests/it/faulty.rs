//! A proxy between a client and a server that loses replies, as a network or a server that stalls does.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
};

use sluicegate_testing::eventually_within;

use crate::harness::{TEST_TIMEOUT, any_port};

/// The fault of replies. Requests always reach the server completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// From the first `SG.` command of a connection on, no reply arrives.
    Hold,
    /// The connection is closed when the first `SG.` command is answered.
    Cut,
    /// No reply arrives at all, including those to the first commands of a client.
    Mute,
}

/// The proxy, until dropped.
pub(crate) struct FaultyProxy {
    pub(crate) address: SocketAddr,
    stopped: Arc<AtomicBool>,
    accepting: Option<JoinHandle<()>>,
    pumps: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl FaultyProxy {
    pub(crate) fn start(server: SocketAddr, fault: Fault) -> Self {
        let listener = TcpListener::bind(any_port()).unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let pumps = Arc::<Mutex<Vec<_>>>::default();
        let (stop, started) = (Arc::clone(&stopped), Arc::clone(&pumps));
        let accepting = thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let server = TcpStream::connect(server).unwrap();
                started.lock().unwrap().extend(pump(client, server, fault));
            }
        });
        Self { address, stopped, accepting: Some(accepting), pumps }
    }

    /// Waits until the server has executed all that clients have sent. Clients must have ended.
    pub(crate) fn drain(&self) {
        for pump in std::mem::take(&mut *self.pumps.lock().unwrap()) {
            eventually_within(TEST_TIMEOUT, "a connection through the proxy ends", || {
                if pump.is_finished() { Ok(()) } else { Err("it is open") }
            });
            pump.join().unwrap();
        }
    }
}

impl Drop for FaultyProxy {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
        // It waits for a connection.
        let _ = TcpStream::connect(self.address);
        if let Some(accepting) = self.accepting.take()
            && !thread::panicking()
        {
            accepting.join().unwrap();
        }
    }
}

/// Carries bytes in both directions. The connection to the server ends when it has answered everything.
fn pump(client: TcpStream, server: TcpStream, fault: Fault) -> [JoinHandle<()>; 2] {
    let (mut from_client, mut to_client) = (client.try_clone().unwrap(), client);
    let (mut from_server, mut to_server) = (server.try_clone().unwrap(), server);
    let sent = Arc::new(AtomicBool::new(fault == Fault::Mute));
    let seen = Arc::clone(&sent);
    let up = thread::spawn(move || {
        let mut chunk = [0; 16_384];
        while let Ok(length @ 1..) = from_client.read(&mut chunk) {
            if chunk[..length].windows(3).any(|it| it.eq_ignore_ascii_case(b"SG.")) {
                sent.store(true, Ordering::Release);
            }
            to_server.write_all(&chunk[..length]).unwrap();
        }
        let _ = to_server.shutdown(Shutdown::Write);
    });
    let down = thread::spawn(move || {
        let mut chunk = [0; 16_384];
        while let Ok(length @ 1..) = from_server.read(&mut chunk) {
            if !seen.load(Ordering::Acquire) {
                // The client may have disconnected.
                let _ = to_client.write_all(&chunk[..length]);
            } else if fault == Fault::Cut {
                let _ = to_client.shutdown(Shutdown::Both);
            }
        }
    });
    [up, down]
}
