//! The types of responses.

use std::{convert::Infallible, pin::Pin};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{Response, body::Frame, header::HeaderValue};

/// A response with a complete body.
pub(crate) type Reply = Response<Full<Bytes>>;

/// The body of a response, complete or streamed.
pub(crate) type ReplyBody = Either<Full<Bytes>, StreamBody<Stream>>;

/// The parts of a streamed body.
pub(crate) type Stream =
    Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>>;

pub(super) const PROBLEM_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
