//! The body of a request, whose bytes are reserved as they arrive, and replies on their way to the client.
//!
//! A reply is sent in chunks. Its request is in flight, and its memory is reserved, until the
//! last chunk was taken: by the socket on HTTP/1.1, by the flow control of the client on
//! HTTP/2. There the client must read each chunk within the output timeout.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::{
    activity::{InFlightGuard, SentChunk},
    connection_bytes::ConnectionBytes,
};

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

// The body of a request, whose bytes are reserved as they arrive.

/// A body up to this length needs no reservation: the charge of its connection covers it.
const FREE: usize = 4 * 1024;

/// The body of a request. Its bytes count for the connection until this is dropped, so keep it
/// as long as them.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    /// Bytes that are counted for the body.
    pub(crate) bytes: ConnectionBytes,
    received: usize,
    /// Whether the rest is dropped as it arrives.
    discards: bool,
    /// Whether the bytes so far were processed, if it is a stream of messages.
    streamed: Option<StreamedBytes>,
    /// The bytes of the head of its request: names, values, path and query.
    pub(crate) head_size: usize,
}

/// Releases the bytes of a body that is a stream of messages, when a message was processed.
#[derive(Clone, Debug, Default)]
pub(crate) struct StreamedBytes(Arc<AtomicBool>);

impl StreamedBytes {
    /// The bytes so far were processed.
    pub(crate) fn release(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why a body cannot be read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    /// The client sent an invalid body, or ended it early.
    #[error("{0}")]
    Invalid(hyper::Error),
    #[error("the client closed before its end")]
    Closed,
    #[error("the memory for request bodies is used up")]
    NoMemory,
}

impl RequestBody {
    pub(super) const fn new(incoming: Incoming, bytes: ConnectionBytes, head_size: usize) -> Self {
        Self { incoming, bytes, received: 0, discards: false, streamed: None, head_size }
    }

    /// Makes it a stream of messages, whose bytes count only until they were processed.
    pub(crate) fn stream(&mut self) -> StreamedBytes {
        self.streamed.get_or_insert_default().clone()
    }

    /// Drops the rest as it arrives.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
        let _fewer = self.bytes.resize(0);
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        let frame = match Pin::new(&mut this.incoming).poll_frame(context) {
            // The client has closed its side: no more bytes will arrive.
            Poll::Pending if this.bytes.is_read_closed() => {
                return Poll::Ready(Some(Err(BodyError::Closed)));
            }
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(BodyError::Invalid(error))));
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        if this.streamed.as_ref().is_some_and(|it| it.0.swap(false, Ordering::Relaxed)) {
            this.received = 0;
        }
        if !this.discards {
            this.received += frame.data_ref().map_or(0, Bytes::len);
            if this.received > FREE && !this.bytes.resize(this.received) {
                return Poll::Ready(Some(Err(BodyError::NoMemory)));
            }
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
