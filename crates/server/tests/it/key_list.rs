//! `SG.KEYS`: keys whose names the server has.

use std::collections::BTreeSet;

use serde_json::json;
use sluicegate_resp::Value;
use sluicegate_server::DashboardMode;
use sluicegate_testing::eventually;

use crate::{
    harness::{RawClient, Running},
    http::client::{Client, server},
};

/// The cursor and the keys of one reply.
fn page(peer: &mut RawClient, line: &str) -> (String, Vec<String>) {
    let Value::Array(parts) = peer.call(line) else { panic!("no array") };
    let [Value::Bulk(cursor), Value::Array(keys)] = &parts[..] else { panic!("{parts:?}") };
    let text = |value: &Value| match value {
        Value::Bulk(text) => String::from_utf8(text.clone()).unwrap(),
        other => panic!("no text: {other:?}"),
    };
    (String::from_utf8(cursor.clone()).unwrap(), keys.iter().map(text).collect())
}

/// All keys, by a walk with cursors.
fn walk(peer: &mut RawClient, options: &str) -> BTreeSet<String> {
    let (mut cursor, mut found) = ("0".to_owned(), BTreeSet::new());
    loop {
        let (next, keys) = page(peer, format!("SG.KEYS {cursor} {options}").trim_end());
        found.extend(keys);
        cursor = next;
        if cursor == "0" {
            return found;
        }
    }
}

#[test]
fn sg_keys_lists_sampled_keys_page_by_page() {
    let server = server(|_| {});
    let mut peer = server.connect();
    // The first call has the keys sampled from now on.
    assert_eq!(page(&mut peer, "SG.KEYS 0"), ("0".to_owned(), Vec::new()));
    eventually("all keys are listed", || {
        for number in 0..40 {
            peer.call(&format!("SG.TAKE user:{number} gcra:1000/1h"));
        }
        for _ in 0..2 {
            peer.call("SG.TAKE hot gcra:1/1h");
        }
        let found = walk(&mut peer, "COUNT 7");
        if found.len() == 41 { Ok(()) } else { Err(found) }
    });
    assert_eq!(walk(&mut peer, "MATCH user:1*").len(), 11);
    assert_eq!(walk(&mut peer, "DENIED"), BTreeSet::from(["hot".to_owned()]));
    assert!(page(&mut peer, "SG.KEYS 0 COUNT 7").1.len() <= 7);
    // The page lists the same keys, denied ones first.
    let listed = Client::connect(&server).post("/dashboard/keys", "{}").json();
    assert_eq!((&listed["count"], &listed["keys"][0]["key"]), (&json!(41), &json!("hot")));
    assert_eq!(listed["keys"][0]["denied_by"]["limit"], "gcra:1/1h");
    let wanted = json!({"prefix": "user:3", "denied": false}).to_string();
    assert_eq!(Client::connect(&server).post("/dashboard/keys", wanted).json()["count"], 11);
}

#[test]
fn sg_keys_invalid_arguments_are_named() {
    let server = Running::new();
    let mut peer = server.connect();
    for (line, expected) in [
        ("SG.KEYS x", "ERR invalid cursor `x`: expected 0 or the cursor of the last reply"),
        ("SG.KEYS 0 COUNT 0", "ERR invalid COUNT `0`: expected 1 to 1000"),
        ("SG.KEYS 0 COUNT 1001", "ERR invalid COUNT `1001`: expected 1 to 1000"),
        ("SG.KEYS 0 COUNT", "ERR missing value of COUNT: expected 1 to 1000"),
        (
            "SG.KEYS 0 MATCH u?er*",
            "ERR invalid MATCH `u?er*`: expected a prefix and `*`, as `user:*`",
        ),
        ("SG.KEYS 0 TYPE string", "ERR unknown option `TYPE`: expected COUNT, MATCH or DENIED"),
        (
            "SG.KEYS",
            "ERR wrong number of arguments for 'sg.keys' command; expected SG.KEYS cursor [COUNT count] [MATCH prefix] [DENIED]",
        ),
    ] {
        assert_eq!(peer.error(line), expected);
    }
}

#[test]
fn sg_keys_without_visible_keys_is_an_error() {
    for mode in [DashboardMode::Masked, DashboardMode::NoKeys, DashboardMode::Off] {
        let server = Running::with(|config| config.dashboard = mode);
        let error = server.connect().error("SG.KEYS 0");
        assert_eq!(error, "ERR SG.KEYS is disabled: it needs --dashboard on");
    }
}
