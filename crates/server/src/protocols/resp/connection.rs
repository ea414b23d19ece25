//! One connection: what comes in, in batches, and what goes out.
//!
//! All that one read brought is parsed, decided at one time and answered with one write. Where the
//! client does not take its replies, nothing more is read from it.
//!
//! Invariants:
//! - a connection that waits, for its client or for others of its worker, holds no buffer, but for what it
//!   must keep: that is reserved from the server's budget, or the client is closed;
//! - a turn of the worker is short: after [`CHUNK`] bytes or half a millisecond, other connections go first
//!   ([`turn`](crate::budgets::turn)).

mod deferred;
mod transfer;

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::Poll,
    time::Duration,
};

use sluicegate_core::Timestamp;
use sluicegate_resp::{Arguments, Limits, Parser, Writer};
use tokio::{
    sync::watch,
    task::yield_now,
    time::{Instant, Sleep, sleep},
};

use self::transfer::MAX_READ_AHEAD;
use super::{
    batch::Gathered,
    pool::{CHUNK, SMALL},
    session::{Next, Session},
    worker::RespWorker,
};
use crate::{
    budgets::buffers::{NO_MEMORY, Reservation},
    net::{clients::Client, stream::Stream},
    stats::Cause,
    wait::{self, Waiting},
};

