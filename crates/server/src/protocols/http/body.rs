//! The body of a request: JSON, of a bounded length, within a bounded time.

use std::{future::poll_fn, pin::pin, task::Poll, time::Duration};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    Version,
    body::Body as _,
    header::{CONTENT_TYPE, EXPECT},
    http::request::Parts,
};
use sluicegate_core::{Clock as _, Timestamp};
use tokio::{task::spawn_local, time::timeout};

use super::problem::Problem;
use crate::{
    clock::ServerClock,
    net::web::{BodyError, DRAIN, RequestBody},
};

/// Longest body, in bytes.
const MAX_BODY: usize = 1024 * 1024;
/// Maximum number of bytes of a body that are drained on HTTP/1.1 after the decision.
const MAX_REST: usize = 64 * 1024;
/// Longest time for that, since the request arrived.
const REST_TIME: Duration = Duration::from_secs(5);

/// How long the body of a request may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct BodyLimits {
    /// Zero: any time.
    pub(super) time: Duration,
    pub(super) clock: ServerClock,
}

/// A complete JSON body, and the time at which it was complete. Its request arrived at `now`.
pub(super) async fn json(
    limits: BodyLimits,
    head: &Parts,
    body: &mut RequestBody,
    now: Timestamp,
) -> Result<(Bytes, Timestamp), Problem> {
    check_json_type(head)?;
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Problem::too_large(MAX_BODY));
    }
    let mut collecting = pin!(collect(body));
    // Most bodies arrive together with their head and need no timer.
    match poll_fn(|context| Poll::Ready(collecting.as_mut().poll(context))).await {
        Poll::Ready(body) => Ok((body?, now)),
        Poll::Pending => {
            let body = match limits.time {
                most if most.is_zero() => collecting.await,
                most => {
                    timeout(most, collecting).await.unwrap_or_else(|_| Err(Problem::late(most)))
                }
            };
            Ok((body?, limits.clock.now()))
        }
    }
}

/// Rejects a request whose body is not JSON. A missing type is not enough: browsers let any page
/// send requests without one, and with the types of forms, to any server.
pub(super) fn check_json_type(head: &Parts) -> Result<(), Problem> {
    match head.headers.get(CONTENT_TYPE) {
        Some(kind) if is_json(kind.as_bytes()) => Ok(()),
        kind => Err(Problem::no_json(kind)),
    }
}

/// `application/json`, or a type that ends in `+json`; parameters are ignored.
fn is_json(kind: &[u8]) -> bool {
    if kind == b"application/json" {
        return true;
    }
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let json = b"+json";
    kind.eq_ignore_ascii_case(b"application/json")
        || kind.len() > json.len() && kind[kind.len() - json.len()..].eq_ignore_ascii_case(json)
}

/// Drains the rest of the body of a decided request, which arrived at `start`. Whether the connection may be used again.
///
/// A rejected client of HTTP/1.1 keeps its connection, and its next request, if only a few bytes of the body are on their
/// way. A client of HTTP/2 may send all of it, because many treat an early end as an error and never read the response,
/// which is sent at the same time.
pub(super) async fn drain_rest(
    limits: BodyLimits,
    head: &Parts,
    mut body: RequestBody,
    (start, rejected): (Timestamp, bool),
) -> bool {
    body.discard();
    let most = match limits.time {
        most if most.is_zero() => Duration::MAX,
        most => most,
    };
    if head.version == Version::HTTP_2 {
        // The result does not matter, because the stream ends anyway.
        drop(spawn_local(async move { timeout(most, drain(&mut body, DRAIN)).await }));
        return true;
    }
    // Proxies pass the length of the original request to the gate, without its body.
    if !rejected {
        return true;
    }
    let most = match body.size_hint().exact() {
        // With `Expect`, the client has not sent the body yet, and the response tells it not to.
        Some(_) if head.headers.contains_key(EXPECT) => return false,
        Some(length) if length > MAX_REST as u64 => return false,
        Some(_) => most.min(REST_TIME).saturating_sub(limits.clock.now().since(start)),
        // A body of unknown length may have arrived completely.
        None => Duration::ZERO,
    };
    timeout(most, drain(&mut body, MAX_REST)).await.unwrap_or(false)
}

/// Whether the body was drained to its end.
async fn drain(body: &mut RequestBody, most: usize) -> bool {
    let mut dropped = 0;
    while dropped <= most {
        match data(body).await {
            Ok(Some(rest)) => dropped += rest.len(),
            Ok(None) => return true,
            Err(_) => break,
        }
    }
    false
}

async fn collect(body: &mut RequestBody) -> Result<Bytes, Problem> {
    let Some(first) = data(body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() {
        return check(first);
    }
    let Some(second) = data(body).await? else { return check(first) };
    let mut whole = Vec::with_capacity(first.len() + second.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&second);
    while let Some(more) = data(body).await? {
        if whole.len() + more.len() > MAX_BODY {
            return Err(Problem::too_large(MAX_BODY));
        }
        whole.extend_from_slice(&more);
    }
    check(whole.into())
}

fn check(body: Bytes) -> Result<Bytes, Problem> {
    if body.len() > MAX_BODY { Err(Problem::too_large(MAX_BODY)) } else { Ok(body) }
}

fn unreadable(error: &BodyError) -> Problem {
    match error {
        BodyError::Invalid(_) | BodyError::Closed => Problem::cut(error),
        BodyError::NoMemory => Problem::no_memory(),
    }
}

/// The next piece of data.
async fn data(body: &mut RequestBody) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| unreadable(&error))?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_accepts_json_types_only() {
        for (kind, expected) in [
            ("application/json", true),
            ("Application/JSON; charset=utf-8", true),
            ("application/vnd.limits+json", true),
            ("+json", false),
            ("text/plain", false),
            ("application/x-www-form-urlencoded", false),
            ("", false),
        ] {
            assert_eq!(is_json(kind.as_bytes()), expected, "{kind}");
        }
    }
}
