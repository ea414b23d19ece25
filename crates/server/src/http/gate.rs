//! `/v1/gate`: whether a request may pass that a proxy asks about, by the rules: for nginx
//! (`auth_request`), Traefik (`forwardAuth`) and Caddy (`forward_auth`).
//!
//! The proxy says what the request was (`X-Forwarded-Method`, `X-Forwarded-Uri`) and where it came
//! from (`X-Forwarded-For`). Of the latter only so many entries are believed, from the last, as there
//! are proxies of ours: whatever a client puts before them is its own invention.

use std::{
    borrow::Cow,
    net::{IpAddr, SocketAddr},
};

use hyper::{HeaderMap, header::HeaderName, http::request::Parts};
use sluicegate_core::Timestamp;
use sluicegate_headers::Fields;
use sluicegate_rules::{Headers, Match, Request};

use super::{
    Client, Reply,
    problem::Problem,
    reply::{self, Told},
};
use crate::{
    face::Face,
    judge::{self, Ask, Verdict},
    worker::Worker,
};

const METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
const TARGET: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-uri"), HeaderName::from_static("x-original-uri")];
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Whether the request that `head` tells of may pass.
pub(super) async fn ask(client: &Client, head: &Parts, now: Timestamp) -> Result<Reply, Problem> {
    let worker = &*client.worker;
    let shared = &worker.shared;
    let method = text(&head.headers, &METHOD)?.unwrap_or("GET");
    let target = text(&head.headers, &TARGET)?.ok_or_else(|| {
        Problem::unprocessable(
            "nobody says which request it is about; `X-Forwarded-Uri: /path?query` would do, and \
             `X-Forwarded-Method` where it is no GET",
        )
    })?;
    let headers = OfRequest(&head.headers);
    let mut request = Request::http(method, target, &headers);
    let address = address(&head.headers, shared.config.http_trusted_hops).or(client.address);
    if let Some(address) = address {
        request = request.from(address);
    }
    let version = arc_swap::Guard::into_inner(shared.rules.now());
    let matches = version.rules().matches(&request);
    let verdict = judge::decide(shared, &version, &matches, Ask::Take(1), now).await?;
    Ok(tell(worker, &matches, &verdict))
}

/// The reply, with what binds.
fn tell(worker: &Worker, matches: &[Match<'_>], verdict: &Verdict) -> Reply {
    let binding = verdict.binding.and_then(|at| Some((matches.get(at)?, verdict.told.get(at)?)));
    let Some((found, told)) = binding else { return reply::pass(None) };
    let name = found.rule.name();
    let charge = found.charges.get(told.charge);
    let Some((decision, charge)) = told.decision.as_ref().zip(charge) else {
        return if verdict.allowed { reply::pass(None) } else { reply::blocked(name) };
    };
    worker.stats().decided(Face::Http, told.source, decision);
    worker.stats().watch.note(&charge.key, decision);
    let name = match charge.level {
        Some(level) => Cow::Owned(format!("{name}/{level}")),
        None => Cow::Borrowed(name),
    };
    let fields = Fields::new(&name, &charge.policy);
    let style = worker.shared.config.http_headers;
    let told = Told::new(worker, decision, told.source, &fields, style);
    if verdict.allowed { reply::pass(Some(&told)) } else { reply::decision(&told) }
}

/// The first of these fields that is there, as text.
fn text<'h>(headers: &'h HeaderMap, names: &[HeaderName]) -> Result<Option<&'h str>, Problem> {
    let Some((name, value)) = names.iter().find_map(|name| Some((name, headers.get(name)?))) else {
        return Ok(None);
    };
    let wrong = |_| Problem::unprocessable(format!("`{name}` is no ASCII; `%` escapes would do"));
    value.to_str().map(Some).map_err(wrong)
}

/// The fields of a request, as rules ask for them.
struct OfRequest<'h>(&'h HeaderMap);

impl Headers for OfRequest<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        self.0.get(name).map(|value| value.as_bytes())
    }
}

/// The client's address: what the outermost of so many proxies of ours saw. `None` where they do not
/// tell, or nobody is believed.
fn address(headers: &HeaderMap, hops: usize) -> Option<IpAddr> {
    let fields = headers.get_all(FORWARDED_FOR);
    let mut entries: Vec<&[u8]> = Vec::new();
    for field in &fields {
        entries.extend(field.as_bytes().split(|&byte| byte == b','));
    }
    // Where there are fewer, all of them are of our proxies.
    let at = entries.len().saturating_sub(hops);
    entries.get(at).and_then(|entry| parsed(entry))
}

/// An address, with or without a port, brackets or quotes.
fn parsed(entry: &[u8]) -> Option<IpAddr> {
    let text = std::str::from_utf8(entry).ok()?.trim().trim_matches('"');
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse::<IpAddr>().ok();
    let address = address.or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_trusted_hops_are_believed() {
        for (fields, hops, expected) in [
            (&["203.0.113.7"][..], 1, Some("203.0.113.7")),
            (&["1.1.1.1, 203.0.113.7"], 1, Some("203.0.113.7")),
            (&["1.1.1.1, 203.0.113.7, 10.0.0.2"], 2, Some("203.0.113.7")),
            (&["1.1.1.1", "203.0.113.7,10.0.0.2"], 2, Some("203.0.113.7")),
            (&["203.0.113.7"], 2, Some("203.0.113.7")),
            (&["1.1.1.1"], 0, None),
            (&[], 1, None),
            (&["1.1.1.1, nonsense"], 1, None),
            (&["[2001:db8::1]:443"], 1, Some("2001:db8::1")),
            (&["\"[2001:db8::1]\""], 1, Some("2001:db8::1")),
            (&["::ffff:203.0.113.7"], 1, Some("203.0.113.7")),
            (&["203.0.113.7:80"], 1, Some("203.0.113.7")),
        ] {
            let mut headers = HeaderMap::new();
            for field in fields {
                headers.append(FORWARDED_FOR, field.parse().unwrap());
            }
            let expected = expected.map(|address| address.parse().unwrap());
            assert_eq!(address(&headers, hops), expected, "{fields:?} {hops}");
        }
    }
}
