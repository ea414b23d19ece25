//! The network between processes and the server: bytes that arrive late, are held back, or never arrive.
//!
//! Each process has a link to the server. A connection is two pipes of bytes. As in TCP, the bytes of a pipe arrive in
//! order, or the connection ends.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep_until},
};

use crate::{random::RandomByTime, text::text, time::VirtualTime};

/// The direction of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    /// From a process to the server.
    Request,
    /// From the server to a process.
    Reply,
}

text! {
    /// A fault of a link.
    pub(crate) units LinkFault {
        /// Requests are held back.
        CutRequests,
        /// Replies are held back.
        CutReplies,
        /// Both.
        Cut,
        /// The connections end.
        ResetLink,
        /// The connections vanish, and neither end notices it.
        LoseLink,
        /// Everything takes `amount` milliseconds longer.
        SlowLink,
    }
}

/// The path between a process and the server.
#[derive(Debug)]
pub(crate) struct Link {
    random: RandomByTime,
    /// When it was made.
    time: VirtualTime,
    state: Mutex<LinkState>,
}

#[derive(Debug)]
struct LinkState {
    /// Nothing arrives before these times: requests, replies.
    blocked_until: [Instant; 2],
    /// Until when messages take longer, and by how much.
    slow: (Instant, Duration),
    pipes: Vec<Arc<Mutex<Pipe>>>,
}

impl Link {
    pub(crate) fn new(random: RandomByTime) -> Arc<Self> {
        let now = Instant::now();
        let state =
            LinkState { blocked_until: [now; 2], slow: (now, Duration::ZERO), pipes: Vec::new() };
        Arc::new(Self { random, time: VirtualTime::start(), state: Mutex::new(state) })
    }

    /// Something goes wrong for `span` milliseconds. Returns how many connections are lost that have an end in use.
    pub(crate) fn fail(&self, fault: LinkFault, span: u64, amount: u64) -> usize {
        let span = Duration::from_millis(span);
        match fault {
            LinkFault::CutRequests => self.block(Direction::Request, span),
            LinkFault::CutReplies => self.block(Direction::Reply, span),
            LinkFault::Cut => {
                self.block(Direction::Request, span);
                self.block(Direction::Reply, span);
            }
            LinkFault::ResetLink => self.reset(),
            LinkFault::LoseLink => return self.lose(),
            LinkFault::SlowLink => {
                let until = Instant::now() + span;
                self.state.lock().slow = (until, Duration::from_millis(amount));
            }
        }
        0
    }

    /// Holds back everything in this direction.
    fn block(&self, direction: Direction, span: Duration) {
        let mut state = self.state.lock();
        let until = &mut state.blocked_until[direction as usize];
        *until = (*until).max(Instant::now() + span);
    }

    /// Ends all connections: both sides read an error.
    pub(crate) fn reset(&self) {
        for pipe in self.state.lock().pipes.drain(..) {
            pipe.lock().fail();
        }
    }

    /// Loses all connections: no side notices it, and no bytes arrive any more. Returns the number of those that have an end in
    /// use.
    fn lose(&self) -> usize {
        let mut used = 0;
        for pipe in self.state.lock().pipes.drain(..) {
            used += usize::from(Arc::strong_count(&pipe) > 1);
            let mut pipe = pipe.lock();
            pipe.is_lost = true;
            pipe.clear();
        }
        // Two pipes are a connection.
        used / 2
    }

    /// When a message that is sent now arrives.
    fn arrival(&self, direction: Direction) -> Instant {
        let (state, now) = (self.state.lock(), Instant::now());
        let millis = self.time.millis();
        let usual = now + Duration::from_millis(self.random.below(millis, 2));
        let slow = if now < state.slow.0 { state.slow.1 } else { Duration::ZERO };
        // A message that was held back is sent again, up to a fifth of a second later.
        let blocked = state.blocked_until[direction as usize];
        let again = if now < blocked {
            Duration::from_millis(self.random.below(millis, 200))
        } else {
            Duration::ZERO
        };
        usual.max(blocked) + slow + again
    }

    /// Ready when the packets of a handshake have passed.
    pub(crate) async fn shake_hands(&self) {
        sleep_until(self.arrival(Direction::Request)).await;
        sleep_until(self.arrival(Direction::Reply)).await;
    }

    /// A new connection: the end of the process, and that of the server.
    pub(crate) fn open(self: &Arc<Self>) -> (Stream, Stream) {
        self.open_with(usize::MAX)
    }

    /// The same, but at most about `capacity` bytes of replies are on their way: the server cannot write more before the
    /// process reads.
    pub(crate) fn open_with(self: &Arc<Self>, capacity: usize) -> (Stream, Stream) {
        let requests = Arc::new(Mutex::new(Pipe::new(usize::MAX)));
        let replies = Arc::new(Mutex::new(Pipe::new(capacity)));
        let mut state = self.state.lock();
        // A pipe whose ends are both dropped is removed.
        state.pipes.retain(|pipe| Arc::strong_count(pipe) > 1);
        state.pipes.extend([Arc::clone(&requests), Arc::clone(&replies)]);
        drop(state);
        let stream = |read: &Arc<_>, write: &Arc<_>, direction| Stream {
            read: Arc::clone(read),
            write: Arc::clone(write),
            link: Arc::clone(self),
            direction,
            timer: None,
        };
        (
            stream(&replies, &requests, Direction::Request),
            stream(&requests, &replies, Direction::Reply),
        )
    }
}

