//! Requests that a page of another site makes a browser send, and incomplete requests.

use std::{io::Write as _, net::Shutdown, time::Duration};

use super::client::{Client, server};
use crate::harness::TempDir;

const TAKE: &str = r#"{"key":"victim","policy":"gcra:2/1h"}"#;

/// `remaining` of the key under attack.
fn left(client: &mut Client) -> i64 {
    let reply = client.post("/v1/peek", TAKE);
    reply.json()["remaining"].as_i64().unwrap()
}

/// The status that a request gets.
fn status(client: &mut Client, method: &str, path: &str, fields: &str, body: &str) -> u16 {
    let length = body.len();
    client.send(format!(
        "{method} {path} HTTP/1.1\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
    ));
    client.read_reply().status
}

#[test]
fn cross_site_requests_are_rejected() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    assert_eq!(client.post("/v1/take", TAKE).status, 200);
    let json = "Host: localhost\r\nContent-Type: application/json\r\n";
    let plain = "Host: localhost\r\nContent-Type: text/plain\r\n";
    let foreign =
        "Host: localhost\r\nContent-Type: application/json\r\nOrigin: http://evil.example\r\n";
    let null = "Host: localhost\r\nContent-Type: application/json\r\nOrigin: null\r\n";
    let site =
        "Host: localhost\r\nContent-Type: application/json\r\nSec-Fetch-Site: cross-site\r\n";
    let near = "Host: localhost\r\nContent-Type: application/json\r\nSec-Fetch-Site: same-site\r\n";
    let rebound = "Host: evil.example\r\nContent-Type: application/json\r\n";
    let changes = [
        ("/v1/reset", r#"{"key":"victim"}"#),
        ("/v1/charge", r#"{"key":"victim","policy":"gcra:2/1h","cost":1}"#),
        ("/v1/take", TAKE),
        ("/admin/reload", ""),
        ("/dashboard/key", r#"{"key":"victim"}"#),
    ];
    for (path, body) in changes {
        for (fields, expected) in [
            ("Host: localhost\r\n", 415),
            (plain, 415),
            (foreign, 403),
            (null, 403),
            (site, 403),
            (near, 403),
            (rebound, 421),
        ] {
            let mut client = Client::connect(&running);
            assert_eq!(
                status(&mut client, "POST", path, fields, body),
                expected,
                "{path} {fields}"
            );
        }
    }
    assert_eq!(left(&mut client), 1, "nothing was changed");
    for path in [
        "/",
        "/metrics",
        "/dashboard/rules",
        "/dashboard/history",
        "/dashboard/events",
        "/openapi.json",
    ] {
        for (fields, expected) in [(foreign, 403), (site, 403), (near, 403), (rebound, 421)] {
            assert_eq!(status(&mut client, "GET", path, fields, ""), expected, "{path} {fields}");
        }
    }
    // Health checks are answered for any host name.
    for path in ["/healthz", "/readyz"] {
        for fields in [foreign, site, rebound] {
            assert_eq!(status(&mut client, "GET", path, fields, ""), 200, "{path} {fields}");
        }
    }
    // Requests of the server's own pages, and of clients that are not browsers.
    let own = "Host: localhost:1\r\nContent-Type: application/json\r\nOrigin: http://localhost:1\r\n\
               Sec-Fetch-Site: same-origin\r\n";
    for fields in [json, own] {
        assert_eq!(status(&mut client, "POST", "/v1/peek", fields, TAKE), 200, "{fields}");
    }
    let visit = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\n\
                 Sec-Fetch-Dest: document\r\n";
    assert_eq!(status(&mut client, "GET", "/", visit, ""), 200);
    assert_eq!(status(&mut client, "GET", "/metrics", visit, ""), 403);
}

#[test]
fn host_not_configured_is_rejected() {
    let running = server(|config| {
        config.http.allowed_hosts = vec!["limits.example".into()];
        config.http.token = Some("t".into());
    });
    let mut client = Client::connect(&running);
    for (host, expected) in
        [("limits.example", 401), ("Limits.Example:8443", 401), ("localhost", 401), ("evil", 421)]
    {
        assert_eq!(
            status(&mut client, "GET", "/metrics", &format!("Host: {host}\r\n"), ""),
            expected
        );
    }
    let running = server(|config| config.http.token = Some("t".into()));
    let mut client = Client::connect(&running);
    assert_eq!(status(&mut client, "GET", "/metrics", "Host: any.example\r\n", ""), 401);
}

/// A proxy passes headers on: the host name of the request, and the browser's report about the page. A page whose
/// name resolves to this server has the server's port in `Host`.
#[test]
fn gate_accepts_any_host() {
    let folder = TempDir::new();
    let rules = folder.file("rules.yaml");
    std::fs::write(
        &rules,
        "rules: [{name: all, match: {path: '/**'}, key: path, policy: 'gcra:1/1h'}]",
    )
    .unwrap();
    let running = server(|config| config.rules = vec![rules]);
    let port = running.http.unwrap().port();
    let mut client = Client::connect(&running);
    let mut status_of = |host: &str, more: &str| {
        let fields = format!("Host: {host}\r\n{more}");
        status(&mut client, "GET", "/v1/gate", &fields, "")
    };
    let of_a_page = "Origin: https://other.example\r\nSec-Fetch-Site: cross-site\r\n";
    assert_eq!(status_of("shop.example", &format!("X-Forwarded-Uri: /a\r\n{of_a_page}")), 200);
    assert_eq!(status_of("shop.example:8443", "X-Forwarded-Uri: /a\r\n"), 429);
    assert_eq!(status_of(&format!("evil.example:{port}"), "X-Forwarded-Uri: /b\r\n"), 421);
    assert_eq!(status_of("localhost", "X-Forwarded-Uri: /b\r\n"), 200, "nothing was charged");
    assert_eq!(
        status_of("localhost", of_a_page),
        422,
        "a page cannot send the headers of the request"
    );
}

#[test]
fn host_repeated_or_missing_is_rejected() {
    let running = server(|_| {});
    for fields in ["", "Host: localhost\r\nHost: localhost\r\n"] {
        for (method, path) in [("GET", "/healthz"), ("POST", "/v1/take")] {
            let mut client = Client::connect(&running);
            assert_eq!(status(&mut client, method, path, fields, ""), 400, "{path} {fields:?}");
        }
    }
}

#[test]
fn half_closed_http_client_is_answered() {
    let running = server(|_| {});
    for _ in 0..20 {
        let mut client = Client::connect(&running);
        client.send_json("/v1/take", r#"{"key":"half","policy":"gcra:100/1h"}"#);
        client.stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(client.read_reply().status, 200);
    }
    // An incomplete body is rejected.
    let mut client = Client::connect(&running);
    client.send("POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{");
    client.stream.flush().unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read_reply().status, 400);
    // The server cannot know whether a waiting client is still connected.
    assert_eq!(Client::connect(&running).post("/v1/take", TAKE).status, 200);
    assert_eq!(Client::connect(&running).post("/v1/take", TAKE).status, 200);
    let mut client = Client::connect(&running);
    client.send_json("/v1/take", r#"{"key":"victim","policy":"gcra:2/1h","wait_us":7200000000}"#);
    client.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    client.stream.shutdown(Shutdown::Write).unwrap();
    let _ = client.stream.flush();
    running.until_exactly("waiting", 0);
    running.until_exactly("connected_clients", 1);
}
