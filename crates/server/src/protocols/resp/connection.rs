//! One connection: reads commands in batches, runs them, and sends the replies; and how a worker serves it.
//!
//! Everything that one read brings is parsed, decided at one time and answered with one write. Nothing more is read
//! from a client that does not take its replies.
//!
//! Invariants:
//! - a connection that waits, for its client or for others of its worker, holds no buffer except for data that
//!   it must keep: that is reserved from the server's budget, or the client is closed;
//! - a turn of the worker is short: after [`CHUNK`] bytes or half a millisecond, other connections go first
//!   ([`turn`](crate::budgets::turn)).

use std::{
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    rc::Rc,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BufMut;
use sluicegate_core::{Timestamp, reached};
use sluicegate_resp::{Arguments, Parser, Writer};
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::watch,
    task::{JoinSet, unconstrained, yield_now},
    time::{Instant, Sleep, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, Span};

use super::{
    batch::Batch,
    call::{CommandCall, CommandTable, Next, WaitingCall},
    commands,
    pool::{CHUNK, MAX_KEPT, MAX_READ_AHEAD, MAX_UNREAD, Overrun, SMALL},
    session::Session,
    store_operation::{answer_all, answer_deferred},
    worker::{RespContext, RespWorker},
};
use crate::{
    budgets::buffers::{BufferReservation, NO_MEMORY},
    net::{
        CONNECTION_BYTES, LINGER,
        clients::{Client, ConnectionPermit},
        protocol::Protocol,
        secret::GUESS_DELAY,
        stream::{Socket, Stream},
        worker::{Service, ServiceFactory},
    },
    stats::Cause,
    stopping::stopped,
    wait,
};

/// Bytes of pending replies that are sent before the next command runs. A single reply is shorter than 1 MiB, and so
/// are all pending replies.
const FLUSH: usize = 64 * 1024;
/// Upper bound on the time between two checks of whether a client must be closed: a command that it has begun since the
/// timer was set may be due earlier.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The connection of a client.
pub(super) struct Connection<'a> {
    stream: Stream,
    /// Bytes received; those before `start` have been run.
    unread: Vec<u8>,
    start: usize,
    /// For `unread`, if more of it than [`SMALL`] is kept between two reads.
    unread_reserved: BufferReservation,
    /// Replies to be sent.
    out: Vec<u8>,
    /// Bytes of `out` that were sent already.
    sent: usize,
    /// For `out`, while the client does not take it.
    out_reserved: BufferReservation,
    /// Whether it keeps its buffers while it is idle: few connections of a worker do.
    keeps: bool,
    /// Since when bytes behind commands that wait are left unread. It ends when everything is read.
    stalled_since: Option<Instant>,
    /// If the client sent more while it waited than is kept.
    overrun: Option<Overrun>,
    /// Bytes read in this turn.
    turn: usize,
    /// Time of the last complete command.
    last_command: Timestamp,
    /// Time of the first bytes of an incomplete command.
    incomplete_since: Option<Timestamp>,
    parser: Parser,
    session: Session<'a>,
    worker: &'a RespWorker,
    table: &'static CommandTable,
    pub(super) stopping: watch::Receiver<bool>,
}

/// Why an idle connection continues.
enum WakeReason {
    /// The client has sent bytes (0: it has closed), or reading failed.
    Read(io::Result<usize>),
    /// The server stops.
    Stop,
    /// The timer is due.
    Timer,
}

/// Why a batch ended.
enum BatchEnd {
    /// No complete command is left.
    Done,
    /// Pending replies are to be sent first.
    Full,
    /// The turn is over, with commands left.
    Turn,
    /// A password was wrong: the reply is delayed.
    Delay,
    /// A command waits.
    Wait(Box<WaitingCall>),
    /// The client is to be closed.
    Close,
}

