//! The body of a request, whose bytes are reserved as they come.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::held::{Held, HeldBack};

/// A body up to this length needs no reservation: what a connection is charged for covers it.
const FREE: usize = 4 * 1024;

/// The body of a request. What came of it counts as held by its connection until this is dropped:
/// whoever keeps the bytes keeps this.
#[derive(Debug)]
pub(crate) struct RequestBody {
    incoming: Incoming,
    held: Held,
    received: usize,
    /// Whether what comes is dropped at once.
    discards: bool,
    /// The bytes of the head of its request.
    head: usize,
}

/// Why a body cannot be read to its end.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client sent something else, or nothing more.
    Cut(Option<hyper::Error>),
    /// The server holds as much for its clients as it may.
    NoMemory,
}

impl RequestBody {
    pub(super) const fn new(incoming: Incoming, held: Held, head: usize) -> Self {
        Self { incoming, held, received: 0, discards: false, head }
    }

    /// The bytes of the head of the request: names, values, path and query.
    pub(crate) const fn head_size(&self) -> usize {
        self.head
    }

    /// What is still to come is read to be dropped.
    pub(crate) fn discard(&mut self) {
        self.discards = true;
        let _fewer = self.held.resize(0);
    }

    /// Nothing yet, to be held for the reply to the request.
    pub(crate) fn hold_nothing(&self) -> Held {
        self.held.hold_nothing()
    }

    /// Says that the answer to the request is held back, until this is dropped. `None`: the client has
    /// ended its side of the connection, and whether it still waits cannot be known.
    pub(crate) fn hold_back(&self) -> Option<HeldBack> {
        self.held.hold_back()
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
            // Whatever came before the client ended its side is there already.
            Poll::Pending if this.held.is_read_closed() => {
                return Poll::Ready(Some(Err(BodyError::Cut(None))));
            }
            Poll::Pending => return Poll::Pending,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Some(Err(BodyError::Cut(Some(error)))));
            }
            Poll::Ready(Some(Ok(frame))) => frame,
        };
        if !this.discards {
            this.received += frame.data_ref().map_or(0, Bytes::len);
            if this.received > FREE && !this.held.resize(this.received) {
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

impl fmt::Display for BodyError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut(Some(error)) => error.fmt(formatter),
            Self::Cut(None) => formatter.write_str("the client closed before its end"),
            Self::NoMemory => formatter.write_str("the memory for request bodies is used up"),
        }
    }
}

impl std::error::Error for BodyError {}
