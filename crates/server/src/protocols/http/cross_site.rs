//! Rejects requests that a web page of another site may have sent.
//!
//! A browser on the same machine, or in the same network, sends requests for any page. Three headers
//! identify them, none of which a page can change: `Sec-Fetch-Site` and `Origin`
//! name the site of the page, and `Host` is the name of the server in the page. `Host` exposes
//! pages whose name was made to resolve to this server (DNS rebinding), which the browser considers ours.
//! See [ADR 29](../../../../docs/adr/0029-cross-site-requests.md).

use std::net::{IpAddr, SocketAddr};

use hyper::{
    HeaderMap, Method, Version,
    header::{HOST, HeaderName, HeaderValue, ORIGIN},
    http::request::Parts,
};

use super::problem::Problem;
use crate::HttpConfig;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
const MODE: HeaderName = HeaderName::from_static("sec-fetch-mode");
const DESTINATION: HeaderName = HeaderName::from_static("sec-fetch-dest");

/// The names of the server.
#[derive(Debug)]
pub(crate) struct HostNames {
    /// Whether requests by other names are rejected.
    is_checked: bool,
    /// The usual names of this server, and those that are configured.
    allowed: Vec<String>,
    /// The port that it listens on.
    port: u16,
    has_tls: bool,
}

/// The clients that may send a request, as far as pages of other sites are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Audience {
    /// Anyone: health is public.
    Anybody,
    /// Proxies at the gate, with headers of a request that any page may have sent to any host.
    Proxies,
    /// Visitors of the dashboard page, which any page may link to.
    Visitors,
    /// Clients: all other requests.
    Clients,
}

impl HostNames {
    /// Names are checked if some are configured, and on a loopback address without a token, which no
    /// page could know.
    pub(crate) fn new(settings: &HttpConfig, address: Option<SocketAddr>, has_token: bool) -> Self {
        let is_local = address.is_some_and(|address| address.ip().is_loopback());
        let port = address.map_or(0, |address| address.port());
        let usual = ["127.0.0.1", "localhost"].map(|name| format!("{name}:{port}"));
        Self {
            is_checked: !settings.allowed_hosts.is_empty() || is_local && !has_token,
            allowed: usual.into_iter().chain(settings.allowed_hosts.iter().cloned()).collect(),
            port,
            has_tls: settings.tls.is_some(),
        }
    }

    /// Whether `authority` is a name of the server.
    fn allows(&self, authority: &str) -> bool {
        // Most requests have one of the names as it is written here.
        if self.allowed.iter().any(|allowed| allowed == authority) {
            return true;
        }
        let (name, _) = split(authority);
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        name.eq_ignore_ascii_case("localhost")
            || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
            || self.allowed.iter().any(|allowed| {
                allowed.eq_ignore_ascii_case(name) || allowed.eq_ignore_ascii_case(authority)
            })
    }

    /// Whether `authority` has the port of this server, as a browser that connects here sends it. A proxy sends
    /// a port of its own.
    fn is_by_our_port(&self, authority: &str) -> bool {
        match split(authority).1 {
            None => self.port == if self.has_tls { 443 } else { 80 },
            Some(port) => port.parse().ok() == Some(self.port),
        }
    }

    /// Whether a page of this server may have this scheme. Without TLS, `https` is the scheme of a proxy, which has
    /// another port.
    fn is_own_scheme(&self, scheme: &str, authority: &str) -> bool {
        match (scheme, self.has_tls) {
            ("http", false) | ("https", true) => true,
            ("https", false) => {
                split(authority).1.map_or(Some(443), |port| port.parse().ok()) != Some(self.port)
            }
            _ => false,
        }
    }
}

/// The headers that identify the page of a request.
struct SiteHeaders<'a> {
    host: Option<&'a HeaderValue>,
    host_count: usize,
    /// Whether there is an `Origin` or a `Sec-Fetch-Site`.
    is_from_page: bool,
}

impl<'a> SiteHeaders<'a> {
    /// One pass over the few headers of a request needs fewer instructions than a look-up of each name.
    fn find(headers: &'a HeaderMap) -> Self {
        let mut found = Self { host: None, host_count: 0, is_from_page: false };
        for (name, value) in headers {
            if *name == HOST {
                found.host = Some(value);
                found.host_count += 1;
            } else if *name == ORIGIN || *name == SITE {
                found.is_from_page = true;
            }
        }
        found
    }
}