impl<'a> Connection<'a> {
    pub(super) fn new(
        stream: Stream,
        worker: &'a RespWorker,
        client: &'a Client,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let buffers = &worker.shared.buffers;
        let session = Session::new(worker, client);
        Self {
            stream,
            unread: Vec::new(),
            start: 0,
            unread_reserved: buffers.reserve_nothing(),
            out: Vec::new(),
            sent: 0,
            out_reserved: buffers.reserve_nothing(),
            keeps: worker.buffers.try_add_keeper(),
            stalled_since: None,
            overrun: None,
            turn: 0,
            last_command: client.since,
            incomplete_since: None,
            parser: Parser::new(session.limits()),
            session,
            worker,
            table: commands::table(),
            stopping,
        }
    }

    /// Serves until the client leaves or is to be closed.
    pub(super) async fn run(&mut self) -> io::Result<()> {
        let (shared, worker) = (self.session.shared, self.worker);
        let mut timer = pin!(sleep(Duration::ZERO));
        loop {
            if !self.answer().await? {
                return Ok(());
            }
            if let Some(overrun) = self.overrun {
                reached!(ClientSendsTooMuchWhileItWaits);
                self.reject(&overrun.to_string());
                return Ok(());
            }
            if self.unread.len() >= MAX_UNREAD {
                self.reject(&format!("ERR Protocol error: a command exceeds {MAX_UNREAD} bytes"));
                return Ok(());
            }
            if worker.is_stopping() {
                return self.answer_the_rest().await;
            }
            if self.has_read_enough() && !self.give_way().await {
                return Ok(());
            }
            match self.wake(timer.as_mut()).await {
                WakeReason::Read(read) => match read {
                    Ok(0) => return Ok(()),
                    Ok(count) => self.turn += count,
                    Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                        self.reject(NO_MEMORY);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                },
                WakeReason::Stop => {}
                WakeReason::Timer => {
                    // One timer per client, which is only set when it is due, costs nothing per request.
                    let now = shared.decider.now();
                    let left = self.due().map_or(CHECK_INTERVAL, |due| due.since(now));
                    if left.is_zero() {
                        reached!(IdleClientIsClosed if self.incomplete_since.is_none());
                        reached!(UnfinishedCommandIsClosed if self.incomplete_since.is_some());
                        worker.stats().idle.add();
                        return Ok(());
                    }
                    timer.as_mut().reset(Instant::now() + left.min(CHECK_INTERVAL));
                }
            }
        }
    }