/// The most that is kept of what a client sent and was not answered yet, in bytes.
const MAX_UNREAD: usize = 1024 * 1024;
/// When so much is pending for a client, it is sent before the next command is carried out. A single
/// reply is shorter than 1 MiB, and so is all that is ever pending.
const FLUSH: usize = 64 * 1024;
/// How long a client waits for the reply to a wrong password, and for all that it sent behind it.
const LOGIN_DELAY: Duration = Duration::from_millis(5);
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
    /// For `unread`, where more of it than [`SMALL`] is kept between two reads.
    unread_reserved: Reservation,
    /// What was answered and is to be sent.
    out: Vec<u8>,
    /// How much of it was sent already.
    sent: usize,
    /// For `out`, while the client does not take it.
    out_reserved: Reservation,
    /// Whether it keeps its buffers while it is idle: few connections of a worker do.
    keeps: bool,
    /// Whether what the client sent while it waited was more than is kept.
    overrun: bool,
    /// Bytes that were read since the worker turned to this connection.
    turn: usize,
    /// When it last asked: bytes that finish no command do not count.
    asked: Timestamp,
    /// Since when a command has been there in part.
    begun: Option<Timestamp>,
    parser: Parser,
    session: Session<'a>,
    worker: &'a RespWorker,
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
    /// The turn of the connection is over, though not what it asks.
    Turn,
    /// A password was wrong: the reply has to wait.
    Delay,
    /// A command waits for its turn.
    Wait(Box<Waiting>),
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
        let limits =
            if worker.shared.asks_for_password() { Limits::UNAUTHENTICATED } else { LIMITS };
        let buffers = &worker.shared.buffers;
        Self {
            stream,
            unread: Vec::new(),
            start: 0,
            unread_reserved: buffers.reserve_nothing(),
            out: Vec::new(),
            sent: 0,
            out_reserved: buffers.reserve_nothing(),
            keeps: worker.buffers.keep(),
            overrun: false,
            turn: 0,
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
            if self.overrun {
                self.reject(&format!(
                    "ERR Protocol error: more than {MAX_READ_AHEAD} bytes behind a command that waits"
                ));
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
            match self.wake(patience.as_mut()).await {
                Woken::Read(read) => match read {
                    Ok(0) => return Ok(()),
                    Ok(count) => self.turn += count,
                    Err(error) if error.kind() == io::ErrorKind::OutOfMemory => {
                        self.reject(NO_MEMORY);
                        return Ok(());
                    }
                    Err(error) => return Err(error),
                },
                Woken::Stop => {}
                Woken::Late => {
                    // One timer a client, set anew when it rings, costs nothing a request.
                    let left = self.due().map_or(LOOK, |due| elapsed(shared.decider.now(), due));
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
        let (timed, worker) = (self.due().is_some(), self.worker);
        poll_fn(|context| match self.poll_read(context) {
            Poll::Ready(read) => Poll::Ready(Woken::Read(read)),
            Poll::Pending if worker.is_stopping() => Poll::Ready(Woken::Stop),
            Poll::Pending => {
                self.pause();
                if timed {
                    patience.as_mut().poll(context).map(|()| Woken::Late)
                } else {
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// When the client is to be closed, if nothing else comes: it asks nothing, or does not finish
    /// what it began to ask.
    fn due(&self) -> Option<Timestamp> {
        let timeouts = &self.session.shared().timeouts;
        let after = |since: Option<Timestamp>, most: Duration| {
            since.filter(|_| !most.is_zero()).map(|since| since + most)
        };
        let due = [after(Some(self.asked), timeouts.idle), after(self.begun, timeouts.input)];
        due.into_iter().flatten().min()
    }

    /// Carries out all that is complete and sends the replies. `false`: the client is to be closed.
    async fn answer(&mut self) -> io::Result<bool> {
        loop {
            let start = self.start;
            let before = self.worker.stats().requests.count();
            let batch = self.batch();
            let commands = self.worker.stats().requests.count().wrapping_sub(before);
            let gathered = self.worker.gathered.take();
            self.note(start, &batch);
            if !self.worker.deferred.borrow().is_empty() && !self.ask().await {
                return Ok(false);
            }
            // One that waits has no reply yet.
            let waiting = u64::from(matches!(batch, Batch::Wait(_)));
            self.measure(commands.saturating_sub(waiting), gathered);
            match batch {
                Batch::Done => {
                    if !self.try_flush() {
                        Box::pin(self.flush()).await?;
                    }
                    return Ok(self.compact());
                }
                Batch::Full => {
                    self.flush().await?;
                    let now = self.session.shared().decider.now();
                    if self.session.turn.is_over(now) && !self.give_way().await {
                        return Ok(false);
                    }
                }
                Batch::Turn => {
                    self.flush().await?;
                    if !self.give_way().await {
                        return Ok(false);
                    }
                }
                Batch::Delay => {
                    self.pause();
                    if !self.compact() {
                        return Ok(false);
                    }
                    sleep(LOGIN_DELAY).await;
                    self.flush().await?;
                }
                Batch::Wait(waiting) => {
                    self.flush().await?;
                    // Seldom, and long: in a box, so that it is no part of each connection.
                    if !self.compact() || !Box::pin(self.wait(*waiting)).await? {
                        return Ok(false);
                    }
                    // It was we who let it wait.
                    self.asked = self.measure(1, 0);
                    // One that is answered at once is part of the turn.
                    if self.session.turn.is_over(self.asked) && !self.give_way().await {
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
        if self.out.capacity() == 0 {
            self.out = self.worker.buffers.take();
        }
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
                    if self.session.is_over() {
                        break Batch::Turn;
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
            let read = before - unread.len();
            self.start += read;
            if arguments.is_empty() {
                continue;
            }
            let length = gathered.len();
            match self.session.execute(&arguments, &mut gathered, &mut self.out) {
                Next::Go => {}
                Next::Later => {
                    self.start -= read;
                    break Batch::Turn;
                }
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
                if self.session.take_login_failed() {
                    break Batch::Delay;
                }
                if self.session.is_over() {
                    break Batch::Turn;
                }
            }
        };
        gathered.answer(&self.session, &mut self.out);
        self.session.settle();
        end
    }

    /// Whether so much was read since the turn began that others go first. While many connections wait, a long
    /// command is finished first, because it would be kept.
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
    fn pause(&mut self) {
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
            // Seldom, and therefore in a box, so that it is no part of each connection.
            Box::pin(self.session.turn.lane()).await;
        }
        yield_now().await;
        true
    }

    /// Does what the batch has put off, as questions to a store elsewhere. `false`: there is no memory for it, and
    /// the client is to be closed.
    async fn ask(&mut self) -> bool {
        let deferred = self.worker.deferred.take();
        Box::pin(self.answer_deferred(deferred)).await
    }

    /// Records how long `commands` of the last batch took, which made so many `decisions`. Reads the clock
    /// once, unless there are none; returns what it read.
    #[inline]
    fn measure(&self, commands: u64, decisions: usize) -> Timestamp {
        let (stats, start) = (self.worker.stats(), self.session.now);
        if commands == 0 {
            return start;
        }
        let now = self.session.shared().decider.now();
        let micros = now.as_micros().saturating_sub(start.as_micros());
        stats.latency.record(commands, micros);
        stats.sampler.answered(decisions, start, now);
        now
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
        let watch = self.worker.stats().sampler.active();
        let watched = watch.map(|watch| {
            let policy = waiting.rule.policy().clone();
            (watch, waiting.key.clone(), policy)
        });
        let answer = tokio::select! {
            // Most are answered at once, and nothing need be read for them.
            biased;
            answer = wait::wait(&shared.decider, waiting, stopping) => answer.map(|it| it.decision),
            left = self.left() => return left.map(|()| false),
        };
        if let (Some((watch, key, policy)), Ok(decision)) = (watched, &answer) {
            watch.decided(&key, decision, Cause::policy(&policy));
        }
        self.session.waited(answer, &mut self.out);
        Ok(true)
    }

    /// Answers what had arrived when the server was told to stop, and no more.
    async fn answer_the_rest(&mut self) -> io::Result<()> {
        // Beneath TLS only the runtime can tell what there is; once round, it has been told.
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

    /// Says why the client is closed.
    fn reject(&mut self, why: &str) {
        Writer::new(&mut self.out, self.session.version()).error(why);
        self.worker.stats().errors.add();
    }
}

/// Whether enough is pending for the client, or for a store elsewhere.
fn is_full(out: &[u8], worker: &RespWorker) -> bool {
    out.len() >= FLUSH || worker.deferred.borrow().is_full(&worker.shared.buffers)
}

/// From `then` to `now`.
fn elapsed(then: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(now.as_micros().saturating_sub(then.as_micros()))
}
