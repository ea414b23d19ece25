//! Responses: their types and constructors.

use std::{convert::Infallible, pin::Pin};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{
    Response, StatusCode,
    body::Frame,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue},
};

/// A response with a complete body.
pub(crate) type Reply = Response<Full<Bytes>>;

/// The body of a response, complete or streamed.
pub(crate) type ReplyBody = Either<Full<Bytes>, StreamBody<BodyStream>>;

/// The parts of a streamed body.
pub(crate) type BodyStream =
    Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>>;

/// The type of problems.
pub(super) const PROBLEM_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
pub(super) const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");

/// A response that is not to be stored.
pub(super) fn uncached(kind: HeaderValue, body: impl Into<Full<Bytes>>) -> Reply {
    let mut reply = Response::new(body.into());
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    reply
}

/// A JSON document in one line. The line is ended for terminals, whose prompt would otherwise follow the answer.
pub(super) fn json(kind: HeaderValue, document: impl Into<Vec<u8>>) -> Reply {
    let mut line = document.into();
    line.push(b'\n');
    uncached(kind, line)
}

/// A response with a problem as its body.
pub(super) fn problem(status: StatusCode, document: impl Into<Vec<u8>>) -> Reply {
    let mut reply = json(PROBLEM_TYPE, document);
    *reply.status_mut() = status;
    reply
}
