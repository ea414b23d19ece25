//! One connection: what comes in, in batches, and what goes out.
//!
//! All that one read brought is parsed, decided at one time and answered with one write. Where the
//! client does not take its replies, nothing more is read from it.

use std::{
    io::{self, Read as _},
    sync::Arc,
    time::Duration,
};

use sluicegate_resp::{Arguments, Limits, Parser, Writer};
use socket2::SockRef;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::watch,
    time::timeout,
};

use super::session::{Next, Session};
use crate::{
    shared::{Client, Shared, stopped},
    wait::{self, Waiting},
};

/// The most that is kept of what a client sent and was not answered yet, in bytes.
const MAX_UNREAD: usize = 1024 * 1024;
/// How much is read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// When so much is pending for a client, it is sent before the next command is carried out.
const FLUSH: usize = 64 * 1024;
/// A buffer that has grown beyond this is given back when it is empty.
const KEPT: usize = 64 * 1024;
/// How long a closed client has for hearing the last words.
const LINGER: Duration = Duration::from_millis(500);

/// What clients may send. An argument may be twice as long as a key, so that a key which is a
/// little too long is answered rather than cut off.
pub(super) const LIMITS: Limits =
    Limits { max_arguments: 1024, max_bulk: 131_072, max_inline: 65_536, authenticated: true };

/// Serves a client until it leaves, is closed, or the server stops.
pub(crate) async fn serve(
    stream: TcpStream,
    shared: Arc<Shared>,
    client: Arc<Client>,
    stopping: watch::Receiver<bool>,
) {
    let _leaving = Leaving { shared: &shared, id: client.id };
    // Replies go out in whole batches; waiting to merge them could only delay them.
    let _ = stream.set_nodelay(true);
    let limits = if shared.asks_for_password() { Limits::UNAUTHENTICATED } else { LIMITS };
    let mut connection = Connection {
        stream,
        unread: Vec::new(),
        start: 0,
        out: Vec::new(),
        sent: 0,
        parser: Parser::new(limits),
        session: Session::new(&shared, &client),
        stopping,
    };
    tokio::select! {
        () = client.killed.notified() => {
            // Its own last command may have done it: what was answered is sent, if it can be.
            let _ = timeout(LINGER, connection.close()).await;
        }
        ended = connection.run() => {
            if ended.is_ok() {
                let _ = timeout(LINGER, connection.close()).await;
            }
        }
    }
}

/// Takes the client off the list however the connection ends.
struct Leaving<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        self.shared.clients.leave(self.id);
    }
}

struct Connection<'a> {
    stream: TcpStream,
    /// What was received; what lies before `start` was carried out.
    unread: Vec<u8>,
    start: usize,
    /// What was answered and is to be sent.
    out: Vec<u8>,
    /// How much of it was sent already.
    sent: usize,
    parser: Parser,
    session: Session<'a>,
    stopping: watch::Receiver<bool>,
}

/// Why a batch ended.
enum Batch {
    /// All commands that are complete were carried out.
    Done,
    /// Much is pending: it is to be sent first.
    Full,
    /// A command waits for its turn.
    Wait(Waiting),
    /// The client is to be closed.
    Close,
}

