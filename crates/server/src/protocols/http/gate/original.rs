//! The request that a proxy describes to the gate: target, method and address.
//!
//! A client may send any of the headers with which a proxy describes a request, and a proxy passes on those that it
//! does not set itself. Therefore only the header in the settings counts; without settings, all known headers
//! for the same property must agree, or the request is rejected. A client gains nothing by adding one.

use std::net::IpAddr;

use hyper::{
    HeaderMap,
    header::{FORWARDED, HeaderName, HeaderValue},
};
use sluicegate_commands::quote;
use sluicegate_headers::AddressList;

use crate::{protocols::http::problem::Problem, settings::GateConfig};

static URI: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-uri"),
    HeaderName::from_static("x-original-uri"),
    HeaderName::from_static("x-original-url"),
];
static METHOD: [HeaderName; 2] =
    [HeaderName::from_static("x-forwarded-method"), HeaderName::from_static("x-original-method")];
static ADDRESS: [HeaderName; 3] = [
    HeaderName::from_static("x-forwarded-for"),
    FORWARDED,
    // One address, which the proxy itself has seen.
    HeaderName::from_static("x-real-ip"),
];

/// Longest path, in bytes. It bounds the time of rules, which read an unusual path up to twelve times.
const MAX_PATH: usize = 8192;

/// Path and query.
pub(super) fn target<'h>(headers: &'h HeaderMap, config: &GateConfig) -> Result<&'h str, Problem> {
    let expected = "expected the original path and query, in visible ASCII";
    let Some((found, value)) = the_one(headers, config.uri_header.as_ref(), &URI)? else {
        let named = name(config.uri_header.as_ref().unwrap_or(&URI[0]));
        return Err(Problem::unprocessable(format!("missing {named}: {expected}")));
    };
    let text = std::str::from_utf8(value.as_bytes()).ok();
    let text = text.filter(|text| text.bytes().all(|byte| byte.is_ascii_graphic()));
    let text =
        text.ok_or_else(|| Problem::unprocessable(format!("invalid {}: {expected}", name(found))))?;
    let (name, length) = (name(found), text.find('?').unwrap_or(text.len()));
    // As a request line has it: a path (with a slash as browsers read one), a whole URL, or `*` of OPTIONS.
    if !text.starts_with(['/', '\\']) && !text.contains("://") && text != "*" {
        return Err(Problem::unprocessable(format!(
            "invalid {name} `{}`: expected a path that begins with `/`",
            quote(text.as_bytes())
        )));
    }
    if length > MAX_PATH {
        return Err(Problem::unprocessable(format!(
            "invalid {name}: its path has {length} bytes, expected up to {MAX_PATH}"
        )));
    }
    Ok(text)
}

/// The header as documentation writes it.
fn name(header: &HeaderName) -> &str {
    match header {
        it if *it == URI[0] => "X-Forwarded-Uri",
        it if *it == METHOD[0] => "X-Forwarded-Method",
        other => other.as_str(),
    }
}

/// The method; `GET` if no header gives it and none is named.
pub(super) fn method<'h>(headers: &'h HeaderMap, config: &GateConfig) -> Result<&'h str, Problem> {
    let named = config.method_header.as_ref();
    let Some((found, value)) = the_one(headers, named, &METHOD)? else {
        let Some(named) = named else { return Ok("GET") };
        let name = name(named);
        return Err(Problem::unprocessable(format!(
            "missing {name}: expected the original method, because --gate-method-header names it"
        )));
    };
    let is_token = |text: &&str| !text.is_empty() && text.bytes().all(|it| it.is_ascii_graphic());
    let text = value.to_str().ok().filter(is_token);
    text.ok_or_else(|| {
        let (name, value) = (name(found), quote(value.as_bytes()));
        Problem::unprocessable(format!("invalid {name} `{value}`: expected a method such as `GET`"))
    })
}

/// The address that the outermost of `hops` trusted proxies saw; `None` if no header gives it.
pub(super) fn address(
    headers: &HeaderMap,
    config: &GateConfig,
    hops: usize,
) -> Result<Option<IpAddr>, Problem> {
    let by = |name: &HeaderName| {
        let list = match *name == FORWARDED {
            true => AddressList::Forwarded,
            false => AddressList::XForwardedFor,
        };
        list.client(headers.get_all(name).iter().map(HeaderValue::as_bytes), hops)
    };
    if let Some(name) = &config.address_header {
        if *name != ADDRESS[0] && *name != FORWARDED {
            the_one_address(headers, name)?;
        }
        return Ok(by(name));
    }
    if hops == 0 {
        return Ok(None);
    }
    // Behind more than one proxy, the nearest does not know the client.
    let known = if hops == 1 { &ADDRESS[..] } else { &ADDRESS[..2] };
    if hops == 1 {
        the_one_address(headers, &ADDRESS[2])?;
    }
    let mut found = known.iter().filter(|name| headers.contains_key(*name));
    let Some(first) = found.next() else { return Ok(None) };
    let address = by(first);
    match found.find(|other| by(other) != address) {
        Some(other) => Err(contradiction(first, other, "gate-address-header")),
        // The client itself may have sent it.
        None if *first == ADDRESS[2] => Ok(None),
        None => Ok(address),
    }
}