/// Bytes on their way in one direction.
#[derive(Debug)]
struct Pipe {
    /// Bytes, and when they arrive.
    chunks: VecDeque<(Instant, VecDeque<u8>)>,
    /// When the last byte arrives.
    last: Instant,
    /// How the pipe ends, and when.
    end: Option<(Instant, Ending)>,
    is_lost: bool,
    reader: Option<Waker>,
    /// Bytes in transit, and their upper bound.
    bytes: usize,
    capacity: usize,
    writer: Option<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Closed,
    Reset,
}

impl Pipe {
    fn new(capacity: usize) -> Self {
        Self {
            chunks: VecDeque::new(),
            last: Instant::now(),
            end: None,
            is_lost: false,
            reader: None,
            bytes: 0,
            capacity,
            writer: None,
        }
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }

    fn clear(&mut self) {
        self.chunks.clear();
        self.bytes = 0;
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
    }

    fn fail(&mut self) {
        self.clear();
        self.end = Some((Instant::now(), Ending::Reset));
        self.wake();
    }
}

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Stream {
    read: Arc<Mutex<Pipe>>,
    write: Arc<Mutex<Pipe>>,
    link: Arc<Link>,
    /// The pipe for written bytes.
    direction: Direction,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Stream {
    /// Ends the connection at once: the other side reads an error.
    pub(crate) fn reset(&self) {
        self.read.lock().fail();
        self.write.lock().fail();
    }

    /// Whether the other side can see the end of the written bytes.
    pub(crate) fn end(&self) -> StreamEnd {
        StreamEnd(Arc::clone(&self.write))
    }

    /// Writes as much as fits. `WouldBlock`: nothing does.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let at = self.link.arrival(self.direction);
        let mut pipe = self.write.lock();
        if pipe.end.is_some() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if pipe.is_lost {
            return Ok(bytes.len());
        }
        let count = bytes.len().min(pipe.capacity.saturating_sub(pipe.bytes));
        if count == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let at = at.max(pipe.last);
        pipe.last = at;
        pipe.bytes += count;
        pipe.chunks.push_back((at, bytes[..count].iter().copied().collect()));
        pipe.wake();
        Ok(count)
    }

    fn close(&self) {
        let at = self.link.arrival(self.direction);
        let mut pipe = self.write.lock();
        if pipe.end.is_none() && !pipe.is_lost {
            pipe.end = Some((at.max(pipe.last), Ending::Closed));
            pipe.wake();
        }
    }
}

/// The end of the bytes in one direction.
#[derive(Debug)]
pub(crate) struct StreamEnd(Arc<Mutex<Pipe>>);

impl StreamEnd {
    /// Whether it has arrived, after all bytes were read.
    pub(crate) fn has_arrived(&self) -> bool {
        self.is_due() && {
            let pipe = self.0.lock();
            pipe.chunks.is_empty() || pipe.end.is_some_and(|it| it.1 == Ending::Reset)
        }
    }

    /// Whether it has arrived. Bytes before it may be unread.
    pub(crate) fn is_due(&self) -> bool {
        self.0.lock().end.is_some_and(|(at, _)| at <= Instant::now())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.close();
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut pipe = this.read.lock();
        let now = Instant::now();
        let end = pipe.end;
        let due = match (pipe.chunks.front_mut(), end) {
            (_, Some((at, Ending::Reset))) if at <= now => {
                return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
            }
            (Some((at, bytes)), _) if *at <= now => {
                let mut count = 0;
                for part in [bytes.as_slices().0, bytes.as_slices().1] {
                    let part = &part[..part.len().min(buffer.remaining())];
                    buffer.put_slice(part);
                    count += part.len();
                }
                bytes.drain(..count);
                if bytes.is_empty() {
                    pipe.chunks.pop_front();
                }
                pipe.bytes -= count;
                if let Some(writer) = pipe.writer.take() {
                    writer.wake();
                }
                return Poll::Ready(Ok(()));
            }
            (Some((at, _)), _) => Some(*at),
            (None, Some((at, Ending::Closed))) if at <= now => return Poll::Ready(Ok(())),
            (None, Some((at, _))) => Some(at),
            (None, None) => None,
        };
        pipe.reader = Some(context.waker().clone());
        drop(pipe);
        if let Some(at) = due {
            let timer = this.timer.get_or_insert_with(|| Box::pin(sleep_until(at)));
            timer.as_mut().reset(at);
            if timer.as_mut().poll(context).is_ready() {
                context.waker().wake_by_ref();
            }
        }
        Poll::Pending
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.write.lock().writer = Some(context.waker().clone());
                Poll::Pending
            }
            written => Poll::Ready(written),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close();
        Poll::Ready(Ok(()))
    }
}
