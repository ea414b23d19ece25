//! The body of a request: JSON, of a bounded length, within a bounded time.

use std::{future::poll_fn, pin::pin, task::Poll};

use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::{
    body::{Body as _, Incoming},
    header::CONTENT_TYPE,
    http::request::Parts,
};
use tokio::time::timeout;

use super::problem::Problem;
use crate::worker::Worker;

/// The longest body, in bytes.
const MAX_BODY: usize = 1024 * 1024;

/// All of a body that says that it is JSON.
pub(super) async fn json(worker: &Worker, head: &Parts, body: Incoming) -> Result<Bytes, Problem> {
    if let Some(kind) = head.headers.get(CONTENT_TYPE)
        && !is_json(kind.as_bytes())
    {
        return Err(Problem::no_json(kind.as_bytes()));
    }
    if body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Problem::too_large(MAX_BODY));
    }
    let mut collecting = pin!(collect(body));
    // Most bodies came together with their head: only what did not needs a timer.
    match poll_fn(|context| Poll::Ready(collecting.as_mut().poll(context))).await {
        Poll::Ready(body) => body,
        Poll::Pending => match worker.shared.config.input_timeout {
            most if most.is_zero() => collecting.await,
            most => timeout(most, collecting).await.unwrap_or_else(|_| Err(Problem::late(most))),
        },
    }
}

/// `application/json`, or a type that is built on it; parameters say nothing.
fn is_json(kind: &[u8]) -> bool {
    let kind = kind.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let json = b"+json";
    kind.eq_ignore_ascii_case(b"application/json")
        || kind.len() > json.len() && kind[kind.len() - json.len()..].eq_ignore_ascii_case(json)
}

async fn collect(mut body: Incoming) -> Result<Bytes, Problem> {
    let Some(first) = data(&mut body).await? else { return Ok(Bytes::new()) };
    if body.is_end_stream() {
        return check(first);
    }
    let Some(second) = data(&mut body).await? else { return check(first) };
    let mut whole = Vec::with_capacity(first.len() + second.len());
    whole.extend_from_slice(&first);
    whole.extend_from_slice(&second);
    while let Some(more) = data(&mut body).await? {
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

/// The next piece of data.
async fn data(body: &mut Incoming) -> Result<Option<Bytes>, Problem> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(|error| Problem::cut(&error))?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_that_it_is_json() {
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