impl Connection<'_> {
    /// Serves until the client leaves or is to be closed.
    async fn run(&mut self) -> io::Result<()> {
        let mut stopping = self.stopping.clone();
        loop {
            if !self.answer().await? {
                return Ok(());
            }
            if self.unread.len() >= MAX_UNREAD {
                let mut writer = Writer::new(&mut self.out, self.session.version());
                writer.error(format!("ERR Protocol error: a command exceeds {MAX_UNREAD} bytes"));
                return Ok(());
            }
            tokio::select! {
                biased;
                () = stopped(&mut stopping) => {
                    self.read_what_is_there()?;
                    self.answer().await?;
                    return Ok(());
                }
                read = self.read() => if read? == 0 { return Ok(()) },
            }
        }
    }

    /// Carries out all that is complete and sends the replies. `false`: the client is to be closed.
    async fn answer(&mut self) -> io::Result<bool> {
        loop {
            match self.batch() {
                Batch::Done => {
                    self.flush().await?;
                    self.compact();
                    return Ok(true);
                }
                Batch::Full => self.flush().await?,
                Batch::Wait(waiting) => {
                    self.flush().await?;
                    self.compact();
                    if !self.wait(waiting).await? {
                        return Ok(false);
                    }
                }
                Batch::Close => return Ok(false),
            }
        }
    }

    /// Carries out commands, at one time, until one of the reasons to stop.
    fn batch(&mut self) -> Batch {
        let mut unread = &mut self.unread[self.start..];
        if unread.is_empty() {
            return Batch::Done;
        }
        self.session.tick();
        let mut arguments = Arguments::new();
        loop {
            let before = unread.len();
            match self.parser.parse(&mut unread, &mut arguments) {
                Ok(true) => {}
                Ok(false) => return Batch::Done,
                Err(error) => {
                    Writer::new(&mut self.out, self.session.version())
                        .error(format!("ERR {error}"));
                    return Batch::Close;
                }
            }
            self.start += before - unread.len();
            if arguments.is_empty() {
                continue;
            }
            match self.session.execute(&arguments, &mut self.out) {
                Next::Go => {}
                Next::Limits(limits) => self.parser.set_limits(limits),
                Next::Wait(waiting) => return Batch::Wait(waiting),
                Next::Close => return Batch::Close,
            }
            if self.out.len() >= FLUSH {
                return Batch::Full;
            }
        }
    }

    /// Waits for a request's turn and answers it. `false`: the client has left, and its turn goes
    /// to others.
    async fn wait(&mut self, waiting: Waiting) -> io::Result<bool> {
        let shared = self.session.shared();
        let stopping = self.stopping.clone();
        let answer = tokio::select! {
            answer = wait::wait(shared, waiting, stopping) => answer,
            left = self.left() => return left.map(|()| false),
        };
        self.session.waited(answer, &mut self.out);
        Ok(true)
    }

    /// Ready when the client has left. What it sends meanwhile is kept for later; when that is as
    /// much as may be, its leaving is noticed only when it is answered.
    async fn left(&mut self) -> io::Result<()> {
        while self.unread.len() < MAX_UNREAD {
            if self.read().await? == 0 {
                return Ok(());
            }
        }
        std::future::pending().await
    }

    /// Reads once; 0 is the end.
    async fn read(&mut self) -> io::Result<usize> {
        let room = MAX_UNREAD - self.unread.len();
        self.unread.reserve(CHUNK.min(room));
        (&mut self.stream).take(room as u64).read_buf(&mut self.unread).await
    }

    /// Reads what has arrived, waiting for nothing.
    fn read_what_is_there(&mut self) -> io::Result<()> {
        // The system is asked, not the runtime, which may not have heard of it yet.
        let socket = SockRef::from(&self.stream);
        let mut chunk = [0; CHUNK];
        while self.unread.len() < MAX_UNREAD {
            let room = CHUNK.min(MAX_UNREAD - self.unread.len());
            match (&*socket).read(&mut chunk[..room]) {
                Ok(0) => break,
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends all that is pending. It may be dropped halfway and called again.
    async fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                sent => self.sent += sent,
            }
        }
        self.sent = 0;
        self.out.clear();
        self.out.shrink_to(KEPT);
        Ok(())
    }

    /// Drops what was carried out.
    fn compact(&mut self) {
        self.unread.drain(..self.start);
        self.start = 0;
        if self.unread.is_empty() {
            self.unread.shrink_to(KEPT);
        }
    }

    /// Sends the last words. What the client still sends is read and dropped: to close on it would
    /// make its system drop those words unread.
    async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let mut dropped = [0; 1024];
        while self.stream.read(&mut dropped).await? > 0 {}
        Ok(())
    }
}
