//! `wait_us`: the answer is held back until the request passes.

use std::{net::Shutdown, time::Duration};

use super::client::{Client, server};
use crate::harness::now;

#[test]
fn the_answer_is_held_until_the_request_passes() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let ask = r#"{"key":"k","policy":"gcra:1/100ms","wait_us":60000000}"#;
    assert_eq!(client.post("/v1/take", ask).status, 200);
    let start = now();
    assert_eq!(client.post("/v1/take", ask).status, 200);
    assert!(start.elapsed() >= Duration::from_millis(50), "{:?}", start.elapsed());
    let impatient = r#"{"key":"k","policy":"gcra:1/1h","wait_us":1000}"#;
    assert_eq!(client.post("/v1/take", impatient).status, 429, "it is sure to be missed");
}

#[test]
fn who_leaves_gives_its_place_back() {
    let running = server(|_| {});
    let ask = r#"{"key":"k","policy":"gcra:1/1h","wait_us":36000000000}"#;
    let mut first = Client::connect(&running);
    assert_eq!(first.post("/v1/take", ask).status, 200);
    let mut left = Client::connect(&running);
    left.ask_json("/v1/take", ask);
    running.until_told("blocked_clients", 1);
    left.stream.shutdown(Shutdown::Both).unwrap();
    running.until_told("blocked_clients", 0);
}

#[test]
fn a_stop_denies_those_who_wait() {
    let mut running = server(|_| {});
    let ask = r#"{"key":"k","policy":"gcra:1/1h","wait_us":36000000000}"#;
    let mut client = Client::connect(&running);
    assert_eq!(client.post("/v1/take", ask).status, 200);
    client.ask_json("/v1/take", ask);
    running.until_told("blocked_clients", 1);
    running.begin_to_stop();
    assert_eq!(client.hear().status, 429);
}
