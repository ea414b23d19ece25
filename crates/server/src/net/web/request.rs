//! The body of a request, whose bytes are reserved as they arrive.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::connection_bytes::ConnectionBytes;

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
