//! What responses consist of.

use std::{convert::Infallible, pin::Pin};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{Response, body::Frame, header::HeaderValue};

/// A response, all of which is there.
pub(crate) type Reply = Response<Full<Bytes>>;

/// The body of a response, whether all of it is there or it goes on.
pub(crate) type ReplyBody = Either<Full<Bytes>, StreamBody<Stream>>;

/// The parts of a body that goes on.
pub(crate) type Stream =
    Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>>;

pub(super) const PROBLEM_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
