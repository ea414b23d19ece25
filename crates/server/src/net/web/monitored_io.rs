//! A connection whose activity is recorded.

use std::{
    cell::RefCell,
    future::poll_fn,
    io, mem,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::activity::ConnectionActivity;
use crate::net::stream::Stream;

/// Maximum number of bytes that are read in one turn, so that input read ahead stays small.
const MAX_READ: usize = 8 * 1024;
/// Maximum number of writes in one turn: a few bytes of input may cause a write of their own.
const MAX_WRITES: usize = 32;
/// The length of the prefix that identifies HTTP/2.
const FIRST: usize = 24;

/// A connection whose activity is recorded. Clones share the connection.
#[derive(Clone)]
pub(super) struct MonitoredIo {
    connection: Rc<RefCell<SharedIo>>,
    activity: Rc<ConnectionActivity>,
}

/// The connection that the clones of a [`MonitoredIo`] share, and its turn.
struct SharedIo {
    stream: Stream,
    /// Bytes that were read and will be read again.
    unread: Bytes,
    /// Whether hyper waits for input, and notices the end of it.
    is_awaited: bool,
    /// Bytes read, and writes, in this turn.
    read: usize,
    writes: usize,
    /// Whether it reached a limit of the turn.
    is_over: bool,
}

impl MonitoredIo {
    pub(super) fn new(stream: Stream, activity: Rc<ConnectionActivity>) -> Self {
        let connection = SharedIo {
            stream,
            unread: Bytes::new(),
            is_awaited: false,
            read: 0,
            writes: 0,
            is_over: false,
        };
        Self { connection: Rc::new(RefCell::new(connection)), activity }
    }

    /// Waits for the first bytes, which show whether HTTP/2 is spoken. `None`: the client has left.
    pub(super) fn poll_version(&self, context: &mut Context<'_>) -> Poll<Option<bool>> {
        let mut connection = self.connection.borrow_mut();
        loop {
            if !connection.unread.is_empty()
                && let Some(is_http2) = self.activity.is_http2()
            {
                return Poll::Ready(Some(is_http2));
            }
            let mut first = [0; FIRST];
            let length = FIRST - connection.unread.len();
            let mut buffer = ReadBuf::new(&mut first[..length]);
            let read = ready!(Pin::new(&mut connection.stream).poll_read(context, &mut buffer));
            let new = buffer.filled();
            if read.is_err() || new.is_empty() || !self.activity.read(new) {
                return Poll::Ready(None);
            }
            connection.unread = [&connection.unread, new].concat().into();
        }
    }

    /// The bytes that were read and are to be read again.
    pub(super) fn first_bytes(&self) -> Bytes {
        self.connection.borrow().unread.clone()
    }

    /// Begins a turn, with new limits on reads and writes.
    #[inline]
    pub(super) fn begin_turn(&self) {
        let mut connection = self.connection.borrow_mut();
        (connection.read, connection.writes, connection.is_over) = (0, 0, false);
    }

    /// Whether the connection waits for its next turn only, so that nothing else will wake it.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.connection.borrow().is_over
    }

    /// Puts bytes of a request back, to be read again.
    pub(super) fn unread(&self, bytes: Bytes) {
        if bytes.is_empty() {
            // An empty slice would keep its whole buffer alive.
            return;
        }
        self.activity.has_begun(bytes.len());
        let mut connection = self.connection.borrow_mut();
        let behind = mem::take(&mut connection.unread);
        connection.unread = if behind.is_empty() { bytes } else { [bytes, behind].concat().into() };
    }

    /// Whether a client of HTTP/1.1 has left. hyper does not notice it while it keeps bytes of the next request: it reads no
    /// further. Up to [`MAX_READ`] bytes are read here instead, to be read again.
    pub(super) fn has_left(&self, context: &mut Context<'_>) -> bool {
        let mut connection = self.connection.borrow_mut();
        if connection.is_awaited || self.activity.is_http2() != Some(false) {
            return false;
        }
        while connection.unread.len() < MAX_READ {
            let mut ahead = [0; 512];
            let mut buffer = ReadBuf::new(&mut ahead);
            match Pin::new(&mut connection.stream).poll_read(context, &mut buffer) {
                Poll::Pending => return false,
                Poll::Ready(Err(_)) => return true,
                Poll::Ready(Ok(())) => {}
            }
            let new = buffer.filled();
            if new.is_empty() || !self.activity.read(new) {
                return true;
            }
            connection.unread = [&connection.unread, new].concat().into();
        }
        false
    }

    /// Sends a few last bytes, if they can be sent at once.
    pub(super) fn write_and_close(&self, bytes: &[u8]) {
        // The connection is closed in either case.
        let _ = self.connection.borrow().stream.write_now(bytes);
    }

    /// Reads and drops up to `most` bytes that the client still sends.
    pub(super) async fn drain(&self, most: usize) -> io::Result<()> {
        let (mut dropped, mut sum) = ([0; 4096], 0);
        while sum < most {
            let mut buffer = ReadBuf::new(&mut dropped);
            // Dropped bytes are not recorded: they use no memory.
            poll_fn(|context| {
                let stream = &mut self.connection.borrow_mut().stream;
                Pin::new(stream).poll_read(context, &mut buffer)
            })
            .await?;
            match buffer.filled().len() {
                0 => break,
                count => sum += count,
            }
        }
        Ok(())
    }
}

/// The error where a client needs more memory than it may use.
fn no_memory() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

impl AsyncRead for MonitoredIo {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut connection = self.connection.borrow_mut();
        if !connection.unread.is_empty() {
            let length = connection.unread.len().min(buffer.remaining());
            buffer.put_slice(&connection.unread[..length]);
            connection.unread.advance(length);
            return Poll::Ready(Ok(()));
        }
        if connection.read >= MAX_READ {
            // Frames without a request are cheap to send and may never end: other connections go first.
            connection.is_over = true;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        // `take` leaves the buffer uninitialized; a smaller buffer would be zeroed for each read.
        let mut part = (&mut connection.stream).take(MAX_READ as u64);
        let read = Pin::new(&mut part).poll_read(context, buffer);
        connection.is_awaited = read.is_pending();
        ready!(read)?;
        let new = buffer.filled().get(before..).unwrap_or_default();
        connection.read += new.len();
        if new.is_empty() && buffer.remaining() > 0 && self.activity.close_read() {
            // The end is read again once the request is answered.
            return Poll::Pending;
        }
        let fits = new.is_empty() || self.activity.read(new);
        Poll::Ready(if fits { Ok(()) } else { Err(no_memory()) })
    }
}

impl AsyncWrite for MonitoredIo {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let mut connection = self.connection.borrow_mut();
        if connection.writes >= MAX_WRITES {
            connection.is_over = true;
            return Poll::Pending;
        }
        connection.writes += 1;
        let stream = &mut connection.stream;
        let written = Pin::new(stream).poll_write(context, bytes);
        let sent = match &written {
            Poll::Ready(Ok(sent)) => *sent,
            Poll::Ready(Err(_)) | Poll::Pending => 0,
        };
        if self.activity.wrote(written.is_pending(), bytes.len() - sent) {
            written
        } else {
            Poll::Ready(Err(no_memory()))
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection.borrow_mut().stream).poll_flush(context);
        if flushed.is_pending() {
            self.activity.block_flush();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.borrow_mut().stream).poll_shutdown(context)
    }
}
