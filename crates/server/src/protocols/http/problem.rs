//! Errors of requests, as problems (RFC 9457) that name the invalid value and what is expected; the types of responses.

use std::{convert::Infallible, fmt, pin::Pin, time::Duration};

use bytes::Bytes;
use http_body_util::{Either, Full, StreamBody};
use hyper::{
    Method, Response, StatusCode,
    body::Frame,
    header::{
        ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
    },
};
use sluicegate_commands::{CommandError, quote};
use sluicegate_core::{HoldError, StoreError};
use sluicegate_headers as headers;

use crate::{net::web::BodyError, store::error_reply, wait::Failure};

/// An error of a request.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(super) status: StatusCode,
    /// The URI of its type, or `about:blank`.
    kind: &'static str,
    detail: String,
    /// A header of the response.
    field: Option<(HeaderName, HeaderValue)>,
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        Self { status, kind: "about:blank", detail: detail.into(), field: None }
    }

    fn with(self, name: HeaderName, value: &'static str) -> Self {
        Self { field: Some((name, HeaderValue::from_static(value))), ..self }
    }

    /// The request is malformed, or contradicts itself.
    pub(crate) fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    /// The request is invalid, whatever the state of keys.
    pub(crate) fn unprocessable(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    pub(super) fn unauthorized(detail: &'static str) -> Self {
        let detail = format!("{detail}: expected `Authorization: Bearer TOKEN`");
        Self::new(StatusCode::UNAUTHORIZED, detail).with(WWW_AUTHENTICATE, "Bearer")
    }

    /// Without a token anyone who reaches the port could do it.
    pub(super) fn needs_token() -> Self {
        let detail = "actions on keys are disabled: start the server with --http-token";
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    pub(super) fn no_path(path: &str, near: Option<&str>) -> Self {
        let path = quote(path.as_bytes());
        let detail = match near {
            Some(near) => format!("unknown path `{path}`: did you mean `{near}`?"),
            None => format!("unknown path `{path}`: see /openapi.json for all paths"),
        };
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(crate) fn no_method(method: &Method, takes: &Method) -> Self {
        let method = quote(method.as_str().as_bytes());
        let detail = format!("invalid method `{method}`: expected {takes}");
        let allow = if takes == Method::GET { "GET, HEAD" } else { "POST" };
        Self::new(StatusCode::METHOD_NOT_ALLOWED, detail).with(ALLOW, allow)
    }

    pub(super) fn late(most: Duration) -> Self {
        let detail = format!("the body is incomplete after {} s", most.as_secs_f32());
        Self::new(StatusCode::REQUEST_TIMEOUT, detail)
    }

    pub(super) fn too_large(most: usize) -> Self {
        let detail = format!("the body is too long: expected up to {most} bytes");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, detail)
    }

    pub(super) fn cut(error: &BodyError) -> Self {
        Self::malformed(format!("the body cannot be read: {error}"))
    }

    pub(super) fn no_json(media_type: Option<&HeaderValue>) -> Self {
        let found = media_type.map(|it| quote(it.as_bytes()));
        let detail = match found {
            Some(found) => format!("invalid Content-Type `{found}`: expected `application/json`"),
            None => "missing Content-Type: expected `application/json`".to_owned(),
        };
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail)
    }

    pub(super) fn head_too_large(size: usize, most: usize) -> Self {
        let detail =
            format!("the headers are too long ({size} bytes): expected up to {most} bytes");
        Self::new(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, detail)
    }

    /// A client that closes its side of the connection cannot wait, because that looks like leaving.
    pub(super) fn half_closed() -> Self {
        let detail = "the client has closed its side of the connection: expected it open until the response, \
                      because of `wait_us`";
        Self::malformed(detail)
    }

    /// A page of another site has made a browser send the request.
    pub(super) fn cross_site() -> Self {
        let detail = "the request comes from a web page of another origin (`Sec-Fetch-Site`, `Origin`): \
                      expected a page of this server, or a client that is not a browser";
        Self::new(StatusCode::FORBIDDEN, detail)
    }

    /// The server does not have this name.
    pub(super) fn no_host(host: &[u8]) -> Self {
        let detail = format!(
            "invalid host `{}`: expected `localhost`, a loopback address, or a name in \
             --http-allowed-hosts",
            quote(host)
        );
        Self::new(StatusCode::MISDIRECTED_REQUEST, detail)
    }

    /// HTTP/1.1 requires exactly one `Host`.
    pub(super) fn host_count() -> Self {
        Self::malformed("`Host` is missing or repeated: expected it once")
    }

    /// The memory budget is used up.
    pub(crate) fn no_memory() -> Self {
        Self::unavailable("the memory for requests and replies is used up: retry later")
    }

    /// No answer is possible now.
    pub(crate) fn unavailable(detail: impl Into<String>) -> Self {
        let kind = headers::ProblemType::ReducedCapacity.kind();
        let problem = Self::new(StatusCode::SERVICE_UNAVAILABLE, detail);
        Self { kind, ..problem }.with(RETRY_AFTER, "1")
    }

    /// All connections are taken.
    pub(super) fn too_many_clients() -> Self {
        Self::unavailable(
            "max number of clients reached: expected fewer connections, or a larger --max-clients",
        )
    }

    /// The same, of the item at `index` of the array `list`.
    pub(super) fn in_item(self, list: &str, index: usize) -> Self {
        Self { detail: format!("{list}[{index}]: {}", self.detail), ..self }
    }

    pub(super) fn reply(self) -> Reply {
        let title = self.status.canonical_reason().unwrap_or_default();
        let document = headers::ProblemDocument::new(self.kind, title, self.status.as_u16());
        let body = document.with_detail(format_args!("{}", self.detail)).to_string();
        let mut reply = problem(self.status, body);
        reply.headers_mut().extend(self.field);
        reply
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.detail)
    }
}

/// An error text without the class word of RESP.
pub(crate) fn without_class(text: &str) -> &str {
    text.split_once(' ').map_or(text, |(_, text)| text)
}

impl From<CommandError> for Problem {
    fn from(error: CommandError) -> Self {
        Self::unprocessable(without_class(&error.to_string()))
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        let text = error_reply(&error);
        match error {
            // Its member has another name than the option of a command.
            StoreError::Hold(HoldError::MissingTtl) => Self::unprocessable(
                "missing `ttl_us`: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` \
                 has a default",
            ),
            StoreError::Hold(HoldError::Ttl { .. }) => Self::unprocessable(
                without_class(&text).replacen("invalid ttl ", "invalid `ttl_us` ", 1),
            ),
            StoreError::Operation(_)
            | StoreError::Hold(_)
            | StoreError::Corrupt(..)
            | StoreError::Key(_)
            | StoreError::Arguments(_) => Self::unprocessable(without_class(&text)),
            _ => Self::unavailable(without_class(&text)),
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::QueueFull(error) => Self::unavailable(error.to_string()),
            Failure::Store(error) => error.into(),
        }
    }
}

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
