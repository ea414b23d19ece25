//! `/v1/gate`: forward authentication by rules, for Traefik (`forwardAuth`) and Caddy (`forward_auth`), and at
//! `/v1/gate/403` for nginx (`auth_request`).

mod original;

use std::borrow::Cow;

use http_body_util::{Either, Full};
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
    http::request::Parts,
};
use sluicegate_core::Timestamp;
use sluicegate_headers::RateLimitHeaders;
use sluicegate_rules::{Headers, Match, Request, RuleOperation, RuleOutcome};

use super::{
    problem::{Problem, Reply, ReplyBody},
    reply::{self, DecisionReply},
    worker::{HttpClientState, HttpWorker},
};
use crate::stats::Cause;

/// Evaluates the rules for the request that a proxy describes in `head`.
pub(super) async fn evaluate(
    client: &HttpClientState,
    head: &Parts,
    now: Timestamp,
) -> Result<Reply, Problem> {
    let worker = &*client.worker;
    let context = &worker.context;
    let config = &context.settings.gate;
    let method = original::method(&head.headers, config)?;
    let target = original::target(&head.headers, config)?;
    let address = original::address(&head.headers, config, context.settings.trusted_hops)?;
    let rules = arc_swap::Guard::into_inner(context.decider.rules.current());
    let matches = {
        let headers = RequestHeaders(&head.headers);
        let mut request = Request::http(method, target, &headers);
        if let Some(address) = address.or(client.address) {
            request = request.from(address);
        }
        if let Some(attribute) = rules.rules.ambiguous(&request) {
            return Err(Problem::malformed(format!(
                "{attribute} is given several times with different values: expected one"
            )));
        }
        // The parsed target takes more memory than the head. It is dropped before the store is called.
        rules.rules.matches(&request)
    };
    if rules.rules.rules().is_empty() {
        context.decider.rules.warn_of_no_rules();
    }
    let operation = RuleOperation::Take(1);
    let outcome = context.decider.evaluate(&rules, &matches, operation, now).await?;
    Ok(reply_to(worker, &matches, &outcome))
}

/// The status that a reply with 403 has at `/v1/gate`.
static GATE_STATUS: HeaderName = HeaderName::from_static("sluicegate-status");

/// Changes a status that denies or rejects a request into 403, because nginx logs an error and closes the connection of
/// the client for any other. A status that the proxy itself caused stays. The body goes, because nginx drops it.
pub(super) fn reject_with_403(reply: &mut Response<ReplyBody>) {
    let status = reply.status();
    let is_rejection = matches!(
        status,
        StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_REQUEST
            | StatusCode::UNPROCESSABLE_ENTITY
            | StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
            | StatusCode::SERVICE_UNAVAILABLE
    );
    if is_rejection {
        *reply.status_mut() = StatusCode::FORBIDDEN;
        *reply.body_mut() = Either::Left(Full::default());
        reply.headers_mut().remove(CONTENT_TYPE);
        reply.headers_mut().insert(&GATE_STATUS, HeaderValue::from(status.as_u16()));
    }
}

/// The reply, with the binding limit.
fn reply_to(worker: &HttpWorker, matches: &[Match<'_>], outcome: &RuleOutcome) -> Reply {
    let Some(index) = outcome.binding else { return reply::pass(None) };
    let (found, bound) = (&matches[index], &outcome.matches[index]);
    let name = found.rule.name();
    let charge = found.charges.get(bound.charge);
    let Some((decision, charge)) = bound.decision.as_ref().zip(charge) else {
        return if outcome.allowed { reply::pass(None) } else { reply::blocked(name) };
    };
    let cause = Cause { rule: Some(name), policy: &charge.policy };
    worker.record(&charge.key, bound.source, decision, cause);
    let name = match charge.level {
        Some(level) => Cow::Owned(format!("{name}/{level}")),
        None => Cow::Borrowed(name),
    };
    let fields = RateLimitHeaders::new(&name, &charge.policy);
    let style = worker.context.settings.headers;
    let data = DecisionReply::new(worker, decision, bound.source, &fields, style);
    if outcome.allowed { reply::pass(Some(&data)) } else { reply::decision(&data) }
}

/// The headers of a request, for rules.
struct RequestHeaders<'h>(&'h HeaderMap);

impl Headers for RequestHeaders<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }

    fn is_ambiguous(&self, name: &str) -> bool {
        let mut values = self.0.get_all(name).iter();
        values.next().is_some_and(|first| values.any(|value| value != first))
    }
}
