//! A connection whose bytes are noted as they pass.

use std::{
    cell::RefCell,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::progress::Progress;
use crate::net::stream::Stream;

/// The most bytes that are read at a time: what a client sends ahead of its turn stays small.
const MAX_READ: usize = 8 * 1024;
/// The most writes before others of the worker go first: a few bytes may ask for an answer of their own.
const MAX_WRITES: usize = 32;
/// The first bytes, which tell what is spoken.
const FIRST: usize = 24;

/// A connection whose bytes are noted as they pass. Copies of it are the same connection.
#[derive(Clone)]
pub(super) struct Watched {
    connection: Rc<RefCell<Connection>>,
    progress: Rc<Progress>,
}

struct Connection {
    stream: Stream,
    /// What was read and is to be read again.
    unread: Bytes,
    /// Bytes that were read, and writes, since the worker turned to this connection.
    read: usize,
    writes: usize,
    /// Whether it was to read or write more than one turn may.
    is_over: bool,
}

impl Watched {
    pub(super) fn new(stream: Stream, progress: Rc<Progress>) -> Self {
        let connection =
            Connection { stream, unread: Bytes::new(), read: 0, writes: 0, is_over: false };
        Self { connection: Rc::new(RefCell::new(connection)), progress }
    }

    /// Waits until the first bytes tell whether HTTP/2 is spoken. `None`: the client has left.
    pub(super) fn poll_version(&self, context: &mut Context<'_>) -> Poll<Option<bool>> {
        let mut connection = self.connection.borrow_mut();
        loop {
            if !connection.unread.is_empty()
                && let Some(is_http2) = self.progress.is_http2()
            {
                return Poll::Ready(Some(is_http2));
            }
            let mut first = [0; FIRST];
            let length = FIRST - connection.unread.len();
            let mut buffer = ReadBuf::new(&mut first[..length]);
            let read = ready!(Pin::new(&mut connection.stream).poll_read(context, &mut buffer));
            let new = buffer.filled();
            if read.is_err() || new.is_empty() || !self.progress.read(new) {
                return Poll::Ready(None);
            }
            connection.unread = [&connection.unread, new].concat().into();
        }
    }

    /// The worker turns to this connection: it may read and write again.
    #[inline]
    pub(super) fn begin_turn(&self) {
        let mut connection = self.connection.borrow_mut();
        (connection.read, connection.writes, connection.is_over) = (0, 0, false);
    }

    /// Whether the connection waits for its next turn, and for nothing else that would wake it.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        self.connection.borrow().is_over
    }

    /// Has these bytes of a request read again.
    pub(super) fn unread(&self, bytes: Bytes) {
        if bytes.is_empty() {
            // An empty part of a buffer would keep all of it.
            return;
        }
        self.progress.has_begun(bytes.len());
        self.connection.borrow_mut().unread = bytes;
    }

    /// Sends a few last bytes, if they can be sent at once.
    pub(super) fn write_and_close(&self, bytes: &[u8]) {
        // Whether the client hears that or not, it is closed.
        let _ = self.connection.borrow().stream.write_now(bytes);
    }

    /// Reads and drops what the client still sends, `most` bytes of it.
    pub(super) async fn drain(&self, most: usize) -> io::Result<()> {
        let (mut dropped, mut sum) = ([0; 4096], 0);
        while sum < most {
            let mut buffer = ReadBuf::new(&mut dropped);
            // What is dropped at once is not held.
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

/// More is held for the client than may be.
fn no_memory() -> io::Error {
    io::ErrorKind::OutOfMemory.into()
}

impl AsyncRead for Watched {
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
            // Frames without a request may come for ever, and cost little to send: others go first.
            connection.is_over = true;
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        // Leaves the buffer uninitialized, as a smaller one would be zeroed for each read.
        let mut part = (&mut connection.stream).take(MAX_READ as u64);
        ready!(Pin::new(&mut part).poll_read(context, buffer))?;
        let new = buffer.filled().get(before..).unwrap_or_default();
        connection.read += new.len();
        if new.is_empty() && buffer.remaining() > 0 && self.progress.close_read() {
            // It is seen again when the request is answered.
            return Poll::Pending;
        }
        let fits = new.is_empty() || self.progress.read(new);
        Poll::Ready(if fits { Ok(()) } else { Err(no_memory()) })
    }
}

impl AsyncWrite for Watched {
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
        if self.progress.wrote(written.is_pending(), bytes.len() - sent) {
            written
        } else {
            Poll::Ready(Err(no_memory()))
        }
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.connection.borrow_mut().stream).poll_flush(context);
        if flushed.is_pending() {
            self.progress.flush_waits();
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.connection.borrow_mut().stream).poll_shutdown(context)
    }
}
