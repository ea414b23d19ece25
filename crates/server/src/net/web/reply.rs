//! Replies on their way to the client.
//!
//! A reply is sent in chunks. Its request is in flight, and its memory is reserved, until the
//! last chunk was taken: by the socket on HTTP/1.1, by the flow control of the client on
//! HTTP/2. There the client must read each chunk within the output timeout.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use super::activity::{InFlightGuard, SentChunk};

/// Longest chunk, in bytes.
pub(super) const MAX_CHUNK: usize = 8 * 1024;

/// The body of a reply.
#[derive(Debug)]
pub(super) struct ChunkedBody<B> {
    inner: B,
    /// The rest of the last piece of data.
    rest: Bytes,
    /// Keeps the request in flight until its last chunk is sent.
    guard: Option<InFlightGuard>,
    is_http2: bool,
    /// On HTTP/1.1: whether the previous chunk must be written first.
    pauses: bool,
}

/// A chunk of a reply, until the client has read it.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Bytes,
    _sent: Option<SentChunk>,
    _guard: Option<InFlightGuard>,
}

impl<B> ChunkedBody<B> {
    pub(super) const fn new(inner: B, guard: InFlightGuard, is_http2: bool) -> Self {
        Self { inner, rest: Bytes::new(), guard: Some(guard), is_http2, pauses: false }
    }
}

impl<B: Body<Data = Bytes> + Unpin> ChunkedBody<B> {
    /// The next chunk of the rest.
    fn chunk(&mut self) -> Chunk {
        let bytes = self.rest.split_to(self.rest.len().min(MAX_CHUNK));
        let is_last = self.rest.is_empty() && self.inner.is_end_stream();
        let sent = self.guard.as_ref().filter(|_| self.is_http2).map(InFlightGuard::send_chunk);
        self.pauses = !self.is_http2 && !is_last;
        let guard = if is_last { self.guard.take() } else { None };
        Chunk { bytes, _sent: sent, _guard: guard }
    }

    /// Whether the previous chunk must be written first, which keeps the buffer of the connection small.
    fn is_paused(&mut self, context: &Context<'_>) -> bool {
        if !self.pauses {
            return false;
        }
        if self.guard.as_ref().is_some_and(InFlightGuard::is_write_blocked) {
            // When the client reads, the connection is polled, and this body with it.
            return true;
        }
        self.pauses = false;
        context.waker().wake_by_ref();
        true
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ChunkedBody<B> {
    type Data = Chunk;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Chunk>, B::Error>>> {
        let this = self.get_mut();
        if this.is_paused(context) {
            return Poll::Pending;
        }
        if !this.rest.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(this.chunk()))));
        }
        let frame = match Pin::new(&mut this.inner).poll_frame(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(frame) => frame,
        };
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(match frame.into_data() {
                Ok(data) => {
                    this.rest = data;
                    Frame::data(this.chunk())
                }
                // Trailers end a reply.
                Err(frame) => frame.map_data(|bytes| Chunk { bytes, _sent: None, _guard: None }),
            })),
            Some(Err(error)) => Some(Err(error)),
            // What was handed over before may wait to be sent: the request is in flight until it is.
            None if this.is_http2 => this.guard.take().map(|guard| {
                let sent = Some(guard.send_chunk());
                let last = Chunk { bytes: Bytes::new(), _sent: sent, _guard: Some(guard) };
                Ok(Frame::data(last))
            }),
            None => {
                this.guard = None;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        let is_last_sent = self.is_http2 && self.guard.is_none();
        self.rest.is_empty() && (is_last_sent || self.inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }
}
