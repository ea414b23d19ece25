//! Replies on their way to the client.
//!
//! A reply goes out in chunks. Its request is in flight, and what it holds is reserved, until the
//! last chunk has been taken: by the socket on HTTP/1.1, by the flow control of the client on
//! HTTP/2. There the client must take one chunk after the other, each within the output timeout.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes};
use hyper::body::{Body, Frame, SizeHint};

use super::progress::{Flight, SentChunk};

/// The most bytes of a reply that are handed to the connection at a time.
pub(super) const CHUNK: usize = 8 * 1024;

/// The body of a reply.
#[derive(Debug)]
pub(super) struct ReplyBody<B> {
    inner: B,
    /// What is left of the last piece of data.
    rest: Bytes,
    /// The request that is answered, until its last chunk is on its way.
    flight: Option<Flight>,
    is_http2: bool,
    /// On HTTP/1.1: whether the chunk before is to be written first.
    pauses: bool,
}

/// A part of a reply, until it is taken.
#[derive(Debug)]
pub(super) struct Chunk {
    bytes: Bytes,
    _sent: Option<SentChunk>,
    _flight: Option<Flight>,
}

impl<B> ReplyBody<B> {
    pub(super) const fn new(inner: B, flight: Flight, is_http2: bool) -> Self {
        Self { inner, rest: Bytes::new(), flight: Some(flight), is_http2, pauses: false }
    }
}

impl<B: Body<Data = Bytes> + Unpin> ReplyBody<B> {
    /// The next chunk of what is left.
    fn chunk(&mut self) -> Chunk {
        let bytes = self.rest.split_to(self.rest.len().min(CHUNK));
        let is_last = self.rest.is_empty() && self.inner.is_end_stream();
        let sent = self.flight.as_ref().filter(|_| self.is_http2).map(Flight::send_chunk);
        self.pauses = !self.is_http2 && !is_last;
        let flight = if is_last { self.flight.take() } else { None };
        Chunk { bytes, _sent: sent, _flight: flight }
    }

    /// Whether the chunk before is to be written first: the buffer of a connection stays small so.
    fn is_paused(&mut self, context: &Context<'_>) -> bool {
        if !self.pauses {
            return false;
        }
        if self.flight.as_ref().is_some_and(Flight::is_stuck) {
            // The connection is polled, and this with it, when the client takes something.
            return true;
        }
        self.pauses = false;
        context.waker().wake_by_ref();
        true
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for ReplyBody<B> {
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
                Err(frame) => frame.map_data(|bytes| Chunk { bytes, _sent: None, _flight: None }),
            })),
            Some(Err(error)) => Some(Err(error)),
            // What was handed over before may wait to be sent: the request is in flight until it is.
            None if this.is_http2 => this.flight.take().map(|flight| {
                let sent = Some(flight.send_chunk());
                let last = Chunk { bytes: Bytes::new(), _sent: sent, _flight: Some(flight) };
                Ok(Frame::data(last))
            }),
            None => {
                this.flight = None;
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        let is_last_sent = self.is_http2 && self.flight.is_none();
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
