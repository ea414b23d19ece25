//! `wait_us`: the answer is held back until the request passes.

use std::{net::Shutdown, time::Duration};

use super::client::{Client, server};
use crate::harness::{TempDir, now};

#[test]
fn wait_us_holds_the_response_until_the_request_passes() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let body = r#"{"key":"k","policy":"gcra:1/100ms","wait_us":60000000}"#;
    assert_eq!(client.post("/v1/take", body).status, 200);
    let start = now();
    assert_eq!(client.post("/v1/take", body).status, 200);
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    let impatient = r#"{"key":"k","policy":"gcra:1/1h","wait_us":1000}"#;
    assert_eq!(client.post("/v1/take", impatient).status, 429, "it is sure to be missed");
}

#[test]
fn wait_us_client_that_leaves_releases_its_units() {
    let running = server(|_| {});
    let body = r#"{"key":"k","policy":"gcra:1/1h","wait_us":36000000000}"#;
    let mut first = Client::connect(&running);
    assert_eq!(first.post("/v1/take", body).status, 200);
    let mut left = Client::connect(&running);
    left.send_json("/v1/take", body);
    running.until_exactly("blocked_clients", 1);
    left.stream.shutdown(Shutdown::Both).unwrap();
    running.until_exactly("blocked_clients", 0);
}

/// Requests that the client has sent behind the one that waits do not hide that it has left.
#[test]
fn wait_us_pipelining_client_that_leaves_releases_its_units() {
    let running = server(|_| {});
    let body = r#"{"key":"k","policy":"gcra:1/1h","wait_us":36000000000}"#;
    assert_eq!(Client::connect(&running).post("/v1/take", body).status, 200);
    let mut left = Client::connect(&running);
    (0..3).for_each(|_| left.send_json("/v1/take", body));
    running.until_exactly("blocked_clients", 1);
    left.stream.shutdown(Shutdown::Both).unwrap();
    running.until_exactly("blocked_clients", 0);
}

/// What a client sends while its request waits is answered afterwards, in order.
#[test]
fn wait_us_requests_behind_a_wait_are_answered_in_order() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let body = r#"{"key":"k","policy":"gcra:1/300ms","wait_us":60000000}"#;
    assert_eq!(client.post("/v1/take", body).status, 200);
    client.send_json("/v1/take", body);
    running.until_exactly("blocked_clients", 1);
    let costs = 1..=20;
    for cost in costs.clone() {
        client.send_json("/v1/peek", format!(r#"{{"key":"p","policy":"gcra:{cost}/1h"}}"#));
    }
    assert_eq!(client.read_reply().status, 200);
    for cost in costs {
        assert_eq!(client.read_reply().json()["limit"], cost);
    }
}

#[test]
fn wait_us_stop_denies_waiting_requests() {
    let mut running = server(|_| {});
    let body = r#"{"key":"k","policy":"gcra:1/1h","wait_us":36000000000}"#;
    let mut client = Client::connect(&running);
    assert_eq!(client.post("/v1/take", body).status, 200);
    client.send_json("/v1/take", body);
    running.until_exactly("blocked_clients", 1);
    running.begin_to_stop();
    assert_eq!(client.read_reply().status, 429);
}

/// A request that waits by the name of a policy is answered by the policy that charged it, even if the rules change
/// while it waits.
#[test]
fn wait_us_response_is_about_the_policy_of_the_request() {
    let folder = TempDir::new();
    let file = folder.file("rules.yaml");
    let named = |name: &str| format!("policies: {{{name}: 'gcra:2/1h:burst=1'}}\nrules: []\n");
    std::fs::write(&file, named("gold")).unwrap();
    let running = server(|config| config.rules = vec![file.clone()]);
    let mut other = Client::connect(&running);
    let key = |client: usize| format!(r#""key":"k{client}","policy":"@gold""#);
    let mut clients: Vec<_> = (0..20).map(|_| Client::connect(&running)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        assert_eq!(client.post("/v1/take", format!("{{{}}}", key(number))).status, 200);
        client.send_json("/v1/take", format!(r#"{{{},"wait_us":7200000000}}"#, key(number)));
    }
    running.until_exactly("blocked_clients", 20);
    std::fs::write(&file, named("silver")).unwrap();
    running.reload().unwrap();
    assert_eq!(other.post("/v1/take", r#"{"key":"x","policy":"@gold"}"#).status, 422);
    for (number, client) in clients.iter_mut().enumerate() {
        // The next one may pass at once.
        let reset = format!(r#"{{"key":"k{number}"}}"#);
        assert_eq!(other.post("/v1/reset", reset).status, 200);
        let reply = client.read_reply();
        assert_eq!(reply.status, 200);
        assert_eq!(
            reply.field("ratelimit-policy"),
            "\"gold\";q=2;w=3600;pb=1".split(";pb").next().unwrap()
        );
    }
    println!(
        "figure: 20 requests that waited while their policy went were answered, none with 422"
    );
}

/// A request that fails leaves no version of the rules to those after it.
#[test]
fn name_that_a_reload_defines_is_found_after_an_error() {
    let folder = TempDir::new();
    let file = folder.file("rules.yaml");
    let named = |limit: &str| format!("policies: {{{limit}}}\nrules: []\n");
    std::fs::write(&file, named("silver: 'fixed-window:9/1h'")).unwrap();
    let running = server(|config| {
        config.rules = vec![file.clone()];
        config.workers = Some(1);
    });
    let mut client = Client::connect(&running);
    let take = r#"{"key":"k","policy":"@gold"}"#;
    for (request, body) in [
        ("/v1/take", take.to_owned()),
        ("/v1/reserve", r#"{"key":"k","policy":"@silver"}"#.to_owned()),
        ("/v1/take_many", format!(r#"{{"requests":[{take}]}}"#)),
        ("/v1/take_all", format!(r#"{{"takes":[{take}]}}"#)),
        ("/v1/hold", r#"{"key":"k","policy":"@gold","id":"x","ttl_us":1000}"#.to_owned()),
    ] {
        assert_eq!(client.post(request, &*body).status, 422, "{request}");
        std::fs::write(&file, named("gold: 'gcra:1000/1h:burst=9'")).unwrap();
        running.reload().unwrap();
        assert_eq!(client.post("/v1/take", take).status, 200, "{request}");
        std::fs::write(&file, named("silver: 'fixed-window:9/1h'")).unwrap();
        running.reload().unwrap();
    }
}

/// All takes are checked before one is decided.
#[test]
fn take_many_with_an_invalid_take_charges_none() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let take = r#"{"key":"a","policy":"gcra:1/1h"}"#;
    let hold = r#"{"key":"b","policy":"concurrency:5/30s"}"#;
    let reply = client.post("/v1/take_many", format!(r#"{{"requests":[{take},{hold}]}}"#));
    assert_eq!(reply.status, 422);
    let detail = reply.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.starts_with("requests[1]: invalid operation under a policy with"), "{detail}");
    assert_eq!(client.post("/v1/take", take).status, 200, "nothing was charged");
}
