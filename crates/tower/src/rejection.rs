//! Responses to rejected requests.

use std::fmt;

use http::{
    HeaderMap, HeaderName, HeaderValue, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE},
};
use sluicegate_core::{Answer, Retry, Source};
use sluicegate_headers::{ProblemDocument, ProblemType, problem};

use crate::{Head, NamedPolicy};

/// Makes the response to a rejected request: [`ProblemJson`], [`Grpc`], or a function. The layer adds
/// `Retry-After` and the rate limit headers.
pub trait RejectionHandler<B> {
    /// The response to a rejected request.
    fn respond(&self, rejection: &Rejection<'_>) -> Response<B>;
}

impl<B, F: Fn(&Rejection<'_>) -> Response<B>> RejectionHandler<B> for F {
    fn respond(&self, rejection: &Rejection<'_>) -> Response<B> {
        self(rejection)
    }
}

/// A rejected request and the reason.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Rejection<'a> {
    /// The request.
    pub head: Head<'a>,
    /// The policy of the request.
    pub policy: &'a NamedPolicy,
    /// The denial, which also names its source; `None` after an error of the store.
    pub denied: Option<&'a Answer>,
    /// Whether the request is at fault: its key is empty or too long for the store.
    pub is_invalid: bool,
}

impl<'a> Rejection<'a> {
    /// The denial by a limit; `None` if the store is unavailable, also if [`OnError`](sluicegate_core::OnError) denies.
    pub(crate) const fn denied_by_limit(&self) -> Option<&'a Answer> {
        match self.denied {
            Some(Answer { source: Source::Fallback, .. }) => None,
            denied => denied,
        }
    }

    /// 429, 400 if the request is at fault, or 503 while the store is unavailable.
    #[must_use]
    pub const fn status(&self) -> StatusCode {
        match self.denied_by_limit() {
            Some(_) => StatusCode::TOO_MANY_REQUESTS,
            None if self.is_invalid => StatusCode::BAD_REQUEST,
            None => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The problem document (RFC 9457) as JSON.
    #[must_use]
    pub fn problem(&self) -> String {
        match self.denied_by_limit() {
            Some(denied) => problem(&self.policy.inner().fields, denied),
            None if self.is_invalid => {
                let detail = format_args!("the request has no key, or one that is too long");
                let status = self.status().as_u16();
                ProblemDocument::new("about:blank", BAD_REQUEST, status)
                    .with_detail(detail)
                    .to_string()
            }
            None => ProblemType::ReducedCapacity.json(),
        }
    }
}

/// The title of a problem of the request.
const BAD_REQUEST: &str = "Bad request";

/// A problem document (RFC 9457) with 429, 400 or 503; for a gRPC call, the response of [`Grpc`].
#[derive(Clone, Copy, Debug, Default)]
pub struct ProblemJson;

impl<B: From<String>> RejectionHandler<B> for ProblemJson {
    fn respond(&self, rejection: &Rejection<'_>) -> Response<B> {
        if rejection.head.is_grpc() {
            return grpc(rejection, B::from(String::new()));
        }
        let mut response = Response::new(B::from(rejection.problem()));
        *response.status_mut() = rejection.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(ProblemType::MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

/// The gRPC status `RESOURCE_EXHAUSTED`, `INVALID_ARGUMENT` if the request is at fault, or `UNAVAILABLE` while the store is unavailable. The header
/// `grpc-retry-pushback-ms` has the time after which clients may retry, or -1 if a retry cannot succeed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Grpc;

impl<B: Default> RejectionHandler<B> for Grpc {
    fn respond(&self, rejection: &Rejection<'_>) -> Response<B> {
        grpc(rejection, B::default())
    }
}

const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_RETRY: HeaderName = HeaderName::from_static("grpc-retry-pushback-ms");
const INVALID_ARGUMENT: u16 = 3;
const RESOURCE_EXHAUSTED: u16 = 8;
const UNAVAILABLE: u16 = 14;

/// Trailers alone, which come as headers.
fn grpc<B>(rejection: &Rejection<'_>, empty: B) -> Response<B> {
    let mut response = Response::new(empty);
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    let (status, message) = match rejection.denied_by_limit() {
        None if rejection.is_invalid => (INVALID_ARGUMENT, BAD_REQUEST),
        None => (UNAVAILABLE, ProblemType::ReducedCapacity.title()),
        Some(_) => (RESOURCE_EXHAUSTED, ProblemType::QuotaExceeded.title()),
    };
    headers.insert(GRPC_STATUS, status.into());
    headers.insert(GRPC_MESSAGE, HeaderValue::from_static(message));
    match rejection.denied.and_then(|denied| denied.retry()) {
        Some(Retry::After(wait)) => {
            let millis = wait.as_micros().div_ceil(1000);
            headers.insert(GRPC_RETRY, u64::try_from(millis).unwrap_or(u64::MAX).into());
        }
        Some(Retry::Never) => {
            headers.insert(GRPC_RETRY, HeaderValue::from_static("-1"));
        }
        None => {}
    }
    response
}

/// A decision, for metrics and logs.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The name of the policy.
    pub policy: &'a str,
    /// The decision and its [source](Answer::source), or the error of the store.
    pub result: Result<&'a Answer, &'a dyn std::error::Error>,
    /// Whether the decision has no effect, because of [`shadow`](crate::RateLimitLayer::shadow).
    pub shadow: bool,
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shadow = if self.shadow { " (shadow)" } else { "" };
        match self.result {
            Ok(answer) if answer.allowed() => write!(formatter, "{}: allowed", self.policy)?,
            Ok(_) => write!(formatter, "{}: denied", self.policy)?,
            Err(error) => write!(formatter, "{}: {error}", self.policy)?,
        }
        formatter.write_str(shadow)
    }
}
