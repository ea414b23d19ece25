//! Responses, written byte by byte.

use bytes::Bytes;
use http_body_util::Full;
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, RETRY_AFTER},
};
use serde::Serialize;
use sluicegate_commands::RepeatedKeys;
use sluicegate_core::{Answer, Decision, Retry, Source};
use sluicegate_headers::{
    HeaderStyle, ProblemType, RateLimitHeaders, integer, problem, retry_after,
};
use smallvec::SmallVec;

use super::{
    problem::{self, NO_STORE, PROBLEM_TYPE, Reply, json, uncached},
    worker::HttpWorker,
};
use crate::FallbackDenial;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const TEXT: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// A body in the making, on the stack up to a usual length.
type Text = SmallVec<[u8; 480]>;

/// A decision, and the form of its response.
pub(super) struct DecisionReply<'a> {
    pub(super) decision: &'a Decision,
    /// The decision that the headers describe: of several keys, that on the binding one.
    pub(super) bound: &'a Decision,
    /// The source, if the response names it.
    pub(super) source: Option<&'static str>,
    pub(super) fields: &'a RateLimitHeaders,
    pub(super) style: HeaderStyle,
    /// The status of a denial that was decided because the store is unavailable.
    pub(super) fallback: Option<FallbackDenial>,
    /// Whether nothing was taken: a denial is then status 200.
    pub(super) is_query: bool,
}

impl<'a> DecisionReply<'a> {
    /// The response to a take, by the settings of `worker`.
    #[inline]
    pub(super) fn new(
        worker: &HttpWorker,
        decision: &'a Decision,
        source: Source,
        fields: &'a RateLimitHeaders,
        style: HeaderStyle,
    ) -> Self {
        Self {
            decision,
            bound: decision,
            source: visible_source(worker, source),
            fields,
            style,
            fallback: (source == Source::Fallback).then_some(worker.context.fallback_denial),
            is_query: false,
        }
    }
}

/// The source, where there are several.
pub(super) fn visible_source(worker: &HttpWorker, source: Source) -> Option<&'static str> {
    (!worker.context.decider.is_local()).then(|| source.as_str())
}

/// One decision: 200, or 429 with a problem where something was to be taken. A denial because the store is unavailable is another problem.
#[inline]
pub(super) fn decision(data: &DecisionReply<'_>) -> Reply {
    with_members(data, |_| ())
}

/// The decision about several keys together, with that about each take as given.
pub(super) fn all(data: &DecisionReply<'_>, answer: &Answer, repeated: &RepeatedKeys) -> Reply {
    with_members(data, |body| {
        body.extend_from_slice(
            format!(",\"binding_key\":{}", repeated.binding_key(answer)).as_bytes(),
        );
        body.extend_from_slice(b",\"decisions\":[");
        for (index, decision) in repeated.decisions(answer).enumerate() {
            body.extend_from_slice(if index == 0 { b"{" } else { b",{" });
            members(decision, data.source, body);
            body.push(b'}');
        }
        body.push(b']');
    })
}

/// A decision, and the members that `more` adds.
#[inline]
fn with_members(data: &DecisionReply<'_>, more: impl FnOnce(&mut Text)) -> Reply {
    let decision = data.decision;
    let mut body = Text::new();
    let (status, kind) = if decision.allowed() || data.is_query && data.fallback.is_none() {
        body.push(b'{');
        (StatusCode::OK, JSON)
    } else if let Some(fallback) = data.fallback {
        return unavailable(data, fallback);
    } else {
        let problem = problem(data.fields, decision);
        begin_problem(&problem, &mut body);
        (StatusCode::TOO_MANY_REQUESTS, PROBLEM_TYPE)
    };
    members(decision, data.source, &mut body);
    more(&mut body);
    body.extend_from_slice(b"}\n");
    let mut reply = whole(&body);
    *reply.status_mut() = status;
    reply.headers_mut().insert(CONTENT_TYPE, kind);
    if status == StatusCode::TOO_MANY_REQUESTS
        && let Some(seconds) = retry_after(decision)
    {
        reply.headers_mut().insert(RETRY_AFTER, integer(seconds));
    }
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    respond(data, reply.headers_mut());
    reply
}

/// Writes a problem, and leaves its object open for further members.
#[inline]
fn begin_problem(problem: &str, body: &mut Text) {
    body.extend_from_slice(problem.strip_suffix('}').expect("an object").as_bytes());
    body.push(b',');
}