/// Rejects a request that a page of another site may have sent, and one that does not name its host.
pub(super) fn check_site(
    names: &HostNames,
    audience: Audience,
    head: &Parts,
) -> Result<(), Problem> {
    let SiteHeaders { host, host_count, is_from_page } = SiteHeaders::find(&head.headers);
    if host_count > 1 || host_count == 0 && head.version == Version::HTTP_11 {
        return Err(Problem::host_count());
    }
    if audience == Audience::Anybody {
        return Ok(());
    }
    let wrong = || Problem::no_host(host.map_or(&b""[..], |host| host.as_bytes()));
    let host = host.map(|host| host.to_str().map_err(|_| wrong())).transpose()?;
    let authority = head.uri.authority().map(|authority| authority.as_str());
    if names.is_checked {
        let is_foreign = |it: &&str| {
            !names.allows(it) && (audience != Audience::Proxies || names.is_by_our_port(it))
        };
        if let Some(foreign) = host.iter().chain(&authority).copied().find(is_foreign) {
            return Err(Problem::no_host(foreign.as_bytes()));
        }
    }
    // A proxy passes on headers that were sent to the proxy. A page cannot send those that the gate needs.
    if audience == Audience::Proxies || !is_from_page {
        return Ok(());
    }
    check_origin(names, audience, head, authority.or(host))
}

/// Rejects requests of pages of another origin, by any `Origin` or `Sec-Fetch-Site`.
fn check_origin(
    names: &HostNames,
    audience: Audience,
    head: &Parts,
    own: Option<&str>,
) -> Result<(), Problem> {
    let is_own_site = |site: &HeaderValue| {
        matches!(site.as_bytes(), b"same-origin" | b"none")
            || audience == Audience::Visitors && is_visit(head)
    };
    let is_own_origin = |origin: &HeaderValue| {
        let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
        origin.zip(own).is_some_and(|((scheme, authority), own)| {
            names.is_own_scheme(scheme, authority) && authority.eq_ignore_ascii_case(own)
        })
    };
    let all = |name, is_own: &dyn Fn(&HeaderValue) -> bool| {
        head.headers.get_all(name).into_iter().all(is_own)
    };
    if all(SITE, &is_own_site) && all(ORIGIN, &is_own_origin) {
        Ok(())
    } else {
        Err(Problem::cross_site())
    }
}

/// Whether a page is opened in its own tab, as by a link.
fn is_visit(head: &Parts) -> bool {
    let is = |name, value| head.headers.get(name).is_some_and(|found| found == value);
    head.method == Method::GET && is(MODE, "navigate") && is(DESTINATION, "document")
}

