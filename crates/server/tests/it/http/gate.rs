//! `/v1/gate`, as a proxy asks it.

use std::fs;

use super::client::{Client, server};
use crate::harness::{Folder, Running};

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

fn with_rules(folder: &Folder) -> Running {
    let path = folder.file("rules.yaml");
    fs::write(&path, RULES).unwrap();
    server(|config| config.rules = vec![path])
}

#[test]
fn a_proxy_is_told_by_the_rules() {
    let folder = Folder::new();
    let running = with_rules(&folder);
    let mut client = Client::connect(&running);
    let mut ask = |method: &str, path: &str, from: &str| {
        let fields = format!(
            "X-Forwarded-Method: {method}\r\nX-Forwarded-Uri: {path}\r\nX-Forwarded-For: {from}\r\n"
        );
        client.ask("GET", "/v1/gate", &fields);
        client.hear()
    };
    let heard = ask("POST", "/login?next=1", "203.0.113.7");
    assert_eq!((heard.status, heard.field("ratelimit")), (200, r#""login";r=1;t=3600"#));
    assert_eq!(ask("POST", "/login", "203.0.113.7").status, 200);
    let heard = ask("POST", "/login", "198.51.100.1, 203.0.113.7");
    assert_eq!((heard.status, heard.field("retry-after")), (429, "3600"), "the front is invented");
    assert_eq!(heard.json()["violated-policies"], serde_json::json!(["login"]));
    assert_eq!(ask("POST", "/login", "203.0.113.8").status, 200);
    assert_eq!(ask("GET", "/login", "203.0.113.7").status, 200);
    assert_eq!(ask("GET", "/other", "203.0.113.7").field("ratelimit"), "");
    assert_eq!(ask("GET", "/closed", "203.0.113.7").json()["title"], "Blocked");
    let heard = client.get("/v1/gate");
    assert_eq!(heard.status, 422);
    assert!(heard.detail().contains("`X-Forwarded-Uri: /path?query` would do"));

    // Named policies are there for the verbs as well, and the rules may be read again.
    let text = format!("policies: {{plan: 'fixed-window:7/1h'}}\n{RULES}");
    fs::write(folder.file("rules.yaml"), text).unwrap();
    let heard = client.post("/admin/reload", "");
    assert_eq!((heard.status, heard.json()["rules"].as_u64()), (200, Some(2)));
    let heard = client.post("/v1/take", r#"{"key":"k","policy":"@plan"}"#);
    assert_eq!(heard.json()["remaining"], 6);
    assert!(heard.field("ratelimit").starts_with(r#""plan";r=6;"#), "{}", heard.field("ratelimit"));
    let heard = client.post("/v1/take", r#"{"key":"k","policy":"@none"}"#);
    assert_eq!(heard.status, 422, "{}", heard.detail());
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