/// Rejects a header with several addresses where a proxy writes one.
fn the_one_address(headers: &HeaderMap, name: &HeaderName) -> Result<(), Problem> {
    let Some((_, value)) = the_one(headers, Some(name), &ADDRESS)? else { return Ok(()) };
    if value.as_bytes().contains(&b',') {
        return Err(Problem::malformed(format!(
            "invalid {name}: expected one address, because only X-Forwarded-For and Forwarded are lists; let \
             the proxy replace it"
        )));
    }
    Ok(())
}

/// The value of the configured header, or of the known ones that are present.
fn the_one<'h, 'n>(
    headers: &'h HeaderMap,
    named: Option<&'n HeaderName>,
    known: &'n [HeaderName],
) -> Result<Option<(&'n HeaderName, &'h HeaderValue)>, Problem> {
    let names = named.map_or(known, std::slice::from_ref);
    let mut all =
        names.iter().flat_map(|name| headers.get_all(name).iter().map(move |it| (name, it)));
    let Some((name, value)) = all.next() else { return Ok(None) };
    match all.find(|(_, other)| *other != value) {
        Some((other, _)) => {
            let flag =
                if known.len() == URI.len() { "gate-uri-header" } else { "gate-method-header" };
            Err(contradiction(name, other, flag))
        }
        None => Ok(Some((name, value))),
    }
}