    /// Waits until there is something to do. `timer` is used only for a client that may have to be closed.
    async fn wake(&mut self, mut timer: Pin<&mut Sleep>) -> WakeReason {
        let (timed, worker) = (self.due().is_some(), self.worker);
        poll_fn(|context| match self.poll_read(context) {
            Poll::Ready(read) => Poll::Ready(WakeReason::Read(read)),
            Poll::Pending if worker.is_stopping() => Poll::Ready(WakeReason::Stop),
            Poll::Pending => {
                self.pause();
                self.stalled_since = None;
                if timed {
                    timer.as_mut().poll(context).map(|()| WakeReason::Timer)
                } else {
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// When the client is to be closed if it sends nothing more: it is idle, or does not finish a command.
    fn due(&self) -> Option<Timestamp> {
        let timeouts = &self.session.shared.timeouts;
        let after = |since: Option<Timestamp>, most: Duration| {
            since.filter(|_| !most.is_zero()).map(|since| since + most)
        };
        let due = [
            after(Some(self.last_command), timeouts.idle),
            after(self.incomplete_since, timeouts.input),
        ];
        due.into_iter().flatten().min()
    }

    /// Runs all complete commands and sends the replies. `false`: the client is to be closed.
    async fn answer(&mut self) -> io::Result<bool> {
        loop {
            let start = self.start;
            let before = self.worker.stats().requests.count();
            let span = self.batch_span();
            let end = span.in_scope(|| self.run_batch());
            let commands = self.worker.stats().requests.count().wrapping_sub(before);
            self.record_commands(&span, commands);
            let gathered = self.worker.gathered.take();
            self.record_times(start, &end);
            if !self.worker.deferred.borrow().replies.is_empty()
                && !Box::pin(self.answer_deferred().instrument(span.clone())).await
            {
                return Ok(false);
            }
            // A command that waits has no reply yet.
            let waiting = u64::from(matches!(end, BatchEnd::Wait(_)));
            self.measure(commands.saturating_sub(waiting), gathered);
            match end {
                BatchEnd::Done => {
                    if !self.try_flush() {
                        Box::pin(self.flush()).await?;
                    }
                    return Ok(self.compact());
                }
                BatchEnd::Full | BatchEnd::Turn => {
                    reached!(RepliesAreSentBeforeNextCommand if matches!(end, BatchEnd::Full));
                    self.flush().await?;
                    let is_over = matches!(end, BatchEnd::Turn)
                        || self.session.turn.is_over(self.session.shared.decider.now());
                    if is_over && !self.give_way().await {
                        return Ok(false);
                    }
                }
                BatchEnd::Delay => {
                    self.pause();
                    if !self.compact() {
                        return Ok(false);
                    }
                    sleep(GUESS_DELAY).await;
                    self.flush().await?;
                }
                BatchEnd::Wait(waiting) => {
                    reached!(CommandsComeBehindWaitingOne if self.start < self.unread.len());
                    self.flush().await?;
                    // Rare and large: boxed, so that not every connection has the space for it.
                    if !self.compact() || !Box::pin(self.wait(*waiting).instrument(span)).await? {
                        return Ok(false);
                    }
                    // The server let it wait: the client was not idle.
                    self.last_command = self.measure(1, 0);
                    // A reply without a wait is part of the turn.
                    if self.session.turn.is_over(self.last_command) && !self.give_way().await {
                        return Ok(false);
                    }
                }
                BatchEnd::Close => return Ok(false),
            }
        }
    }

    /// The span of the next batch, if it is to be recorded.
    #[inline]
    fn batch_span(&self) -> Span {
        match &self.worker.shared.telemetry {
            Some(telemetry) if self.start < self.unread.len() => telemetry.resp(),
            _ => Span::none(),
        }
    }

    /// Adds the commands of a batch to its span.
    #[inline]
    fn record_commands(&self, span: &Span, commands: u64) {
        if span.is_none() {
            return;
        }
        let last = self.session.client.command.load(Ordering::Relaxed);
        let name = self.table.specs().nth(last).map_or("unknown", |it| it.name);
        span.record("otel.name", if commands == 1 { name } else { "pipeline" });
        span.record("sluicegate.commands", i64::try_from(commands).unwrap_or(i64::MAX));
    }

    /// Runs commands, all at one time, until the batch ends.
    fn run_batch(&mut self) -> BatchEnd {
        let mut unread = &mut self.unread[self.start..];
        if unread.is_empty() {
            return BatchEnd::Done;
        }
        debug_assert!(
            self.worker.deferred.borrow().replies.is_empty(),
            "operations of another connection are deferred"
        );
        debug_assert!(self.sent <= self.out.len(), "more is sent than there is");
        self.session.begin_batch();
        if self.out.capacity() == 0 {
            self.out = self.worker.buffers.take();
        }
        let mut arguments = Arguments::new();
        let mut batch = Batch::new();
        let policies = &self.worker.policies;
        let repeats = &mut *self.worker.repeats.borrow_mut();
        repeats.set_epoch(policies.borrow().epoch);
        let end = loop {
            let before = unread.len();
            let repeated = if self.session.authenticated && self.parser.is_at_start() {
                repeats.take(&mut unread)
            } else {
                None
            };
            if let Some((index, entry)) = repeated {
                reached!(CommandIsRepeated);
                self.start += before - unread.len();
                self.session.count_call(index);
                batch.push(entry);
                if !batch.is_full() {
                    continue;
                }
            } else {
                match self.parser.parse(&mut unread, &mut arguments) {
                    Ok(true) => {}
                    Ok(false) => break BatchEnd::Done,
                    Err(error) => {
                        reached!(ProtocolErrorBehindCommands if !batch.entries.is_empty());
                        batch.decide(&self.session, &mut self.out);
                        Writer::new(&mut self.out, self.session.version)
                            .error(format!("ERR {error}"));
                        break BatchEnd::Close;
                    }
                }
                let read = before - unread.len();
                self.start += read;
                if arguments.is_empty() {
                    continue;
                }
                let decisions = batch.entries.len();
                let mut call = CommandCall {
                    session: &mut self.session,
                    table: self.table,
                    batch: &mut batch,
                    out: &mut self.out,
                    arguments: &arguments,
                };
                match call.run() {
                    Next::Go => {}
                    Next::Later => {
                        self.start -= read;
                        break BatchEnd::Turn;
                    }
                    Next::Limits(limits) => self.parser.set_limits(limits),
                    Next::Wait(waiting) => break BatchEnd::Wait(waiting),
                    Next::Close => break BatchEnd::Close,
                }
                match batch.entries.last() {
                    Some(entry) if batch.entries.len() == decisions + 1 => {
                        let index = self.session.client.command.load(Ordering::Relaxed);
                        repeats.remember(index, &arguments, entry);
                    }
                    _ => repeats.forget(),
                }
            }
            if batch.is_full() {
                batch.decide(&self.session, &mut self.out);
            }
            if batch.entries.is_empty() {
                policies.borrow_mut().evict();
                repeats.set_epoch(policies.borrow().epoch);
                if is_full(&self.out, self.worker) {
                    break BatchEnd::Full;
                }
                if std::mem::take(&mut self.session.login_failed) {
                    break BatchEnd::Delay;
                }
                if self.session.is_turn_over() {
                    break BatchEnd::Turn;
                }
            }
        };
        batch.decide(&self.session, &mut self.out);
        self.session.end_batch();
        policies.borrow_mut().evict();
        end
    }

    /// Records how long `commands` of the last batch took, which made `decisions`. Reads and returns the clock; returns
    /// the time of the batch if there are no commands.
    #[inline]
    fn measure(&self, commands: u64, decisions: usize) -> Timestamp {
        let start = self.session.now;
        if commands == 0 {
            return start;
        }
        let now = self.session.shared.decider.now();
        self.worker.stats().answered(commands, decisions, start, now);
        now
    }

    /// Records when the client sent commands: the last batch ran the bytes between `start` and `self.start`.
    fn record_times(&mut self, start: usize, end: &BatchEnd) {
        debug_assert!(
            start <= self.start && self.start <= self.unread.len(),
            "more runs than is read"
        );
        if self.start > start {
            self.last_command = self.session.now;
            self.incomplete_since = None;
        }
        if matches!(end, BatchEnd::Done) && self.start < self.unread.len() {
            self.incomplete_since.get_or_insert(self.session.now);
        }
    }

    /// Answers the commands that had arrived when the server stopped, and no more.
    async fn answer_the_rest(&mut self) -> io::Result<()> {
        // Only the runtime knows whether bytes have arrived, and it learns that when it runs.
        yield_now().await;
        for _ in 0..MAX_UNREAD / CHUNK {
            let read = poll_fn(|context| Poll::Ready(self.poll_read(context))).await;
            let Poll::Ready(count) = read else { break };
            let count = count?;
            reached!(CommandsArriveAsServerStops if count > 0);
            if count == 0 || !self.answer().await? {
                break;
            }
            yield_now().await;
        }
        Ok(())
    }

    /// Replies with the reason why the client is closed.
    fn reject(&mut self, reason: &str) {
        Writer::new(&mut self.out, self.session.version).error(reason);
        self.worker.stats().errors.add();
    }
}

/// Whether enough is pending for the client, or for the store.
fn is_full(out: &[u8], worker: &RespWorker) -> bool {
    out.len() >= FLUSH || worker.deferred.borrow().is_full(&worker.shared.buffers)
}

// Reads and writes the bytes of a connection: into a buffer of the worker, and kept only as far as they are reserved.

/// Time for which bytes of a client that sends too many while it waits are left unread. Then they are dropped.
const MAX_STALL: Duration = Duration::from_secs(2);

impl Drop for Connection<'_> {
    fn drop(&mut self) {
        if self.keeps {
            self.worker.buffers.remove_keeper();
        }
    }
}

impl Connection<'_> {
    /// Ready when the client has disconnected. Bytes that it sends until then are kept for later, up to a bound. Then it is
    /// not read from, and after a while its bytes are dropped, so that its disconnection is noticed.
    pub(super) async fn left(&mut self) -> io::Result<()> {
        self.pause();
        loop {
            if self.overrun.is_none()
                && let Err(overrun) = self.reserve_ahead()
            {
                // The next command that waits continues it: otherwise the server would notice a client that has left after
                // its last command.
                let since = *self.stalled_since.get_or_insert_with(Instant::now);
                reached!(BytesOfWaitingClientAreLeftUnread);
                sleep_until(since + MAX_STALL).await;
                self.overrun = Some(overrun);
            }
            if poll_fn(|context| self.poll_read_ahead(context)).await? == 0 {
                return Ok(());
            }
        }
    }

    /// Reserves memory for more bytes of the client while it waits.
    fn reserve_ahead(&mut self) -> Result<(), Overrun> {
        let length = self.unread.len();
        if length < SMALL {
            return Ok(());
        }
        let capacity = self.unread.capacity().max(length + CHUNK);
        if capacity > MAX_READ_AHEAD {
            return Err(Overrun::TooLong);
        }
        if !self.unread_reserved.resize_to_spare(capacity) {
            return Err(Overrun::NoMemory);
        }
        self.unread.reserve_exact(capacity - length);
        Ok(())
    }

    /// Reads once, while the client waits; 0 is the end.
    fn poll_read_ahead(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let mut buffer = self.worker.buffers.take();
        let max_read = if self.overrun.is_some() || self.unread.len() >= SMALL {
            CHUNK
        } else {
            SMALL - self.unread.len()
        };
        let read = poll_read_chunk(&mut self.stream, &mut buffer, max_read, context);
        if self.overrun.is_none() {
            self.unread.extend_from_slice(&buffer);
        }
        if read.is_pending() {
            self.stalled_since = None;
        }
        self.worker.buffers.put(buffer);
        read
    }

    /// Reads once, at most a [`CHUNK`]; 0 is the end. [`io::ErrorKind::OutOfMemory`]: the buffer budget is exhausted.
    #[inline]
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.keeps && self.unread.is_empty() && self.unread.capacity() >= CHUNK {
            let max_read = self.max_read();
            return poll_read_chunk(&mut self.stream, &mut self.unread, max_read, context);
        }
        self.poll_read_more(context)
    }

    fn poll_read_more(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let max_read = self.max_read();
        if self.unread_reserved.bytes() > 0 {
            let length = self.unread.len();
            if length == self.unread.capacity() {
                let capacity = (2 * length).min(MAX_UNREAD);
                let grown = self.unread_reserved.bytes() + capacity - length;
                if !self.unread_reserved.resize_for_payload(grown) {
                    return Poll::Ready(Err(io::ErrorKind::OutOfMemory.into()));
                }
                self.unread.reserve_exact(capacity - length);
            }
            let max_read = (self.unread.capacity() - length).min(max_read);
            return poll_read_chunk(&mut self.stream, &mut self.unread, max_read, context);
        }
        if self.keeps && self.unread.capacity() >= self.unread.len() + CHUNK {
            return poll_read_chunk(&mut self.stream, &mut self.unread, max_read, context);
        }
        let mut buffer = self.worker.buffers.take();
        buffer.extend_from_slice(&self.unread);
        let read = poll_read_chunk(&mut self.stream, &mut buffer, max_read, context);
        if matches!(read, Poll::Ready(Ok(1..))) {
            self.unread = buffer;
        } else {
            self.worker.buffers.put(buffer);
        }
        read
    }

    /// Bytes to read at a time. While many connections wait for a turn, it is no more than each keeps without a
    /// reservation, unless a command is long.
    #[inline]
    fn max_read(&self) -> usize {
        let length = self.unread.len();
        if !self.worker.turns().are_many() || length >= CHUNK {
            CHUNK
        } else if length < SMALL / 2 {
            SMALL - length
        } else {
            SMALL
        }
    }

    /// Sends the pending replies, if the system accepts them immediately, as it usually does. `false`: some are left for
    /// [`flush`](Self::flush).
    #[inline]
    fn try_flush(&mut self) -> bool {
        if self.sent < self.out.len() {
            if let Some(Ok(count)) = self.stream.write_now(&self.out[self.sent..]) {
                self.sent += count;
            }
            if self.sent < self.out.len() {
                return false;
            }
        }
        self.sent = 0;
        self.put_out();
        true
    }

    /// Sends the pending replies. It may be dropped and called again.
    ///
    /// # Errors
    /// The client does not take its replies in time, or there is no memory for them.
    pub(super) async fn flush(&mut self) -> io::Result<()> {
        if self.try_flush() {
            return Ok(());
        }
        // TLS cannot try outside of a task. That the task has used up its budget does not make the client a slow one.
        let tried = unconstrained(poll_fn(|context| Poll::Ready(self.poll_send(context)))).await;
        match tried {
            Poll::Ready(sent) => sent?,
            Poll::Pending => self.send_slowly().await?,
        }
        self.sent = 0;
        self.put_out();
        Ok(())
    }

    /// Sends what the client does not take immediately. It keeps only those replies and commands that have not run, and
    /// both are counted.
    async fn send_slowly(&mut self) -> io::Result<()> {
        self.pause();
        reached!(ClientIsSlowToRead);
        if !self.compact() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.out.drain(..self.sent);
        self.sent = 0;
        self.out.shrink_to_fit();
        if !self.out_reserved.resize_for_payload(self.out.len()) {
            reached!(RepliesHaveNoMemory);
            self.worker.stats().slow.add();
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let most = self.session.shared.timeouts.output;
        match timeout(most, poll_fn(|context| self.poll_send(context))).await {
            Ok(sent) => sent?,
            Err(_) => {
                reached!(ClientDoesNotRead);
                self.worker.stats().slow.add();
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        self.out_reserved.release();
        Ok(())
    }

    /// Sends the pending replies, as far as the client takes them.
    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut stream = Pin::new(&mut self.stream);
        while self.sent < self.out.len() {
            match ready!(stream.as_mut().poll_write(context, &self.out[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        stream.poll_flush(context)
    }

    /// Returns the buffer for replies, unless this connection keeps it.
    #[inline]
    fn put_out(&mut self) {
        if self.keeps && self.out.capacity() <= MAX_KEPT {
            self.out.clear();
        } else {
            self.worker.buffers.put(std::mem::take(&mut self.out));
        }
    }

    /// Drops commands that have run, and keeps the rest in as few bytes as possible. `false`: there is no memory for it, and
    /// the client is to be closed.
    #[inline]
    fn compact(&mut self) -> bool {
        if self.start == self.unread.len() && self.keeps && self.unread.capacity() <= MAX_KEPT {
            self.start = 0;
            self.unread.clear();
            self.unread_reserved.release();
            return true;
        }
        self.compact_rest()
    }

    fn compact_rest(&mut self) -> bool {
        let left = self.unread.len() - self.start;
        if left <= SMALL {
            let small = self.unread[self.start..].to_vec();
            self.worker.buffers.put(std::mem::replace(&mut self.unread, small));
        } else {
            self.unread.drain(..self.start);
            self.unread.shrink_to(left.max(CHUNK));
        }
        self.start = 0;
        // A small rest is not counted: it is within what each of ten thousand clients costs anyway.
        let found = self.parser.shrink();
        let bytes = if left <= SMALL { 0 } else { self.unread.capacity() + found };
        let fits = self.unread_reserved.resize_for_payload(bytes);
        debug_assert!(
            !fits || self.unread_reserved.bytes() >= self.unread.capacity() || left <= SMALL,
            "unread bytes are kept without a reservation"
        );
        if !fits {
            self.reject(NO_MEMORY);
        }
        fits
    }

    /// Sends the last replies. Bytes that the client still sends are read and dropped: otherwise its system would drop the
    /// replies unread.
    pub(super) async fn close(&mut self) -> io::Result<()> {
        // Commands that were read do not run any more: many rejected clients would keep them while they linger.
        self.worker.buffers.put(std::mem::take(&mut self.unread));
        self.start = 0;
        self.unread_reserved.release();
        self.pause();
        self.flush().await?;
        self.stream.shutdown().await?;
        let (mut bytes, mut dropped) = ([0; 1024], 0);
        loop {
            match self.stream.read(&mut bytes).await? {
                0 => return Ok(()),
                count => dropped += count,
            }
            if dropped >= CHUNK {
                dropped = 0;
                yield_now().await;
            }
        }
    }
}

/// Reads at most `max_read` bytes, and appends them to `buffer`.
#[inline]
fn poll_read_chunk(
    stream: &mut Stream,
    buffer: &mut Vec<u8>,
    max_read: usize,
    context: &mut Context<'_>,
) -> Poll<io::Result<usize>> {
    let mut limited = buffer.limit(max_read);
    // If it is not ready, nothing was read, and it may be dropped.
    pin!(stream.read_buf(&mut limited)).poll(context)
}

// Turns of a connection among the others of its worker.

impl Connection<'_> {
    /// Whether enough was read in this turn to let others go first. While many connections wait, a long command is
    /// finished first, because it would be kept.
    #[inline]
    fn has_read_enough(&self) -> bool {
        if !self.worker.turns().are_many() {
            return self.turn >= CHUNK;
        }
        if !self.session.turn.is_in_lane() {
            return self.turn >= SMALL;
        }
        self.turn >= CHUNK && self.unread.len() <= SMALL || self.turn >= MAX_READ_AHEAD
    }

    /// Ends the turn, before the connection waits for something else than a turn.
    #[inline]
    pub(super) fn pause(&mut self) {
        self.turn = 0;
        self.session.turn.end();
    }

    /// Lets other connections of the worker go first, and continues in the lane. `false`: there is no memory
    /// for what is kept until then, and the client is to be closed.
    async fn give_way(&mut self) -> bool {
        self.turn = 0;
        if !self.session.turn.try_lane() {
            if !self.compact() {
                return false;
            }
            // Rare, therefore boxed, so that not every connection has the space for it.
            Box::pin(self.session.turn.lane()).await;
        }
        yield_now().await;
        true
    }
}

// Deferred operations of a batch: applied while the connection waits, with as little kept as in any other wait.

impl Connection<'_> {
    /// Applies the operations, and inserts the replies where they belong. `false`: there is no memory for what is kept
    /// until then, and the client is to be closed.
    pub(super) async fn answer_deferred(&mut self) -> bool {
        let deferred = self.worker.deferred.take();
        self.pause();
        let mut known = mem::take(&mut self.out);
        let mut reserved = self.worker.shared.buffers.reserve_nothing();
        let fits = self.compact() && {
            let fits = reserved.resize(deferred.size() + known.len());
            if !fits {
                self.reject(NO_MEMORY);
            }
            fits
        };
        if !fits {
            // None was applied: the error replaces the first of their replies.
            known.truncate(deferred.replies.first().map_or(0, |reply| reply.offset));
            known.append(&mut self.out);
            self.out = known;
            return false;
        }
        if !self.keeps {
            let few = known.as_slice().to_vec();
            self.worker.buffers.put(mem::replace(&mut known, few));
        }
        answer_deferred(deferred, self.worker, &known, &mut self.out).await;
        true
    }
}

// Commands that wait for their reply.

impl Connection<'_> {
    /// Waits for a request, and replies. `false`: the client has disconnected, and leaves the queue.
    pub(super) async fn wait(&mut self, waiting: WaitingCall) -> io::Result<bool> {
        let WaitingCall { mut request, repeated } = waiting;
        let shared = self.session.shared;
        let mut reserved = shared.buffers.reserve_nothing();
        if !reserved.resize_for_payload(request.reserved_bytes()) {
            reached!(WaitingRequestHasNoMemory);
            self.reject(NO_MEMORY);
            return Ok(true);
        }
        let stopping = self.stopping.clone();
        let answer = tokio::select! {
            // Most are answered immediately, without a read.
            biased;
            answer = wait::wait(&shared.decider, &mut request, stopping) => answer,
            left = self.left() => {
                reached!(ClientLeavesWhileItWaits);
                return left.map(|()| false);
            }
        };
        let (stats, operations) = (self.worker.stats(), request.attempted());
        let (now, waited) = (request.decided_at(), Some(request.waited()));
        let writer = &mut Writer::new(&mut self.out, self.session.version);
        match (answer, repeated) {
            (Ok(answer), Some(repeated)) => {
                let answered = (&answer, &repeated);
                answer_all(&operations, answered, self.worker, (now, waited), writer);
            }
            (Ok(answer), None) => {
                stats.decided(answer.source, &answer.decision);
                for it in operations {
                    let cause = Cause::policy(it.policy.policy());
                    stats.sampler.note(it.key, &answer.decision, cause);
                    shared.decider.note(&it, answer.source, &answer.decision, now, waited);
                }
                writer.integers(&answer.decision.to_integers());
            }
            (Err(failure), _) => {
                stats.errors.add();
                writer.error(failure.to_string());
            }
        }
        Ok(true)
    }
}

// How a worker serves RESP.

pub(crate) static PROTOCOL: Protocol = Protocol {
    name: "resp",
    setting: "listen",
    tls_settings: "--tls",
    alpn: &[],
    reserves_health: false,
    rejection: b"-ERR max number of clients reached\r\n",
};

/// Makes the service of each worker.
pub(crate) fn service(context: RespContext) -> ServiceFactory {
    let context = Arc::new(context);
    Box::new(move |port| Rc::new(RespWorker::new(Arc::clone(&context), port)))
}

impl Service for RespWorker {
    fn serve(self: Rc<Self>, socket: Socket, permit: ConnectionPermit, tasks: &mut JoinSet<()>) {
        tasks.spawn_local(serve(socket, permit, self));
    }
}

/// Serves a client until it disconnects, is closed, or the server stops.
async fn serve(socket: Socket, permit: ConnectionPermit, worker: Rc<RespWorker>) {
    let client = &*permit.client;
    let mut stopping = worker.port.worker.stop.subscribe();
    // Boxed, so that not every connection has the space for a handshake.
    let opened = Box::pin(worker.port.open(socket, client, &mut stopping)).await;
    let Some(stream) = opened else { return };
    let mut connection = Connection::new(stream, &worker, client, stopping);
    // Its own last command may have killed it: replies are sent if possible.
    if !matches!(serve_until_killed(&mut connection, client).await, Some(Err(_))) {
        let _ = timeout(LINGER, connection.close()).await;
    }
    worker.shared.buffers.count_freed(CONNECTION_BYTES);
}

/// `None`: the client was killed.
async fn serve_until_killed(
    connection: &mut Connection<'_>,
    client: &Client,
) -> Option<io::Result<()>> {
    let mut stopping = connection.stopping.clone();
    let (mut stop, mut killed) = (pin!(stopped(&mut stopping)), pin!(client.killed()));
    let mut run = pin!(connection.run());
    let mut is_registered = false;
    poll_fn(|context| {
        // They are polled once and not with every request, to register this task. It is woken after the flags are set that
        // are checked below.
        if !std::mem::replace(&mut is_registered, true) {
            let _ = (stop.as_mut().poll(context), killed.as_mut().poll(context));
        }
        match run.as_mut().poll(context) {
            Poll::Ready(ended) => Poll::Ready(Some(ended)),
            Poll::Pending if client.is_killed() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}