/// A name, in brackets where it is an address of IPv6, and its port.
fn split(authority: &str) -> (&str, Option<&str>) {
    match authority.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use hyper::Request;

    use super::*;

    fn names(configure: impl FnOnce(&mut HttpConfig), address: &str) -> HostNames {
        let mut settings = HttpConfig::default();
        configure(&mut settings);
        HostNames::new(&settings, Some(address.parse().unwrap()), settings.token.is_some())
    }

    fn is_rejected(names: &HostNames, audience: Audience, fields: &[(&str, &str)]) -> bool {
        let mut request = Request::get("/").version(Version::HTTP_11);
        for (name, value) in fields {
            request = request.header(*name, *value);
        }
        let head = request.body(()).unwrap().into_parts().0;
        check_site(names, audience, &head).is_err()
    }

    #[test]
    fn host_names_local_and_configured_are_allowed() {
        let local = names(|_| {}, "127.0.0.1:8080");
        let named = names(
            |settings| settings.allowed_hosts = vec!["Limits.Example".into(), "a:1".into()],
            "10.0.0.1:80",
        );
        let token = names(|settings| settings.token = Some("t".into()), "127.0.0.1:8080");
        let open = names(|_| {}, "0.0.0.0:8080");
        for (host, expected) in [
            ("localhost", [false, false]),
            ("LOCALHOST:9", [false, false]),
            ("127.0.0.1:8080", [false, false]),
            ("127.8.9.1", [false, false]),
            ("[::1]:8080", [false, false]),
            ("limits.example", [true, false]),
            ("limits.EXAMPLE:444", [true, false]),
            ("a:1", [true, false]),
            ("a:2", [true, true]),
            ("evil.example", [true, true]),
            ("localhost.evil.example", [true, true]),
            ("127.0.0.1.evil.example", [true, true]),
            ("[::2]", [true, true]),
            ("10.0.0.1", [true, true]),
            ("", [true, true]),
        ] {
            let fields = [("host", host)];
            let of = |names| is_rejected(names, Audience::Clients, &fields);
            assert_eq!([of(&local), of(&named)], expected, "{host}");
            assert!(!of(&token) && !of(&open), "{host}");
            assert!(!is_rejected(&local, Audience::Anybody, &fields), "{host}");
        }
    }

    #[test]
    fn check_fields_gate_accepts_any_host_but_not_with_our_port() {
        let local = names(|_| {}, "127.0.0.1:8080");
        let at_80 = names(|_| {}, "127.0.0.1:80");
        for (host, expected) in [
            ("shop.example", [false, true]),
            ("sluicegate", [false, true]),
            ("shop.example:8443", [false, false]),
            ("evil.example:8080", [true, false]),
            ("evil.example:80", [false, true]),
            ("localhost:8080", [false, false]),
        ] {
            let fields = [("host", host), ("origin", "http://x"), ("sec-fetch-site", "cross-site")];
            let of = |names| is_rejected(names, Audience::Proxies, &fields);
            assert_eq!([of(&local), of(&at_80)], expected, "{host}");
        }
    }

    #[test]
    fn check_fields_other_origin_is_rejected() {
        let local = names(|_| {}, "127.0.0.1:8080");
        for (fields, expected) in [
            (&[][..], false),
            (&[("sec-fetch-site", "same-origin")], false),
            (&[("sec-fetch-site", "none")], false),
            (&[("sec-fetch-site", "same-site")], true),
            (&[("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "later-idea")], true),
            (&[("origin", "http://localhost:8080")], false),
            (&[("origin", "http://LOCALHOST:8080")], false),
            (&[("origin", "https://localhost:8080")], true),
            (&[("origin", "chrome-extension://localhost:8080")], true),
            (&[("origin", "http://localhost:8080"), ("origin", "http://evil.example")], true),
            (&[("origin", "http://localhost:8080"), ("origin", "http://localhost:8080")], false),
            (&[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")], true),
            (&[("sec-fetch-site", "none"), ("origin", "http://evil.example")], true),
            (&[("origin", "http://localhost")], true),
            (&[("origin", "http://127.0.0.1:8080")], true),
            (&[("origin", "null")], true),
        ] {
            let fields = [&[("host", "localhost:8080")], fields].concat();
            assert_eq!(is_rejected(&local, Audience::Clients, &fields), expected, "{fields:?}");
        }
        let visit = [
            ("host", "localhost:8080"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-mode", "navigate"),
            ("sec-fetch-dest", "document"),
        ];
        assert!(!is_rejected(&local, Audience::Visitors, &visit));
        assert!(is_rejected(&local, Audience::Clients, &visit));
        assert!(is_rejected(&local, Audience::Visitors, &visit[..3]), "a frame is no visit");
    }

    #[test]
    fn check_fields_origin_must_have_the_scheme_of_the_server_or_proxy() {
        let tls = |settings: &mut HttpConfig| {
            let (cert, key) = ("c".into(), "k".into());
            settings.tls = Some(crate::TlsConfig { cert, key, client_ca: None });
        };
        let (plain, at_80) = (names(|_| {}, "10.0.0.1:8080"), names(|_| {}, "10.0.0.1:80"));
        let tls = names(tls, "10.0.0.1:8443");
        for (host, scheme, expected) in [
            ("limits.example", "https", [false, false, false]),
            ("limits.example:8443", "https", [false, false, false]),
            ("limits.example:8080", "https", [true, false, false]),
            ("limits.example", "http", [false, false, true]),
            ("limits.example", "moz-extension", [true, true, true]),
        ] {
            let origin = format!("{scheme}://{host}");
            let fields = [("host", host), ("origin", &*origin)];
            let of = |names| is_rejected(names, Audience::Clients, &fields);
            assert_eq!([of(&plain), of(&at_80), of(&tls)], expected, "{origin}");
        }
    }

    #[test]
    fn check_fields_host_must_be_sent_once() {
        let local = names(|_| {}, "127.0.0.1:8080");
        let twice = [("host", "localhost"), ("host", "localhost")];
        for audience in [Audience::Anybody, Audience::Clients, Audience::Proxies] {
            assert!(is_rejected(&local, audience, &[]) && is_rejected(&local, audience, &twice));
        }
    }
}
