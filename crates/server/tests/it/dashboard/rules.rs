//! The rules in force, as the dashboard shows them.

use std::fs;

use serde_json::{Value, json};

use super::{browser::Browser, viewers::Viewer};
use crate::{
    harness::{Running, TempDir},
    http::client::{Client, server},
};

const RULES: &str = "
policies: {plan: 'gcra:30/1m'}
rules:
  - {name: login, match: {path: /login}, key: client, policy: 'fixed-window:3/1h'}
  - {name: tried, match: {path: /try}, key: client, policy: 'fixed-window:1/1h', shadow: true}
";

/// A server by a file of these rules.
pub(super) fn ruled(folder: &TempDir, rules: &str) -> Running {
    fs::write(folder.file("rules.yaml"), rules).unwrap();
    server(|config| config.rules = vec![folder.file("rules.yaml")])
}

/// Sends requests to the gate.
pub(super) fn gate(client: &mut Client, path: &str, times: usize) {
    for _ in 0..times {
        client.send_request("GET", "/v1/gate", &format!("X-Forwarded-Uri: {path}\r\n"));
        client.read_reply();
    }
}

#[test]
fn frames_have_decisions_of_rules() {
    let folder = TempDir::new();
    let server = ruled(&folder, RULES);
    let mut client = Client::connect(&server);
    gate(&mut client, "/login", 2);
    let mut viewer = Viewer::new(&server);
    let rules = &viewer.frame()["rules"];
    assert_eq!((&rules["version"], &rules["count"]), (&1.into(), &2.into()));
    assert_eq!(rules["decisions"][0]["rule"], "login");
    assert_eq!(rules["problem"], Value::Null);
    gate(&mut client, "/try", 3);
    gate(&mut client, "/login", 2);
    let frame = viewer.until(|frame| frame["rules"]["decisions"][1]["denied"] == 1);
    let [tried, login] = [0, 1].map(|at| &frame["rules"]["decisions"][at]);
    // The rule with most decisions since the first viewer came is first.
    assert_eq!((&tried["rule"], &tried["allowed"]), (&"tried".into(), &1.into()));
    assert_eq!((&tried["shadow_denied"], &tried["denied"]), (&2.into(), &0.into()));
    assert_eq!((&login["allowed"], &login["denied"]), (&3.into(), &1.into()));
    let metrics = String::from_utf8(client.get("/metrics").body).unwrap();
    for (rule, outcome, count) in
        [("login", "allowed", 3), ("login", "denied", 1), ("tried", "shadow_denied", 2)]
    {
        let name = "sluicegate_rule_decisions_total";
        let line = format!("{name}{{rule=\"{rule}\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line}{metrics}");
    }
    let response = client.get("/dashboard/rules").json();
    assert_eq!((&response["version"], &response["count"]), (&1.into(), &2.into()));
    assert!(response["rules"][0]["title"].as_str().unwrap().starts_with("login"), "{response}");
    assert_eq!(response["policies"][0]["text"], "gcra:30/1m");
    // Keys that rules produce are shown as others are.
    let frame = viewer.until(|frame| frame["hot"]["denied"][0]["key"].is_string());
    let denied = &frame["hot"]["denied"][0];
    assert!(denied["key"].as_str().unwrap().starts_with("rule:login|"));
    let by = json!({"rule": "login", "limit": "fixed-window:3/1h"});
    assert_eq!(denied["denied_by"], by);
}

#[test]
fn page_shows_a_reload() {
    let folder = TempDir::new();
    let server = ruled(&folder, RULES);
    let browser = Browser::start(1280, 900);
    browser.open(&format!("http://{}/", server.http.unwrap()));
    let await_text = |text: &str| {
        browser.until(&format!("document.querySelector('#rules-status').textContent === '{text}'"));
    };
    await_text("Version 1 is active: 2 rules.");
    gate(&mut Client::connect(&server), "/login", 5);
    let row = "document.querySelector('#decided tbody tr')?";
    browser.until(&format!("{row}.cells[0].textContent === 'login'"));
    browser.until(&format!("{row}.cells[4].textContent === '5'"));

    let titles = "[...document.querySelectorAll('#active-rules-list h4')].map((it) => it.textContent).join()";
    browser.until(&format!("{titles}.includes('tried')"));
    let more =
        format!("{RULES}  - {{name: added, match: {{path: /new}}, key: client, policy: plan}}\n");
    let put = |rules: &str| {
        fs::write(folder.file("new"), rules).unwrap();
        fs::rename(folder.file("new"), folder.file("rules.yaml")).unwrap();
    };
    put(&more);
    await_text("Version 2 is active: 3 rules.");
    browser.until(&format!("{titles}.includes('added')"));
    let age = "document.querySelector('#rules-age').textContent";
    browser.until(&format!("{age}.endsWith('reloaded once.')"));
    // Counters stay, and invalid files are reported.
    browser.until(&format!("{row}.cells[4].textContent === '5'"));
    put("rules: nonsense");
    let problem = "document.querySelector('#rules-problem')";
    browser.until(&format!("!{problem}.hidden && {problem}.textContent.includes('rules.yaml')"));
    await_text("Version 2 is active: 3 rules.");
    put(&more);
    browser.until(&format!("{problem}.hidden"));
    assert_eq!(browser.complaints(), [""; 0]);
}
