//! `/v1/gate`, with the requests that proxies send.

use std::fs;

use sluicegate_server::{Config, HeaderName};

use super::client::{Client, HttpReply, server};
use crate::harness::{Running, TempDir};

const RULES: &str = "
rules:
  - name: login
    match: {method: POST, path: /login}
    key: client
    policy: fixed-window:2/1h
  - name: closed
    match: {path: /closed}
    block: true
";

fn with_rules(folder: &TempDir) -> Running {
    serve(folder, RULES, |_| ())
}

fn serve(folder: &TempDir, rules: &str, configure: impl FnOnce(&mut Config)) -> Running {
    let path = folder.file("rules.yaml");
    fs::write(&path, rules).unwrap();
    server(|config| {
        config.rules = vec![path];
        configure(config);
    })
}

/// The response to a request with these headers.
fn decide(client: &mut Client, fields: &[(&str, &str)]) -> HttpReply {
    let lines = fields.iter().map(|(name, value)| format!("{name}: {value}\r\n"));
    client.send_request("GET", "/v1/gate", &lines.collect::<String>());
    client.read_reply()
}

#[test]
fn gate_decides_by_the_rules() {
    let folder = TempDir::new();
    let running = with_rules(&folder);
    let mut client = Client::connect(&running);
    let mut decide = |method: &str, path: &str, from: &str| {
        let fields = format!(
            "X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {path}\r\nX-Forwarded-For: {from}\r\n"
        );
        client.send_request("GET", "/v1/gate", &fields);
        client.read_reply()
    };
    let reply = decide("POST", "/login?next=1", "203.0.113.7");
    assert_eq!((reply.status, reply.field("ratelimit")), (200, r#""login";r=1;t=3600"#));
    assert_eq!(decide("POST", "/login", "203.0.113.7").status, 200);
    let reply = decide("POST", "/login", "198.51.100.1, 203.0.113.7");
    assert_eq!((reply.status, reply.field("retry-after")), (429, "3600"), "the front is invented");
    assert_eq!(reply.json()["violated-policies"], serde_json::json!(["login"]));
    assert_eq!(decide("POST", "/login", "203.0.113.8").status, 200);
    assert_eq!(decide("GET", "/login", "203.0.113.7").status, 200);
    assert_eq!(decide("GET", "/other", "203.0.113.7").field("ratelimit"), "");
    assert_eq!(decide("GET", "/closed", "203.0.113.7").json()["title"], "Blocked");
    let reply = client.get("/v1/gate");
    assert_eq!(reply.status, 422);
    assert!(reply.detail().starts_with("missing X-Forwarded-Uri: expected"));

    // Other operations find named policies too, and the rules can be reloaded.
    let text = format!("policies: {{plan: 'fixed-window:7/1h'}}\n{RULES}");
    fs::write(folder.file("rules.yaml"), text).unwrap();
    let reply = client.post("/admin/reload", "");
    assert_eq!((reply.status, reply.json()["rules"].as_u64()), (200, Some(2)));
    let reply = client.post("/v1/take", r#"{"key":"k","policy":"@plan"}"#);
    assert_eq!(reply.json()["remaining"], 6);
    assert!(reply.field("ratelimit").starts_with(r#""plan";r=6;"#), "{}", reply.field("ratelimit"));
    let reply = client.post("/v1/take", r#"{"key":"k","policy":"@none"}"#);
    assert_eq!(reply.status, 422, "{}", reply.detail());
    fs::write(folder.file("rules.yaml"), "rules: [").unwrap();
    assert_eq!(client.post("/admin/reload", "").status, 422);
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    for line in [
        r#"sluicegate_rule_decisions_total{rule="login",outcome="denied"} 1"#,
        "sluicegate_rules_ok 0",
        "sluicegate_rules 2",
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
}

#[test]
fn gate_403_rejects_by_that_status_and_names_the_other() {
    let folder = TempDir::new();
    let rules = format!("{RULES}  - {{name: user, key: header.x-user, policy: 'gcra:1/1h'}}\n");
    let running = serve(&folder, &rules, |config| config.http.token = Some("secret".into()));
    let mut client = Client::connect(&running);
    let mut decide = |path: &str, fields: &str| {
        client.send_request("GET", path, &format!("Authorization: Bearer secret\r\n{fields}"));
        client.read_reply()
    };
    let login =
        "X-Forwarded-Uri: /login\r\nX-Forwarded-Method: POST\r\nX-Forwarded-For: 203.0.113.7\r\n";
    for _ in 0..2 {
        let reply = decide("/v1/gate/403", login);
        assert_eq!((reply.status, reply.field("sluicegate-status")), (200, ""));
    }
    let reply = decide("/v1/gate/403", login);
    assert_eq!((reply.status, reply.field("sluicegate-status")), (403, "429"));
    assert_eq!(
        (reply.field("retry-after"), reply.field("ratelimit")),
        ("3600", r#""login";r=0;t=3600"#)
    );
    assert_eq!((reply.field("content-type"), &*reply.body), ("", &b""[..]));
    let two_users = "X-Forwarded-Uri: /\r\nX-User: ada\r\nX-User: eve\r\n";
    for (fields, status) in
        [("X-Forwarded-Uri: /closed\r\n", "429"), (two_users, "400"), ("", "422")]
    {
        let reply = decide("/v1/gate/403", fields);
        assert_eq!((reply.status, reply.field("sluicegate-status")), (403, status), "{fields}");
    }
    // A query, which some proxies copy from the client, changes nothing, and no other status is accepted.
    for (path, status) in [("/v1/gate?deny=403", 429), ("/v1/gate/429", 404), ("/v1/gate/200", 404)]
    {
        assert_eq!(decide(path, login).status, status, "{path}");
    }
    // A misconfigured proxy gets an error that names the problem.
    client.send_request("GET", "/v1/gate/403", login);
    assert_eq!(client.read_reply().status, 401);
    client.send_request("POST", "/v1/gate/403", "Authorization: Bearer secret\r\n");
    assert_eq!(client.read_reply().status, 405);
}

/// Test 50 (M1): headers that a client adds to those of its proxy never decide.
#[test]
fn gate_client_header_beside_that_of_the_proxy_never_decides() {
    let folder = TempDir::new();
    let rules = "
rules:
  - {name: login, match: {method: POST, path: /login}, key: client, policy: 'fixed-window:2/1h'}
";
    let proxies: [[&str; 3]; 2] = [
        ["X-Original-URI", "X-Original-Method", "Forwarded"],
        ["X-Forwarded-Uri", "X-Forwarded-Method", "X-Forwarded-For"],
    ];
    let mut rejected = 0;
    for (by_proxy, by_client) in [(0, 1), (1, 0)] {
        let [uri, method, address] = proxies[by_proxy];
        let honest = |from: &str| {
            let from = if address == "Forwarded" { format!("for={from}") } else { from.to_owned() };
            [(uri, "/login".to_owned()), (method, "POST".to_owned()), (address, from)]
        };
        let lies = [
            (proxies[by_client][0], "/healthz"),
            (proxies[by_client][1], "GET"),
            (proxies[by_client][2], if by_client == 0 { "for=1.1.1.1" } else { "1.1.1.1" }),
        ];
        for named in [false, true] {
            let running = serve(&folder, rules, |config| {
                let header = |name: &str| named.then(|| name.parse::<HeaderName>().unwrap());
                config.http.gate.uri_header = header(uri);
                config.http.gate.method_header = header(method);
                config.http.gate.address_header = header(address);
            });
            let mut client = Client::connect(&running);
            let mut with = |from: &str, lies: &[(&str, &str)]| {
                let honest = honest(from);
                let mut fields: Vec<_> = honest.iter().map(|(name, it)| (*name, &**it)).collect();
                fields.extend(lies);
                decide(&mut client, &fields)
            };
            let statuses = [(); 3].map(|()| with("203.0.113.7", &[]).status);
            assert_eq!(statuses, [200, 200, 429], "{uri}");
            for lie in lies {
                let reply = with("203.0.113.7", &[lie]);
                if named {
                    assert_eq!(reply.status, 429, "{uri} {lie:?}");
                } else {
                    assert_eq!(reply.status, 400, "{uri} {lie:?}");
                    let detail = reply.detail().to_lowercase();
                    let at = lies.iter().position(|it| *it == lie).unwrap();
                    for name in [proxies[by_proxy][at], lie.0] {
                        assert!(detail.contains(&name.to_lowercase()), "{detail}");
                    }
                    rejected += 1;
                }
            }
            // A header that agrees with the proxy is accepted, and the rule continues to count.
            assert_eq!(with("203.0.113.8", &[(proxies[by_client][0], "/login")]).status, 200);
            // The same header twice.
            assert_eq!(with("203.0.113.7", &[(uri, "/healthz")]).status, 400, "{uri}");
            assert_eq!(with("203.0.113.7", &[(method, "GET")]).status, 400, "{uri}");
        }
    }
    println!(
        "figure: client headers beside those of the proxy: 0 of 12 decide, {rejected} rejected"
    );
}

/// Test 53 (M4): no value of a header bypasses a spent limit, except a 0 that the rule allows.
#[test]
fn gate_cost_from_a_header_admits_no_more_than_cost_one() {
    let folder = TempDir::new();
    let rules = "
rules:
  - {name: a, match: {path: /a}, cost: header.x-tokens, policy: 'fixed-window:10/1h'}
  - {name: free, match: {path: /free}, cost: {from: header.x-tokens, min: 0}, policy: 'fixed-window:10/1h'}
";
    let running = serve(&folder, rules, |_| ());
    let mut client = Client::connect(&running);
    let mut passed = 0;
    for path in ["/a", "/free"] {
        let mut status = |fields: &[(&str, &str)]| {
            let fields = [&[("X-Forwarded-Uri", path)], fields].concat();
            decide(&mut client, &fields).status
        };
        assert_eq!([(); 11].map(|()| status(&[])), [[200; 10].as_slice(), &[429]].concat()[..]);
        for value in ["0", "-5", "99999999999", "text", "", "-0", "+0", "0.0", "0x0"] {
            let expected = if path == "/free" && value == "0" { 200 } else { 429 };
            for _ in 0..20 {
                let found = status(&[("x-tokens", value)]);
                assert_eq!(found, expected, "{path} {value}");
                passed += usize::from(path == "/a" && found == 200);
            }
        }
    }
    println!("figure: costs from a header on a spent limit: {passed} of 180 pass");
}

/// Test 68 (L13): several values of an attribute that a rule uses are rejected.
#[test]
fn gate_repeated_header_or_parameter_that_a_rule_uses_is_rejected() {
    let folder = TempDir::new();
    let rules = "
rules:
  - {name: a, match: {header.x-plan: free}, key: query.user, policy: 'fixed-window:2/1h'}
";
    let running = serve(&folder, rules, |_| ());
    let mut client = Client::connect(&running);
    for (target, plans, status) in [
        ("/?user=1", &["free"][..], 200),
        ("/?user=1&user=1", &["free", "free"], 200),
        ("/?user=1", &["free", "gold"], 400),
        ("/?user=1", &["gold", "free"], 400),
        ("/?user=1&user=2", &["free"], 400),
        ("/?user=2&us%65r=1", &["free"], 400),
        ("/?other=1&other=2&user=1", &["free"], 429),
    ] {
        let mut fields = vec![("X-Forwarded-Uri", target), ("Accept", "a"), ("Accept", "b")];
        fields.extend(plans.iter().map(|plan| ("X-Plan", *plan)));
        let reply = decide(&mut client, &fields);
        assert_eq!(reply.status, status, "{target} {plans:?}");
        if status == 400 {
            let detail = reply.detail();
            assert!(detail.contains("is given several times with different values"), "{detail}");
        }
    }
}

/// Test 43 (H1), without a proxy: spellings of one path share one limit.
#[test]
fn gate_spellings_of_a_path_share_its_limit() {
    let folder = TempDir::new();
    let rules = "rules: [{name: login, match: {path: /login}, policy: 'fixed-window:2/1h'}]";
    let running = serve(&folder, rules, |_| ());
    let mut client = Client::connect(&running);
    let spellings = [
        "/login",
        "/login#x",
        "/login#?x",
        "/%2flogin",
        "/x%2f..%2flogin",
        "/%2e/login",
        "/./login",
        "/x/../login",
        "//login",
        "///login",
        "//h/login",
        "http://h/login",
        "HTTP://h:80/login",
        "\\login",
        "/x\\..\\login",
        "/%6cogin",
        "/%256cogin",
        "/login%00",
        "/login?x#y",
        "/login/.",
    ];
    let mut passed = 0;
    for spelling in spellings.iter().cycle().take(200) {
        let status = decide(&mut client, &[("X-Forwarded-Uri", spelling)]).status;
        passed += usize::from(status == 200);
        assert!(status == 200 || status == 429, "{spelling}: {status}");
    }
    println!(
        "figure: {passed} of 200 requests in {} spellings of /login pass the gate",
        spellings.len()
    );
    assert_eq!(passed, 2);
    for (spelling, status) in
        [("/lo\tgin", 422), ("/login x", 422), ("/LOGIN", 200), ("/login/", 200)]
    {
        assert_eq!(
            decide(&mut client, &[("X-Forwarded-Uri", spelling)]).status,
            status,
            "{spelling}"
        );
    }
}

/// A proxy that does not set a header that is named would lose the rules for it.
#[test]
fn gate_incomplete_request_is_an_error() {
    let folder = TempDir::new();
    let running = serve(&folder, RULES, |config| {
        config.http.gate.method_header = Some(HeaderName::from_static("x-method"));
    });
    let mut client = Client::connect(&running);
    let uri = ("X-Forwarded-Uri", "/login");
    for (fields, expected) in [
        (
            &[uri, ("X-Forwarded-Method", "POST")][..],
            "missing x-method: expected the original method, because --gate-method-header names it",
        ),
        (
            &[("X-Forwarded-Uri", "login"), ("X-Method", "POST")],
            "invalid X-Forwarded-Uri `login`: expected a path that begins with `/`",
        ),
        (
            &[("X-Method", "POST")],
            "missing X-Forwarded-Uri: expected the original path and query, in visible ASCII",
        ),
    ] {
        let reply = decide(&mut client, fields);
        assert_eq!(reply.status, 422, "{fields:?}");
        assert_eq!(reply.json()["detail"], expected, "{fields:?}");
    }
    for uri in ["/", "*", "http://example.com/login", "/?a"] {
        let fields = [("X-Forwarded-Uri", uri), ("X-Method", "GET")];
        assert_eq!(decide(&mut client, &fields).status, 200, "{uri}");
    }
}
