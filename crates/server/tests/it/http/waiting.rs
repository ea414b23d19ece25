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
