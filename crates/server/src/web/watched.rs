//! A connection whose bytes are noted as they pass.

use std::{
    cell::RefCell,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

use super::progress::Progress;
use crate::stream::Stream;

/// A connection whose bytes are noted as they pass. Copies of it are the same connection.
#[derive(Clone)]
pub(super) struct Watched {
    stream: Rc<RefCell<Stream>>,
    progress: Rc<Progress>,
}

impl Watched {
    pub(super) fn new(stream: Stream, progress: Rc<Progress>) -> Self {
        Self { stream: Rc::new(RefCell::new(stream)), progress }
    }

    /// Reads and drops what the client still sends, `most` bytes of it. To close on it would make its
    /// system drop our last words unread.
    pub(super) async fn drain(&mut self, most: usize) -> io::Result<()> {
        let (mut dropped, mut sum) = ([0; 4096], 0);
        while sum < most {
            match self.read(&mut dropped).await? {
                0 => break,
                count => sum += count,
            }
        }
        Ok(())
    }
}

impl AsyncRead for Watched {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut *self.stream.borrow_mut()).poll_read(context, buffer);
        let new = buffer.filled().get(before..).unwrap_or_default();
        if !new.is_empty() {
            self.progress.read(new);
        }
        read
    }
}

impl AsyncWrite for Watched {
    #[inline]
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut *self.stream.borrow_mut()).poll_write(context, bytes);
        self.progress.wrote(written.is_pending());
        written
    }

    #[inline]
    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut *self.stream.borrow_mut()).poll_flush(context);
        if flushed.is_pending() {
            self.progress.wrote(true);
        }
        flushed
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.stream.borrow_mut()).poll_shutdown(context)
    }
}