/// A denial because the store is unavailable. It has no rate limit headers, because the usage is unknown.
fn unavailable(data: &DecisionReply<'_>, fallback: FallbackDenial) -> Reply {
    let (problem, status) = (ProblemType::ReducedCapacity, fallback.status());
    let mut body = Text::new();
    let detail = format_args!("the store is unavailable");
    begin_problem(
        &problem.document().with_status(status).with_detail(detail).to_string(),
        &mut body,
    );
    members(data.decision, data.source, &mut body);
    body.push(b'}');
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    let mut reply = problem::problem(status, body.into_vec());
    if let Some(seconds) = retry_after(data.decision) {
        reply.headers_mut().insert(RETRY_AFTER, integer(seconds));
    }
    reply
}

/// A response with a copy of `body` at its exact length, because spare capacity would cost an allocation for
/// a reference count.
fn whole(body: &[u8]) -> Reply {
    Response::new(Bytes::copy_from_slice(body).into())
}

/// Sets the rate limit headers.
#[inline]
fn respond(data: &DecisionReply<'_>, headers: &mut HeaderMap) {
    data.fields.write(data.style, data.bound, |name, value| {
        headers.insert(name, value);
    });
}

/// Lets a request of a proxy pass, with rate limit headers that the proxy may copy to its response.
pub(super) fn pass(data: Option<&DecisionReply<'_>>) -> Reply {
    let mut reply = Reply::default();
    reply.headers_mut().insert(CACHE_CONTROL, NO_STORE);
    if let Some(data) = data {
        respond(data, reply.headers_mut());
    }
    reply
}

/// Rejects a request of a proxy by a blocking rule.
pub(super) fn blocked(rule: &str) -> Reply {
    let body = ProblemType::Blocked.document().with_violated_policy(rule).to_string();
    problem::problem(StatusCode::TOO_MANY_REQUESTS, body)
}

/// The members of a decision, named as in SEMANTICS.
#[inline]
fn members(decision: &Decision, source: Option<&str>, out: &mut Text) {
    let [allowed, limit, remaining, retry_after, reset_after, delay, binding] =
        decision.to_integers();
    let mut line = Line { bytes: [0; MAX_MEMBERS], length: 0 };
    line.push(if allowed == 1 { b"\"allowed\":true" } else { b"\"allowed\":false" });
    line.number(b",\"limit\":", limit);
    line.number(b",\"remaining\":", remaining);
    match decision.retry() {
        Some(Retry::Never) => line.push(b",\"retry_after_us\":null,\"never\":true"),
        _ => line.number(b",\"retry_after_us\":", retry_after),
    }
    line.number(b",\"reset_after_us\":", reset_after);
    line.number(b",\"delay_us\":", delay);
    line.number(b",\"binding\":", binding);
    out.extend_from_slice(&line.bytes[..line.length]);
    if let Some(source) = source {
        [",\"source\":\"", source, "\""].iter().for_each(|it| out.extend_from_slice(it.as_bytes()));
    }
}

/// Upper bound on the members of a decision, in bytes: their names, and six numbers of up to 20 characters.
const MAX_MEMBERS: usize = 256;

/// Text of a bounded length. Copies of constants are inlined.
struct Line {
    bytes: [u8; MAX_MEMBERS],
    length: usize,
}

impl Line {
    #[inline(always)]
    fn push(&mut self, text: &[u8]) {
        self.bytes[self.length..][..text.len()].copy_from_slice(text);
        self.length += text.len();
    }

    #[inline(always)]
    fn number(&mut self, name: &[u8], number: i64) {
        self.push(name);
        match u8::try_from(number) {
            Ok(digit @ 0..=9) => self.push(&[b'0' + digit]),
            _ => self.push(itoa::Buffer::new().format(number).as_bytes()),
        }
    }
}

/// Several decisions, in order.
pub(super) fn decisions<'a>(
    decisions: impl ExactSizeIterator<Item = (&'a Decision, Option<&'static str>)>,
) -> Reply {
    let mut body = Text::with_capacity(20 + decisions.len() * 160);
    body.extend_from_slice(b"{\"decisions\":[");
    for (index, (decision, source)) in decisions.enumerate() {
        body.extend_from_slice(if index == 0 { b"{" } else { b",{" });
        members(decision, source, &mut body);
        body.push(b'}');
    }
    body.extend_from_slice(b"]}");
    json(JSON, body.into_vec())
}

/// The response to a reset: whether there was state.
pub(crate) fn reset(existed: bool) -> Reply {
    json(JSON, format!("{{\"existed\":{existed}}}"))
}

/// A value as JSON.
pub(crate) fn value(value: &impl Serialize) -> Reply {
    json(JSON, serde_json::to_vec(value).unwrap_or_default())
}

/// A document of type `kind`.
pub(crate) fn text(kind: &'static str, text: impl Into<Full<Bytes>>) -> Reply {
    uncached(HeaderValue::from_static(kind), text)
}

/// A short plain text.
pub(super) fn plain(text: &'static str) -> Reply {
    uncached(TEXT, text)
}
