//! Forward authentication: `/v1/gate` decides by the rules about a request that a proxy describes, for Traefik
//! (`forwardAuth`) and Caddy (`forward_auth`), and `/v1/gate/403` does for nginx (`auth_request`).

mod original;

use std::borrow::Cow;

use http_body_util::{Either, Full};
use hyper::{
    HeaderMap, Response, StatusCode,
    header::{CONTENT_TYPE, HeaderName, HeaderValue},
    http::request::Parts,
};
use sluicegate_core::Timestamp;
use sluicegate_headers::Fields;
use sluicegate_rules::{Headers, Match, Request};

use super::{
    problem::Problem,
    reply::{self, DecisionReply},
    response::{Reply, ReplyBody},
    worker::{Client, HttpWorker},
};
use crate::{
    decide::judge::{self, Ask, Verdict},
    stats::Cause,
};

/// Decides about the request that `head` describes.
pub(super) async fn ask(client: &Client, head: &Parts, now: Timestamp) -> Result<Reply, Problem> {
    let worker = &*client.worker;
    let context = &worker.context;
    let config = &context.settings.gate;
    let method = original::method(&head.headers, config)?;
    let target = original::target(&head.headers, config)?;
    let address = original::address(&head.headers, config, context.settings.trusted_hops)?;
    let version = arc_swap::Guard::into_inner(context.decider.rules.now());
    let matches = {
        let headers = OfRequest(&head.headers);
        let mut request = Request::http(method, target, &headers);
        if let Some(address) = address.or(client.address) {
            request = request.from(address);
        }
        if let Some(attribute) = version.rules().ambiguous(&request) {
            return Err(Problem::contradictory(format!(
                "{attribute} is given several times with different values: expected one"
            )));
        }
        // The parsed target needs more memory than the head, and is dropped before the store is called.
        version.rules().matches(&request)
    };
    let verdict = judge::decide(&context.decider, &version, &matches, Ask::Take(1), now).await?;
    Ok(respond(worker, &matches, &verdict))
}

/// The header with the status that `/v1/gate` has for the same response.
static GATE_STATUS: HeaderName = HeaderName::from_static("sluicegate-status");

/// Replaces a status that rejects a request by 403, because nginx logs an error and closes the client's
/// connection for any other. Errors of the proxy itself keep their status. The body is dropped, as
/// nginx does.
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

/// The response, with the binding rule.
fn respond(worker: &HttpWorker, matches: &[Match<'_>], verdict: &Verdict) -> Reply {
    let binding = verdict.binding.and_then(|at| Some((matches.get(at)?, verdict.told.get(at)?)));
    let Some((found, told)) = binding else { return reply::pass(None) };
    let name = found.rule.name();
    let charge = found.charges.get(told.charge);
    let Some((decision, charge)) = told.decision.as_ref().zip(charge) else {
        return if verdict.allowed { reply::pass(None) } else { reply::blocked(name) };
    };
    worker.stats().decided(told.source, decision);
    worker.stats().sampler.note(
        &charge.key,
        decision,
        Cause { rule: Some(name), policy: &charge.policy },
    );
    let name = match charge.level {
        Some(level) => Cow::Owned(format!("{name}/{level}")),
        None => Cow::Borrowed(name),
    };
    let fields = Fields::new(&name, &charge.policy);
    let style = worker.context.settings.headers;
    let told = DecisionReply::new(worker, decision, told.source, &fields, style);
    if verdict.allowed { reply::pass(Some(&told)) } else { reply::decision(&told) }
}

/// The headers of a request, as rules read them.
struct OfRequest<'h>(&'h HeaderMap);

impl Headers for OfRequest<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }

    fn is_ambiguous(&self, name: &str) -> bool {
        let mut values = self.0.get_all(name).iter();
        values.next().is_some_and(|first| values.any(|value| value != first))
    }
}
