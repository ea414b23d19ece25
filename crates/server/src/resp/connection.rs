//! One connection: what comes in, in batches, and what goes out.
//!
//! All that one read brought is parsed, decided at one time and answered with one write. Where the
//! client does not take its replies, nothing more is read from it.

use std::{
    future::poll_fn,
    io::{self, Read as _},
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use bytes::BufMut;
use sluicegate_core::Timestamp;
use sluicegate_resp::{Arguments, Limits, Parser, Writer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::watch,
    time::{Instant, Sleep, error::Elapsed, sleep, timeout},
};

use super::{
    batch::Gathered,
    session::{Next, Session},
};
use crate::{
    shared::Client,
    stream::Stream,
    wait::{self, Waiting},
    worker::Worker,
};

/// The most that is kept of what a client sent and was not answered yet, in bytes.
const MAX_UNREAD: usize = 1024 * 1024;
/// How much is read at once, in bytes.
const CHUNK: usize = 16 * 1024;
/// When so much is pending for a client, it is sent before the next command is carried out. A single
/// reply is shorter than 1 MiB, and so is all that is ever pending.
const FLUSH: usize = 64 * 1024;
/// A buffer that has grown beyond this is given back when it is empty.
const KEPT: usize = 64 * 1024;
/// How often at least is looked after a client that may have to be closed: what it began meanwhile
/// may be due before that for which the timer was set.
const LOOK: Duration = Duration::from_secs(10);

/// What clients may send. An argument may be twice as long as a key, so that a key which is a
/// little too long is answered rather than cut off.
pub(super) const LIMITS: Limits =
    Limits { max_arguments: 1024, max_bulk: 131_072, max_inline: 65_536, authenticated: true };

/// A client that is served.
pub(super) struct Connection<'a> {
    stream: Stream,
    /// What was received; what lies before `start` was carried out.
    unread: Vec<u8>,
    start: usize,
    /// What was answered and is to be sent.
    out: Vec<u8>,
    /// How much of it was sent already.
    sent: usize,
    /// When it last asked: bytes that finish no command do not count.
    asked: Timestamp,
    /// Since when a command has been there in part.
    begun: Option<Timestamp>,
    parser: Parser,
    session: Session<'a>,
    worker: &'a Worker,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Why a client that sends nothing is looked after.
enum Woken {
    /// It has sent something, or will not any more.
    Read(io::Result<usize>),
    /// The server is to stop.
    Stop,
    /// The timer has rung.
    Late,
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

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: Stream,
        worker: &'a Worker,
        client: &'a Client,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let limits =
            if worker.shared.asks_for_password() { Limits::UNAUTHENTICATED } else { LIMITS };
        Self {
            stream,
            unread: Vec::new(),
            start: 0,
            out: Vec::new(),
            sent: 0,
            asked: client.since,
            begun: None,
            parser: Parser::new(limits),
            session: Session::new(worker, client),
            worker,
            stopping,
        }
    }

    /// Serves until the client leaves or is to be closed.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        let (shared, worker) = (self.session.shared(), self.worker);
        let mut patience = pin!(sleep(Duration::ZERO));
        loop {
            if !self.answer().await? {
                return Ok(());
            }
            if self.unread.len() >= MAX_UNREAD {
                let mut writer = Writer::new(&mut self.out, self.session.version());
                writer.error(format!("ERR Protocol error: a command exceeds {MAX_UNREAD} bytes"));
                return Ok(());
            }
            if worker.stopping.get() {
                self.read_what_is_there().await?;
                self.answer().await?;
                return Ok(());
            }
            match self.wake(patience.as_mut()).await {
                Woken::Read(read) => {
                    if read? == 0 {
                        return Ok(());
                    }
                }
                Woken::Stop => {}
                Woken::Late => {
                    // One timer a client, set anew when it rings, costs nothing a request.
                    let left = self.due().map_or(LOOK, |due| elapsed(shared.now(), due));
                    if left.is_zero() {
                        worker.stats().idle.add();
                        return Ok(());
                    }
                    patience.as_mut().reset(Instant::now() + left.min(LOOK));
                }
            }
        }
    }

    /// Waits until there is something to do. `patience` rings only for a client that may be due.
    async fn wake(&mut self, mut patience: Pin<&mut Sleep>) -> Woken {
        let (timed, stopping) = (self.due().is_some(), &self.worker.stopping);
        let mut read = pin!(self.read());
        poll_fn(|context| match read.as_mut().poll(context) {
            Poll::Ready(read) => Poll::Ready(Woken::Read(read)),
            Poll::Pending if stopping.get() => Poll::Ready(Woken::Stop),
            Poll::Pending if timed => patience.as_mut().poll(context).map(|()| Woken::Late),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// When the client is to be closed, if nothing else comes: it asks nothing, or does not finish
    /// what it began to ask.
    fn due(&self) -> Option<Timestamp> {
        let config = &self.session.shared().config;
        let after = |since: Option<Timestamp>, most: Duration| {
            since.filter(|_| !most.is_zero()).map(|since| since + most)
        };
        let due =
            [after(Some(self.asked), config.timeout), after(self.begun, config.input_timeout)];
        due.into_iter().flatten().min()
    }

    /// Carries out all that is complete and sends the replies. `false`: the client is to be closed.
    async fn answer(&mut self) -> io::Result<bool> {
        loop {
            let start = self.start;
            let batch = self.batch();
            let gathered = self.worker.gathered.take();
            self.note(start, &batch);
            self.ask().await;
            if let Some(watch) = self.worker.stats().watch.looked_at() {
                watch.answered(gathered, self.session.now, self.session.shared().now());
            }
            match batch {
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
                    // It was we who let it wait.
                    self.asked = self.session.shared().now();
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
        let mut gathered = Gathered::new();
        let again = &mut *self.worker.again.borrow_mut();
        again.keep_to(self.session.generation());
        let end = loop {
            let before = unread.len();
            if self.session.authenticated
                && self.parser.is_at_start()
                && let Some((index, gather)) = again.take(&mut unread)
            {
                self.start += before - unread.len();
                self.session.note_call(index);
                gathered.push(gather);
                if gathered.is_full() {
                    gathered.answer(&self.session, &mut self.out);
                    if is_full(&self.out, self.worker) {
                        break Batch::Full;
                    }
                }
                continue;
            }
            match self.parser.parse(&mut unread, &mut arguments) {
                Ok(true) => {}
                Ok(false) => break Batch::Done,
                Err(error) => {
                    gathered.answer(&self.session, &mut self.out);
                    Writer::new(&mut self.out, self.session.version())
                        .error(format!("ERR {error}"));
                    break Batch::Close;
                }
            }
            self.start += before - unread.len();
            if arguments.is_empty() {
                continue;
            }
            let length = gathered.len();
            match self.session.execute(&arguments, &mut gathered, &mut self.out) {
                Next::Go => {}
                Next::Limits(limits) => self.parser.set_limits(limits),
                Next::Wait(waiting) => break Batch::Wait(waiting),
                Next::Close => break Batch::Close,
            }
            match gathered.last() {
                Some(gather) if gathered.len() == length + 1 => {
                    again.note(self.session.called(), &arguments, gather);
                }
                _ => again.forget(),
            }
            if gathered.is_full() {
                gathered.answer(&self.session, &mut self.out);
            }
            if gathered.is_empty() {
                self.session.settle();
                again.keep_to(self.session.generation());
                if is_full(&self.out, self.worker) {
                    break Batch::Full;
                }
            }
        };
        gathered.answer(&self.session, &mut self.out);
        self.session.settle();
        end
    }

    /// Asks a store elsewhere what the batch has put off, and puts the replies where they belong.
    async fn ask(&mut self) {
        let deferred = self.worker.deferred.take();
        if !deferred.is_empty() {
            let shared = self.session.shared();
            deferred.answer(shared, self.worker.stats(), &mut self.out).await;
        }
    }

    /// Notes when the client asked: the last batch carried out what lies between `start` and
    /// `self.start`.
    fn note(&mut self, start: usize, batch: &Batch) {
        if self.start > start {
            self.asked = self.session.now;
            self.begun = None;
        }
        if matches!(batch, Batch::Done) && self.start < self.unread.len() {
            self.begun.get_or_insert(self.session.now);
        }
    }

    /// Waits for a request's turn and answers it. `false`: the client has left, and its turn goes
    /// to others.
    async fn wait(&mut self, waiting: Waiting) -> io::Result<bool> {
        let shared = self.session.shared();
        let stopping = self.stopping.clone();
        let watch = self.worker.stats().watch.looked_at();
        let key = watch.map(|_| waiting.key.clone());
        let answer = tokio::select! {
            answer = wait::wait(shared, waiting, stopping) => answer.map(|it| it.decision),
            left = self.left() => return left.map(|()| false),
        };
        if let (Some(watch), Some(key), Ok(decision)) = (watch, key, &answer) {
            watch.decided(&key, decision.allowed());
        }
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
        self.stream.read_buf(&mut (&mut self.unread).limit(room)).await
    }

    /// Reads what has arrived, waiting for nothing.
    async fn read_what_is_there(&mut self) -> io::Result<()> {
        let mut chunk = [0; CHUNK];
        while self.unread.len() < MAX_UNREAD {
            let room = CHUNK.min(MAX_UNREAD - self.unread.len());
            // The system is asked, not the runtime, which may not have heard of it yet.
            let Some(socket) = self.stream.plain() else { break };
            match (&*socket).read(&mut chunk[..room]) {
                Ok(0) => return Ok(()),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        // Beneath TLS only the runtime can tell; once round, it has heard of what there is.
        tokio::task::yield_now().await;
        while self.unread.len() < MAX_UNREAD {
            let mut read = pin!(self.read());
            match poll_fn(|context| Poll::Ready(read.as_mut().poll(context))).await {
                Poll::Ready(count) => {
                    if count? == 0 {
                        break;
                    }
                }
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Sends all that is pending. It may be dropped halfway and called again.
    ///
    /// A client that takes too long is slow: that is an error, so that nothing more is sent to it.
    async fn flush(&mut self) -> io::Result<()> {
        if self.out.is_empty() {
            return Ok(());
        }
        // Most replies are taken at once, as a whole.
        if self.sent == 0
            && let Some(Ok(count)) = self.stream.write_now(&self.out)
        {
            self.sent = count;
        }
        let most = self.session.shared().config.output_timeout;
        if self.sent < self.out.len()
            && send(&mut self.stream, &self.out, &mut self.sent, most).await?.is_err()
        {
            self.worker.stats().slow.add();
            return Err(io::ErrorKind::TimedOut.into());
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
    pub(super) async fn close(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.stream.shutdown().await?;
        let mut dropped = [0; 1024];
        while self.stream.read(&mut dropped).await? > 0 {}
        Ok(())
    }
}

/// Whether enough is pending for the client, or for a store elsewhere.
fn is_full(out: &[u8], worker: &Worker) -> bool {
    out.len() >= FLUSH || worker.deferred.borrow().is_full()
}

/// Sends `bytes`, of which so many were `sent` already, unless that takes longer than `most`.
async fn send(
    stream: &mut Stream,
    bytes: &[u8],
    sent: &mut usize,
    most: Duration,
) -> io::Result<Result<(), Elapsed>> {
    let mut sending = pin!(async {
        while *sent < bytes.len() {
            match stream.write(&bytes[*sent..]).await? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                count => *sent += count,
            }
        }
        stream.flush().await
    });
    // Most replies fit into the system's buffer: only what does not needs a timer.
    match poll_fn(|context| Poll::Ready(sending.as_mut().poll(context))).await {
        Poll::Ready(sent) => sent.map(Ok),
        Poll::Pending => {
            timeout(most, sending).await.map_or_else(|late| Ok(Err(late)), |sent| sent.map(Ok))
        }
    }
}

/// From `then` to `now`.
fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(now.as_micros().saturating_sub(then.as_micros()))
}