/// Two headers contradict each other, and the client may have sent one of them.
fn contradiction(one: &HeaderName, other: &HeaderName, flag: &str) -> Problem {
    if one == other {
        return Problem::malformed(format!(
            "header {one} is given twice with different values: expected one; let the proxy replace it"
        ));
    }
    Problem::malformed(format!(
        "headers {one} and {other} differ: expected one of them; name it by --{flag}, or let the proxy \
         remove the other"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in fields {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn named(uri: &'static str) -> GateConfig {
        GateConfig { uri_header: Some(HeaderName::from_static(uri)), ..GateConfig::default() }
    }

    #[test]
    fn target_client_header_never_decides() {
        let auto = GateConfig::default();
        for (config, fields, expected) in [
            (&auto, &[("x-forwarded-uri", "/login")][..], Ok("/login")),
            (&auto, &[("x-original-uri", "/login")], Ok("/login")),
            (&auto, &[("x-original-url", "http://h/login")], Ok("http://h/login")),
            (&auto, &[("x-original-uri", "/login"), ("x-forwarded-uri", "/login")], Ok("/login")),
            (
                &auto,
                &[("x-original-uri", "/login"), ("x-forwarded-uri", "/health")],
                Err("headers x-forwarded-uri and x-original-uri differ"),
            ),
            (
                &auto,
                &[("x-original-url", "/login"), ("x-original-uri", "/health")],
                Err("headers x-original-uri and x-original-url differ"),
            ),
            (
                &auto,
                &[("x-forwarded-uri", "/health"), ("x-forwarded-uri", "/login")],
                Err("header x-forwarded-uri is given twice"),
            ),
            (&auto, &[], Err("missing X-Forwarded-Uri: expected the original path and query")),
            (&auto, &[("x-forwarded-uri", "/a b")], Err("invalid X-Forwarded-Uri: expected")),
            (&auto, &[("x-forwarded-uri", "/lo\tgin")], Err("invalid X-Forwarded-Uri: expected")),
            (
                &named("x-original-uri"),
                &[("x-original-uri", "/login"), ("x-forwarded-uri", "/health")],
                Ok("/login"),
            ),
            (
                &named("x-original-uri"),
                &[("x-forwarded-uri", "/health")],
                Err("missing x-original-uri"),
            ),
            (
                &named("x-my-uri"),
                &[("x-my-uri", "/a"), ("x-my-uri", "/b")],
                Err("header x-my-uri is given twice"),
            ),
        ] {
            let headers = headers(fields);
            let found = target(&headers, config).map_err(|problem| problem.to_string());
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(*found, expected, "{fields:?}"),
                (Err(found), Err(expected)) => {
                    assert!(found.starts_with(expected), "{fields:?}: {found}");
                }
                _ => panic!("{fields:?}: {found:?}"),
            }
        }
    }

    #[test]
    fn target_path_has_a_bound_and_the_query_none() {
        let config = GateConfig::default();
        let path = format!("/{}", "x".repeat(MAX_PATH - 1));
        for (text, expected) in
            [(path.clone(), true), (format!("{path}?{path}"), true), (format!("{path}x"), false)]
        {
            let found = headers(&[("x-forwarded-uri", &text)]);
            assert_eq!(target(&found, &config).is_ok(), expected, "{}", text.len());
        }
    }

    #[test]
    fn method_client_header_never_decides() {
        let auto = GateConfig::default();
        let named = GateConfig { method_header: Some(METHOD[1].clone()), ..GateConfig::default() };
        let both = [("x-forwarded-method", "GET"), ("x-original-method", "POST")];
        for (config, fields, expected) in [
            (&auto, &both[..], None),
            (&auto, &both[..1], Some("GET")),
            (&auto, &both[1..], Some("POST")),
            (&auto, &[], Some("GET")),
            (&named, &both, Some("POST")),
            (&named, &both[..1], None),
            (&auto, &[("x-forwarded-method", "PO ST")], None),
            (&auto, &[("x-forwarded-method", "")], None),
        ] {
            let headers = headers(fields);
            assert_eq!(method(&headers, config).ok(), expected, "{fields:?}");
        }
    }

    #[test]
    fn method_invalid_is_named() {
        let long = "x y".repeat(100);
        for (name, value, expected) in [
            (
                "x-forwarded-method",
                "P OST",
                "invalid X-Forwarded-Method `P OST`: expected a method such as `GET`",
            ),
            (
                "x-original-method",
                "",
                "invalid x-original-method ``: expected a method such as `GET`",
            ),
            ("x-forwarded-method", &long, "invalid X-Forwarded-Method `x yx y"),
        ] {
            let problem = method(&headers(&[(name, value)]), &GateConfig::default()).unwrap_err();
            let problem = problem.to_string();
            assert!(problem.starts_with(expected) && problem.len() < 200, "{problem}");
        }
    }

    #[test]
    fn address_client_header_never_decides() {
        let auto = GateConfig::default();
        let named = |name| GateConfig {
            address_header: Some(HeaderName::from_static(name)),
            ..GateConfig::default()
        };
        let client = "203.0.113.7";
        let list = ("x-forwarded-for", "1.1.1.1, 203.0.113.7");
        for (config, hops, fields, expected) in [
            (&auto, 1, &[list][..], Ok(Some(client))),
            (&auto, 1, &[("forwarded", "for=1.1.1.1, for=203.0.113.7")], Ok(Some(client))),
            (&auto, 1, &[list, ("forwarded", "for=\"203.0.113.7:80\"")], Ok(Some(client))),
            (&auto, 1, &[list, ("forwarded", "for=1.1.1.1")], Err(())),
            (&auto, 1, &[("x-forwarded-for", "junk"), ("forwarded", "for=1.1.1.1")], Err(())),
            (&auto, 1, &[list, ("x-real-ip", "1.1.1.1")], Err(())),
            (&auto, 1, &[list, ("x-real-ip", client)], Ok(Some(client))),
            (&auto, 1, &[("x-real-ip", "1.1.1.1")], Ok(None)),
            // The inner of two proxies names the outer one there.
            (
                &auto,
                2,
                &[("x-forwarded-for", "203.0.113.7, 10.0.0.2"), ("x-real-ip", "10.0.0.2")],
                Ok(Some(client)),
            ),
            (&auto, 1, &[list, ("x-real-ip", "1.1.1.1"), ("x-real-ip", client)], Err(())),
            (&auto, 0, &[list, ("forwarded", "for=1.1.1.1")], Ok(None)),
            (&auto, 1, &[], Ok(None)),
            (&named("x-forwarded-for"), 1, &[list, ("forwarded", "for=1.1.1.1")], Ok(Some(client))),
            (
                &named("forwarded"),
                1,
                &[list, ("forwarded", "for=192.0.2.9")],
                Ok(Some("192.0.2.9")),
            ),
            (&named("x-real-ip"), 1, &[list, ("x-real-ip", "192.0.2.9")], Ok(Some("192.0.2.9"))),
            (&named("forwarded"), 1, &[list], Ok(None)),
            (
                &named("x-forwarded-for"),
                1,
                &[("x-forwarded-for", "192.0.2.9"), list],
                Ok(Some(client)),
            ),
            (
                &named("x-real-ip"),
                1,
                &[("x-real-ip", "1.1.1.1"), ("x-real-ip", "192.0.2.9")],
                Err(()),
            ),
            (&named("x-real-ip"), 1, &[("x-real-ip", "1.1.1.1, 192.0.2.9")], Err(())),
            (&named("cf-connecting-ip"), 1, &[("cf-connecting-ip", "1.1.1.1,192.0.2.9")], Err(())),
            (
                &named("x-real-ip"),
                1,
                &[("x-real-ip", "192.0.2.9"), ("x-real-ip", "192.0.2.9")],
                Ok(Some("192.0.2.9")),
            ),
        ] {
            let headers = headers(fields);
            let expected = expected.map(|it| it.map(|it| it.parse().unwrap()));
            let found = address(&headers, config, hops).map_err(drop);
            assert_eq!(found, expected, "{fields:?} {hops}");
        }
    }
}
