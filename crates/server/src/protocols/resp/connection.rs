//! One connection: reads commands in batches, runs them, and sends the replies.
//!
//! Everything that one read brings is parsed, decided at one time and answered with one write. Nothing more is read
//! from a client that does not take its replies.
//!
//! Invariants:
//! - a connection that waits, for its client or for others of its worker, holds no buffer except for data that
//!   it must keep: that is reserved from the server's budget, or the client is closed;
//! - a turn of the worker is short: after [`CHUNK`] bytes or half a millisecond, other connections go first
//!   ([`turn`](crate::budgets::turn)).

mod deferred;
mod transfer;
mod turns;
mod waiting;

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::atomic::Ordering,
    task::Poll,
    time::Duration,
};

use sluicegate_core::Timestamp;
use sluicegate_resp::{Arguments, Parser, Writer};
use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, Sleep, sleep},
};
use tracing::{Instrument as _, Span};

use super::{
    batch::Batch,
    call::{CommandCall, CommandTable, Next, WaitingCall},
    commands,
    pool::{CHUNK, MAX_UNREAD, Overrun},
    session::Session,
    worker::RespWorker,
};
use crate::{
    budgets::buffers::{BufferReservation, NO_MEMORY},
    net::{clients::Client, secret::GUESS_DELAY, stream::Stream},
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
            if count? == 0 || !self.answer().await? {
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
