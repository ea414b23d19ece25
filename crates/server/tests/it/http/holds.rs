//! Holds over HTTP, and operations on several keys.

use serde_json::{Value, json};

use super::client::{Client, server};

/// The responses to requests of one client, at a time that the test sets.
struct Requests(Client);

impl Requests {
    fn send(&mut self, path: &str, at_us: u64, mut body: Value) -> (u16, Value) {
        body["at_us"] = at_us.into();
        let reply = self.0.post(path, body.to_string());
        (reply.status, reply.json())
    }
}

fn hold(id: &str, cost: u32) -> Value {
    json!({"key": "k", "policy": "concurrency:2/30s", "id": id, "cost": cost})
}

fn settle(id: &str) -> Value {
    json!({"key": "k", "policy": "concurrency:2/30s", "id": id})
}

#[test]
fn hold_settled_makes_room_for_the_next() {
    let running = server(|config| config.test_clock = true);
    let mut requests = Requests(Client::connect(&running));
    let (status, first) = requests.send("/v1/hold", 0, hold("a", 1));
    assert_eq!((status, &first["remaining"]), (200, &json!(1)));
    assert_eq!(requests.send("/v1/hold", 0, hold("a", 1)).1, first, "a repeated hold is harmless");
    assert_eq!(requests.send("/v1/hold", 0, hold("b", 1)).0, 200);
    let (status, denied) = requests.send("/v1/hold", 1_000_000, hold("c", 1));
    assert_eq!((status, &denied["retry_after_us"]), (429, &json!(29_000_000)));
    assert_eq!(denied["detail"], "Retry after 29 seconds.");
    let (status, settled) = requests.send("/v1/settle", 1_000_000, settle("a"));
    assert_eq!(
        (status, &settled["allowed"], &settled["remaining"]),
        (200, &json!(true), &json!(1))
    );
    assert_eq!(requests.send("/v1/hold", 1_000_000, hold("c", 1)).0, 200);
    // Not settled, it ends with its lifetime.
    assert_eq!(requests.send("/v1/hold", 29_999_999, hold("d", 1)).0, 429);
    assert_eq!(requests.send("/v1/hold", 30_000_000, hold("d", 1)).0, 200);
}

#[test]
fn settle_and_renew_id_not_open_answer_200_and_not_allowed() {
    let running = server(|config| config.test_clock = true);
    let mut requests = Requests(Client::connect(&running));
    let open =
        json!({"key": "k", "policy": "gcra:10/10s", "id": "a", "cost": 4, "ttl_us": 5_000_000});
    let name = |used: Option<u32>| {
        let mut body = json!({"key": "k", "policy": "gcra:10/10s", "id": "a"});
        if let Some(used) = used {
            body["used"] = used.into();
        }
        body
    };
    assert_eq!(requests.send("/v1/hold", 0, open).1["remaining"], 6);
    let mut renewal = name(None);
    renewal["ttl_us"] = 60_000_000.into();
    assert_eq!(requests.send("/v1/renew", 0, renewal.clone()).1["allowed"], true);
    assert_eq!(requests.send("/v1/settle", 0, name(Some(3))).1["remaining"], 7);
    for (path, body) in [("/v1/settle", name(Some(3))), ("/v1/renew", renewal)] {
        let (status, answer) = requests.send(path, 0, body);
        let actual =
            ["allowed", "never", "remaining", "retry_after_us"].map(|it| answer[it].clone());
        assert_eq!(
            (status, actual),
            (200, [json!(false), json!(true), json!(7), json!(null)]),
            "{path}"
        );
    }
    assert_eq!(
        (running.info_value("allowed"), running.info_value("denied")),
        (1, 0),
        "one request for room"
    );
}

#[test]
fn hold_without_settle_is_charged_when_it_expires() {
    let running = server(|config| config.test_clock = true);
    let mut requests = Requests(Client::connect(&running));
    let policy = "fixed-window:10/1h";
    let open = json!({"key": "k", "policy": policy, "id": "a", "cost": 4, "ttl_us": 1000});
    assert_eq!(requests.send("/v1/hold", 0, open).0, 200);
    let late = json!({"key": "k", "policy": policy, "id": "a", "used": 0});
    let (_, answer) = requests.send("/v1/settle", 1000, late);
    assert_eq!((&answer["allowed"], &answer["remaining"]), (&json!(false), &json!(6)));
}

