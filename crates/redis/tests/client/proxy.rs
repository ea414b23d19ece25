//! A proxy that damages replies as networks do.

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use std::time::Duration;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, copy},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::Notify,
};

/// The treatment of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Fault {
    None,
    /// They are late, by [`LATE`].
    Delay,
    /// They come byte by byte.
    Slices,
    /// They never come, nor does anything after them on that connection.
    Hole,
    /// The next one is cut in the middle, and the connection closed.
    Cut,
    /// Before the next one comes something else.
    Garbage,
    /// The connection is reset instead of the next one.
    Reset,
    /// Connections are closed, new ones as soon as they are accepted.
    Closed,
}

const FAULTS: [Fault; 8] = [
    Fault::None,
    Fault::Delay,
    Fault::Slices,
    Fault::Hole,
    Fault::Cut,
    Fault::Garbage,
    Fault::Reset,
    Fault::Closed,
];

pub(crate) const LATE: Duration = Duration::from_millis(100);

/// A proxy until dropped.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    fault: Arc<AtomicU8>,
    pub(crate) open: Arc<AtomicU64>,
    closing: Arc<Notify>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (fault, open) = (Arc::new(AtomicU8::new(0)), Arc::new(AtomicU64::new(0)));
        let (shared, count) = (Arc::clone(&fault), Arc::clone(&open));
        let closing = Arc::new(Notify::new());
        let closes = Arc::clone(&closing);
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.load(Ordering::SeqCst) == Fault::Closed as u8 {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                client.set_nodelay(true).unwrap();
                server.set_nodelay(true).unwrap();
                let (fault, open) = (Arc::clone(&shared), Arc::clone(&count));
                let closes = Arc::clone(&closes);
                tokio::spawn(async move {
                    open.fetch_add(1, Ordering::SeqCst);
                    tokio::select! {
                        () = carry(client, server, &fault) => {}
                        () = closes.notified() => {}
                    }
                    open.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { port: own, fault, open, closing, task }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn set(&self, fault: Fault) {
        self.fault.store(fault as u8, Ordering::SeqCst);
        if fault == Fault::Closed {
            self.closing.notify_waiters();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Carries both ways until either end is over.
async fn carry(client: TcpStream, server: TcpStream, fault: &AtomicU8) {
    let (mut from_client, to_client) = client.into_split();
    let (from_server, mut to_server) = server.into_split();
    tokio::select! {
        _ = copy(&mut from_client, &mut to_server) => {}
        reset = replies(from_server, to_client, fault) => {
            if let Some(to_client) = reset {
                // Closed with unread bytes, which causes a reset.
                let client = from_client.reunite(to_client).unwrap();
                client.set_zero_linger().unwrap();
            }
        }
    }
}

/// Gives the client's half back for it to be reset.
async fn replies(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    fault: &AtomicU8,
) -> Option<OwnedWriteHalf> {
    let mut buffer = vec![0; 1 << 16];
    loop {
        let length = from.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
        let bytes = &buffer[..length];
        let now = FAULTS[usize::from(fault.load(Ordering::SeqCst))];
        if matches!(now, Fault::Cut | Fault::Garbage | Fault::Reset) {
            fault.store(Fault::None as u8, Ordering::SeqCst);
        }
        match now {
            Fault::None => to.write_all(bytes).await.ok()?,
            Fault::Delay => {
                crate::servers::pass(LATE).await;
                to.write_all(bytes).await.ok()?;
            }
            Fault::Slices => {
                for byte in bytes {
                    to.write_all(&[*byte]).await.ok()?;
                    tokio::task::yield_now().await;
                }
            }
            Fault::Hole => std::future::pending().await,
            Fault::Cut => {
                to.write_all(&bytes[..length / 2]).await.ok()?;
                return None;
            }
            Fault::Garbage => {
                to.write_all(b"\x00\xffHTTP/1.1 400 Bad Request\r\n").await.ok()?;
                to.write_all(bytes).await.ok()?;
            }
            Fault::Reset => return Some(to),
            Fault::Closed => return None,
        }
    }
}
