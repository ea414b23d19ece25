//! Reads and writes the bytes of a connection: into a buffer of the worker, and kept only as far as they are reserved.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BufMut;
use tokio::{
    io::{AsyncReadExt, AsyncWrite, AsyncWriteExt},
    task::unconstrained,
    time::{Instant, sleep_until, timeout},
};

use super::Connection;
use crate::{
    budgets::buffers::NO_MEMORY,
    net::stream::Stream,
    protocols::resp::pool::{CHUNK, MAX_KEPT, MAX_READ_AHEAD, MAX_UNREAD, Overrun, SMALL},
};

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
    pub(super) fn try_flush(&mut self) -> bool {
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
        if !self.compact() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        self.out.drain(..self.sent);
        self.sent = 0;
        self.out.shrink_to_fit();
        if !self.out_reserved.resize_for_payload(self.out.len()) {
            self.worker.stats().slow.add();
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let most = self.session.shared.timeouts.output;
        match timeout(most, poll_fn(|context| self.poll_send(context))).await {
            Ok(sent) => sent?,
            Err(_) => {
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
    pub(super) fn compact(&mut self) -> bool {
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
        if !fits {
            self.reject(NO_MEMORY);
        }
        fits
    }

    /// Sends the last replies. Bytes that the client still sends are read and dropped: otherwise its system would drop the
    /// replies unread.
    pub(in crate::protocols::resp) async fn close(&mut self) -> io::Result<()> {
        // Commands that were read do not run any more: many rejected clients would keep them while they linger.
        self.worker.buffers.put(std::mem::take(&mut self.unread));
        self.start = 0;
        self.unread_reserved.release();
        self.pause();
        self.flush().await?;
        self.stream.shutdown().await?;
        let mut dropped = [0; 1024];
        while self.stream.read(&mut dropped).await? > 0 {}
        Ok(())
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