#[test]
fn hold_request_invalid_is_rejected() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let long = "x".repeat(65);
    let with = |more: &str| format!(r#"{{"key":"k","policy":"concurrency:2/30s"{more}}}"#);
    let gcra = |more: &str| format!(r#"{{"key":"k","policy":"gcra:2/30s","id":"a"{more}}}"#);
    let id_of = |id: &str, more: &str| with(&format!(r#","id":"{id}"{more}"#));
    let take = r#"{"key":"k","policy":"gcra:1/1s"}"#;
    let nine = [take; 9].join(",");
    for (path, body, expected) in [
        ("/v1/hold", with(""), "missing `id`: expected a string of 1 to 64 bytes"),
        ("/v1/hold", id_of("", ""), "invalid id of 0 bytes: expected 1 to 64 bytes"),
        ("/v1/hold", id_of(&long, ""), "invalid id of 65 bytes: expected 1 to 64 bytes"),
        ("/v1/settle", id_of("", ""), "invalid id of 0 bytes"),
        ("/v1/renew", id_of(&long, ""), "invalid id of 65 bytes"),
        ("/v1/hold", with(r#","id":7"#), "invalid `id` `7`: expected a string"),
        (
            "/v1/hold",
            id_of("a", r#","ttl_us":0"#),
            "invalid `ttl_us` `0`: expected 1000 to 30000000 microseconds",
        ),
        (
            "/v1/renew",
            id_of("a", r#","ttl_us":30000001"#),
            "invalid `ttl_us` `30000001`: expected 1000 to 30000000 microseconds",
        ),
        (
            "/v1/hold",
            gcra(r#","ttl_us":86400000001"#),
            "invalid `ttl_us` `86400000001`: expected 1000 to 86400000000 microseconds",
        ),
        (
            "/v1/hold",
            gcra(r#","ttl_us":"1s""#),
            "invalid `ttl_us`: expected a whole number from 0 to",
        ),
        (
            "/v1/hold",
            gcra(""),
            "missing `ttl_us`: expected 1000 to 86400000000 microseconds; only a policy with `concurrency` has \
             a default",
        ),
        (
            "/v1/take_all",
            format!(r#"{{"takes":[{take}],"id":"a"}}"#),
            "missing `ttl_us`: expected 1000 to",
        ),
        (
            "/v1/hold",
            id_of("a", r#","used":1"#),
            "unexpected `used`: it is only valid for /v1/settle",
        ),
        (
            "/v1/settle",
            id_of("a", r#","cost":1"#),
            "unexpected `cost`: it is only valid for /v1/hold",
        ),
        (
            "/v1/settle",
            id_of("a", r#","ttl_us":1000"#),
            "unexpected `ttl_us`: it is only valid for /v1/hold and /v1/renew",
        ),
        (
            "/v1/settle",
            id_of("a", r#","wait_us":1"#),
            "unexpected `wait_us`: it is only valid for /v1/hold",
        ),
        (
            "/v1/hold",
            id_of("a", r#","id_base64":"YQ==""#),
            "both `id` and `id_base64` are given: expected one of them",
        ),
        (
            "/v1/hold",
            with(r#","id_base64":"a""#),
            "invalid `id_base64`: expected standard Base64 with padding",
        ),
        (
            "/v1/hold",
            r#"{"key":"k","policy":"leaky-queue:1/1s","id":"a","ttl_us":1000}"#.to_owned(),
            "expected one without `leaky-queue`",
        ),
        ("/v1/take", with(""), "concurrency"),
        (
            "/v1/take_all",
            r#"{"takes":[]}"#.to_owned(),
            "invalid `takes`: expected 1 to 8 takes, not 0",
        ),
        (
            "/v1/take_all",
            format!(r#"{{"takes":[{nine}]}}"#),
            "invalid `takes`: expected 1 to 8 takes, not 9",
        ),
        (
            "/v1/take_all",
            format!(r#"{{"takes":[{take},{{"key":"k"}}]}}"#),
            "takes[1]: missing `policy`",
        ),
        (
            "/v1/take_all",
            r#"{"takes":[{"key":"k","cost":"2"}]}"#.to_owned(),
            "takes[0]: invalid `cost`: expected a whole number",
        ),
        (
            "/v1/take_all",
            format!(r#"{{"takes":[{take}],"ttl_us":1000}}"#),
            "`ttl_us` is given without `id`: expected both",
        ),
        (
            "/v1/take_all",
            format!(r#"{{"takes":[{take}],"id":"{long}","ttl_us":1000}}"#),
            "invalid id of 65 bytes",
        ),
        ("/v1/take_all", r#"{"id":"a"}"#.to_owned(), "missing `takes`: expected 1 to 8 takes"),
        ("/v1/settle_all", "{}".to_owned(), "missing `settles`: expected 1 to 8 settles"),
        ("/v1/settle_all", format!(r#"{{"settles":[{take}]}}"#), "missing `id`"),
        (
            "/v1/settle_all",
            format!(r#"{{"settles":[{take}],"id":""}}"#),
            "settles[0]: invalid id of 0 bytes",
        ),
        (
            "/v1/settle_all",
            format!(r#"{{"settles":[{}],"id":"a"}}"#, gcra("")),
            "settles[0]: unexpected `id`: it is only valid for all `settles` together",
        ),
    ] {
        let reply = client.post(path, &body);
        let detail = reply.detail();
        assert_eq!(reply.status, 422, "{path} {body}: {detail}");
        assert!(detail.contains(expected), "{path} {body}: {detail}");
    }
}

#[test]
fn take_all_holds_all_keys_or_none() {
    let running = server(|config| config.test_clock = true);
    let mut requests = Requests(Client::connect(&running));
    let both = |id: &str, tokens: u32| {
        json!({
            "takes": [
                {"key": "rpm", "policy": "fixed-window:10/1m"},
                {"key": "tpm", "policy": "fixed-window:100/1m", "cost": tokens},
            ],
            "id": id,
            "ttl_us": 30_000_000,
        })
    };
    let (status, first) = requests.send("/v1/take_all", 0, both("a", 60));
    let actual = ["allowed", "remaining", "binding_key"].map(|name| first[name].clone());
    assert_eq!((status, actual), (200, [json!(true), json!(9), json!(0)]));
    assert_eq!([0, 1].map(|at| first["decisions"][at]["remaining"].clone()), [json!(9), json!(40)]);
    let (status, denied) = requests.send("/v1/take_all", 0, both("b", 60));
    assert_eq!((status, &denied["binding_key"]), (429, &json!(1)));
    assert_eq!(
        [0, 1].map(|at| denied["decisions"][at]["allowed"].clone()),
        [json!(true), json!(false)]
    );
    assert_eq!(denied["violated-policies"], json!(["default"]));
    let peek = |key: &str, policy: &str| json!({"key": key, "policy": policy});
    let (_, left) = requests.send("/v1/peek", 0, peek("rpm", "fixed-window:10/1m"));
    assert_eq!(left["remaining"], 9, "the denied one holds nothing");
    let settles = json!({
        "settles": [
            {"key": "rpm", "policy": "fixed-window:10/1m"},
            {"key": "tpm", "policy": "fixed-window:100/1m", "used": 23},
        ],
        "id": "a",
    });
    for allowed in [true, false] {
        let (status, answer) = requests.send("/v1/settle_all", 0, settles.clone());
        let actual = [0, 1].map(|at| {
            let decision = &answer["decisions"][at];
            (decision["allowed"].clone(), decision["remaining"].clone())
        });
        let expected = [(json!(allowed), json!(9)), (json!(allowed), json!(77))];
        assert_eq!((status, actual), (200, expected), "a settle that is repeated charges once");
    }
    // Without an id it takes.
    let mut take = both("c", 77);
    take.as_object_mut().unwrap().retain(|name, _| name == "takes");
    assert_eq!(requests.send("/v1/take_all", 0, take.clone()).0, 200);
    assert_eq!(requests.send("/v1/take_all", 0, take).0, 429);
}

#[test]
fn hold_headers_count_concurrent_requests() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let mut post = |id: &str| {
        let body = format!(r#"{{"key":"k","policy":"concurrency:1/30s","id":"{id}","at_us":0}}"#);
        let reply = client.post("/v1/hold", body);
        ["ratelimit-policy", "ratelimit", "retry-after"].map(|name| reply.field(name).to_owned())
    };
    let policy = r#""default";q=1;qu="concurrent-requests""#;
    assert_eq!(post("a"), [policy, r#""default";r=0"#, ""]);
    assert_eq!(post("b"), [policy, r#""default";r=0;t=30"#, "30"]);
}

#[test]
fn hold_over_http_is_settled_over_resp() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let body = r#"{"key":"k","policy":"concurrency:1/30s","id":"a"}"#;
    assert_eq!(client.post("/v1/hold", body).status, 200);
    let mut resp = running.connect();
    assert_eq!(resp.integers("SG.HOLD k concurrency:1/30s b")[0], 0);
    assert_eq!(resp.integers("SG.SETTLE k concurrency:1/30s a")[0], 1);
    assert_eq!(client.post("/v1/settle", body).json()["allowed"], false);
}

#[test]
fn hold_waits_until_a_settle_and_leaves_when_its_client_does() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let waiting = |id: &str, path: &str| {
        let hold =
            json!({"key": "k", "policy": "concurrency:1/1h", "id": id, "wait_us": 1_800_000_000});
        let both = json!({
            "takes": [
                {"key": "other", "policy": "concurrency:9/1h"}, {"key": "k", "policy": "concurrency:1/1h"},
            ],
            "id_base64": "/w==", "wait_us": 1_800_000_000,
        });
        let mut waiter = Client::connect(&running);
        waiter.send_json(path, if path == "/v1/hold" { hold } else { both }.to_string());
        waiter
    };
    let of = |id: &str| json!({"key": "k", "policy": "concurrency:1/1h", "id": id}).to_string();
    assert_eq!(client.post("/v1/hold", of("a")).status, 200);
    let mut next = waiting("b", "/v1/hold");
    running.until_exactly("blocked_clients", 1);
    let leaves = waiting("c", "/v1/hold");
    running.until_exactly("blocked_clients", 2);
    drop(leaves);
    running.until_exactly("blocked_clients", 1);
    let mut last = waiting("", "/v1/take_all");
    running.until_exactly("blocked_clients", 2);
    assert_eq!(client.post("/v1/settle", of("a")).status, 200);
    assert_eq!(next.read_reply().status, 200);
    running.until_exactly("blocked_clients", 1);
    assert_eq!(client.post("/v1/settle", of("b")).status, 200);
    assert_eq!(last.read_reply().status, 200);
    let settle = json!({"key": "k", "policy": "concurrency:1/1h", "id_base64": "/w=="});
    assert_eq!(client.post("/v1/settle", settle.to_string()).json()["allowed"], true);
    let late =
        json!({"key": "k", "policy": "concurrency:1/1h", "id": "d", "wait_us": 10_000, "cost": 2});
    assert_eq!(client.post("/v1/hold", late.to_string()).json()["never"], true);
}

#[test]
fn take_all_with_a_key_twice_waits_in_the_queue_of_the_denying_key() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let of = |id: &str| json!({"key": "k", "policy": "concurrency:1/1h", "id": id}).to_string();
    assert_eq!(client.post("/v1/hold", of("a")).status, 200);
    let body = json!({
        "takes": [
            {"key": "other", "policy": "concurrency:9/1h"}, {"key": "other", "policy": "concurrency:9/1h"},
            {"key": "k", "policy": "concurrency:1/1h"},
        ],
        "id": "b", "wait_us": 1_800_000_000,
    });
    let mut waiter = Client::connect(&running);
    waiter.send_json("/v1/take_all", body.to_string());
    running.until_exactly("blocked_clients", 1);
    assert_eq!(client.post("/v1/settle", of("a")).status, 200);
    assert_eq!(waiter.read_reply().status, 200);
}

#[test]
fn take_all_with_a_key_twice_has_a_decision_for_each_take() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let mut post = |more: &str, status: u16| {
        let takes = r#"[{"key":"a","policy":"gcra:5/1h"},{"key":"a","policy":"gcra:5/1h","cost":3},{"key":"b","policy":"gcra:1/1h"}]"#;
        let reply = client.post("/v1/take_all", format!(r#"{{"takes":{takes}{more}}}"#));
        assert_eq!(reply.status, status, "{more}");
        let reply = reply.json();
        let decisions = reply["decisions"].as_array().unwrap().iter();
        let decisions: Vec<_> = decisions
            .map(|it| (it["allowed"].as_bool().unwrap(), it["remaining"].as_u64().unwrap()))
            .collect();
        (reply["binding_key"].as_u64().unwrap(), decisions)
    };
    // The first take of a key counts.
    assert_eq!(post("", 200), (2, vec![(true, 4), (true, 4), (true, 0)]));
    for more in ["", r#","wait_us":1"#, r#","id":"h","ttl_us":1000"#] {
        assert_eq!(post(more, 429), (2, vec![(true, 4), (true, 4), (false, 0)]), "{more}");
    }
}
