//! `/admin/...`: an operator resets and blocks keys.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_proto::rls::rate_limit_response::rate_limit::Unit;
use sluicegate_server::Config;
use sluicegate_testing::{Engine, Server, eventually};

use super::client::{Client, HttpReply, server};
use crate::{
    envoy::client::{Service, limited, long_unit, over_limit_and_remaining},
    harness::{TempDir, any_port, now, size},
    store::on,
};

/// A client that gives the token `secret`.
struct Operator(Client);

impl Operator {
    fn call(&mut self, method: &str, path: &str, body: &str) -> HttpReply {
        self.0.send(format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        self.0.read_reply()
    }

    fn post(&mut self, path: &str, body: &Value) -> HttpReply {
        self.call("POST", path, &body.to_string())
    }

    fn blocks(&mut self) -> Value {
        self.call("GET", "/admin/blocks", "").json()
    }
}

fn with_token(config: &mut Config) {
    config.http.address = Some(any_port());
    config.http.token = Some("secret".to_owned());
}

/// Guesses are delayed, counted and logged as those of a password are; a guess that is withdrawn delays the next ones too.
#[test]
fn wrong_token_is_delayed_and_counted() {
    let server = server(|config| config.http.token = Some("secret".to_owned()));
    let tries = size("SLUICEGATE_WRONG_TOKENS", 40);
    let mut guesser = Client::connect(&server);
    let start = now();
    for guess in 0..tries {
        guesser.send_request("GET", "/metrics", &format!("Authorization: Bearer wrong{guess}\r\n"));
    }
    let mut other = Operator(Client::connect(&server));
    assert_eq!(other.call("GET", "/metrics", "").status, 200, "others do not wait");
    for _ in 0..tries {
        let reply = guesser.read_reply();
        let expected = "invalid token: expected `Authorization: Bearer TOKEN`";
        assert_eq!((reply.status, &*reply.detail()), (401, expected));
    }
    let took = start.elapsed();
    println!("figure: {tries} wrong tokens on one connection took {took:?}");
    assert!(took >= Duration::from_millis(5 * tries as u64), "{took:?}");
    // A missing token is no guess.
    guesser.send_request("GET", "/metrics", "");
    assert_eq!(guesser.read_reply().status, 401);
    guesser.send_request("GET", "/metrics", "Authorization: Bearer secret\r\n");
    assert_eq!(guesser.read_reply().status, 200);
    assert_eq!(server.info_value("login_failures"), tries as u64);
}

#[test]
fn actions_need_a_token_that_is_configured_and_given() {
    let order = json!({"key": "k", "duration_us": 60_000_000});
    let open = server(|_| {});
    for path in ["/admin/reset", "/admin/block", "/admin/unblock"] {
        let reply = Client::connect(&open).post(path, order.to_string());
        let detail = "actions on keys are disabled: start the server with --http-token";
        assert_eq!((reply.status, &*reply.detail()), (403, detail), "{path}");
    }
    assert_eq!(Client::connect(&open).get("/admin/blocks").status, 403);
    let closed = server(with_token);
    for path in ["/admin/reset", "/admin/block", "/admin/unblock"] {
        let reply = Client::connect(&closed).post(path, order.to_string());
        assert_eq!(reply.status, 401, "{path}");
    }
    assert_eq!(Client::connect(&closed).get("/admin/blocks").status, 401);
    let foreign = "POST /admin/block HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
                   Content-Type: application/json\r\nOrigin: http://evil.example\r\n\
                   Content-Length: 2\r\n\r\n{}";
    let mut client = Client::connect(&closed);
    client.send(foreign);
    let reply = client.read_reply();
    assert_eq!(reply.status, 403);
    assert!(reply.detail().contains("another origin"), "{}", reply.detail());
    client.send(foreign.replace("Origin: http://evil.example\r\n", "").replace("json", "xml"));
    assert_eq!(client.read_reply().status, 415, "a form cannot send JSON");
    assert_eq!(Operator(Client::connect(&closed)).blocks()["count"], 0);
}

#[test]
fn reload_of_another_content_type_is_rejected_and_names_it() {
    let server = server(with_token);
    let mut client = Client::connect(&server);
    for (content_type, detail) in [
        ("Content-Type: text/plain\r\n", "invalid Content-Type `text/plain`"),
        ("", "missing Content-Type"),
    ] {
        client.send(format!(
            "POST /admin/reload HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
             {content_type}Content-Length: 0\r\n\r\n"
        ));
        let reply = client.read_reply();
        assert_eq!(reply.status, 415);
        assert_eq!(reply.detail(), format!("{detail}: expected `application/json`"));
    }
}

#[test]
fn blocked_key_is_denied_on_every_protocol_until_it_is_unblocked() {
    let folder = TempDir::new();
    let rules = "rules: [{name: login, match: {path: /login}, key: path, policy: 'gcra:9/1h'}, \
                 {name: all, match: {path: /login}, key: client, policy: 'gcra:9/1h'}]\n";
    std::fs::write(folder.file("rules.yaml"), rules).unwrap();
    let service = Service::with(|config| {
        with_token(config);
        config.rules = vec![folder.file("rules.yaml")];
    });
    let server = &service.server;
    let mut operator = Operator(Client::connect(server));
    let unit = if long_unit() == Unit::Year { "year" } else { "week" };
    let descriptor = format!("limit:6:5/{unit}:4:shop:4:user:1:7");
    let keys = ["user:7", &descriptor, "rule:login|/login"];
    for key in keys {
        let order = json!({"key": key, "duration_us": 60_000_000});
        assert_eq!(operator.post("/admin/block", &order).status, 200);
    }
    let listed = operator.blocks();
    assert_eq!((&listed["count"], &listed["blocks"][0]["key"]), (&json!(3), &json!(keys[0])));

    let mut peer = server.connect();
    for command in ["SG.TAKE", "SG.PEEK"] {
        let integers = peer.integers(&format!("{command} user:7 gcra:30/1m"));
        let [0, 30, 0, retry @ 55_000_000..=60_000_000, reset, 0, 0] = integers[..] else {
            panic!("{integers:?}")
        };
        assert_eq!(retry, reset);
    }
    assert_eq!(peer.integers("SG.WAIT user:7 gcra:30/1m TIMEOUT 1000")[0], 0);
    // Another key, in the same batch, is decided as usual.
    peer.send("SG.TAKE user:8 gcra:30/1m\r\nSG.TAKE user:7 gcra:30/1m\r\n");
    let [open, blocked] = [(); 2].map(|()| crate::harness::integers(&peer.read_reply()));
    assert_eq!((open[0], open[2], blocked[0]), (1, 29, 0));

    let take = json!({"key": "user:7", "policy": "gcra:30/1m"});
    let reply = operator.post("/v1/take", &take);
    assert_eq!(reply.status, 429);
    assert!((55..=60).contains(&reply.field("retry-after").parse::<u64>().unwrap()));
    let many = operator.post("/v1/take_many", &json!({"requests": [take]})).json();
    assert_eq!(many["decisions"][0]["allowed"], false);
    operator.0.send(
        "GET /v1/gate HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer secret\r\n\
         X-Forwarded-Uri: /login\r\n\r\n",
    );
    let reply = operator.0.read_reply();
    assert_eq!(reply.status, 429);
    assert!((55..=60).contains(&reply.field("retry-after").parse::<u64>().unwrap()));
    assert_eq!(
        over_limit_and_remaining(&service.status_of(limited(&[("user", "7")], 5))),
        (true, 0)
    );

    // Nothing was charged, on the other key of the gate either.
    for key in keys {
        let reply = operator.post("/admin/unblock", &json!({"key": key}));
        assert_eq!(reply.json()["existed"], true);
    }
    assert_eq!(peer.integers("SG.TAKE user:7 gcra:30/1m")[..3], [1, 30, 29]);
    assert_eq!(
        over_limit_and_remaining(&service.status_of(limited(&[("user", "7")], 5))),
        (false, 4)
    );
    assert_eq!(peer.integers("SG.PEEK rule:all|127.0.0.1 gcra:9/1h")[2], 9);
    assert_eq!(operator.post("/admin/unblock", &json!({"key": "user:7"})).json()["existed"], false);
}

#[test]
fn block_expires_by_itself_and_ends_by_number() {
    let server = server(with_token);
    let mut operator = Operator(Client::connect(&server));
    let reply = operator.post("/admin/block", &json!({"key": "a", "duration_us": 1_000_000}));
    assert_eq!(reply.status, 200);
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE a gcra:1/1h")[0], 0);
    // A client that waits long enough goes when the block expires.
    assert_eq!(peer.integers("SG.WAIT a gcra:1/1h TIMEOUT 20000000")[0], 1);
    eventually("the list is empty", || {
        let blocks = operator.blocks();
        if blocks["count"] == 0 { Ok(()) } else { Err(blocks) }
    });
    let block = json!({"key_base64": "YQ==", "duration_us": 60_000_000});
    let id = &operator.post("/admin/block", &block).json()["id"];
    assert_eq!(operator.post("/admin/unblock", &json!({"id": id})).json()["existed"], true);
    assert_eq!(operator.post("/admin/unblock", &json!({"id": id})).json()["existed"], false);
    // A reset gives the quota back.
    assert_eq!(peer.integers("SG.PEEK a gcra:1/1h")[0], 0);
    assert_eq!(operator.post("/admin/reset", &json!({"key": "a"})).json()["existed"], true);
    assert_eq!(peer.integers("SG.PEEK a gcra:1/1h")[0], 1);
}

#[test]
fn unblock_wakes_a_waiting_client() {
    let server = server(with_token);
    let mut operator = Operator(Client::connect(&server));
    operator.post("/admin/block", &json!({"key": "a", "duration_us": 3_600_000_000_u64}));
    let mut peer = server.connect();
    peer.send_command("SG.WAIT a gcra:1/1h TIMEOUT 7200000000");
    server.until_exactly("blocked_clients", 1);
    operator.post("/admin/unblock", &json!({"key": "a"}));
    assert_eq!(crate::harness::integers(&peer.read_reply())[0], 1);
}

#[test]
fn admin_invalid_body_names_the_member() {
    let server = server(with_token);
    let mut operator = Operator(Client::connect(&server));
    let long = "x".repeat(5000);
    for (path, body, detail) in [
        ("/admin/block", json!({"key": "a"}), "missing `duration_us`"),
        (
            "/admin/block",
            json!({"key": "a", "duration_us": 5}),
            "invalid `duration_us` `5`: expected",
        ),
        (
            "/admin/block",
            json!({"key": "b", "duration_us": "60000000"}),
            "invalid `duration_us`: expected 1000000 to 31622400000000 microseconds, not the string `60000000`",
        ),
        (
            "/admin/unblock",
            json!({"id": "7"}),
            "invalid `id`: expected the number of a block, not the string `7`",
        ),
        ("/admin/unblock", json!({"id": -7}), "invalid `id` `-7`: expected the number of a block"),
        ("/admin/reset", json!({"key": 7}), "invalid `key` `7`: expected a string"),
        ("/admin/reset", json!({"key_base64": [7]}), "invalid `key_base64`: expected a string"),
        ("/admin/block", json!({"duration_us": 1_000_000}), "missing `key`"),
        ("/admin/block", json!({"key": "a", "id": 1}), "`id` is for /admin/unblock"),
        ("/admin/reset", json!({"key": "a", "duration_us": 1}), "`duration_us` is for"),
        ("/admin/reset", json!({"key": "a", "key_base64": "YQ=="}), "both `key` and `key_base64`"),
        ("/admin/unblock", json!({"key": "a", "id": 1}), "both `id` and a key"),
        ("/admin/reset", json!({"key_base64": "%"}), "invalid `key_base64`"),
        ("/admin/block", json!({"key": long, "duration_us": 1_000_000}), "invalid key of 5000"),
    ] {
        let reply = operator.post(path, &body);
        assert_eq!(reply.status, 422, "{body}");
        assert!(reply.detail().starts_with(detail), "{}", reply.detail());
    }
}

#[test]
fn block_with_a_store_holds_on_its_server_alone() {
    let store = Server::start(Engine::Redis70);
    let [one, other] = [(); 2].map(|()| on(&store, |config, _| with_token(config)));
    let mut operator = Operator(Client::connect(&one));
    operator.post("/admin/block", &json!({"key": "a", "duration_us": 60_000_000}));
    let mut peer = one.connect();
    peer.send("SG.TAKE a gcra:9/1h\r\nSG.TAKE b gcra:9/1h\r\nSG.TAKE a gcra:9/1h\r\n");
    let allowed = [(); 3].map(|()| crate::harness::integers(&peer.read_reply())[0]);
    assert_eq!(allowed, [0, 1, 0]);
    let take = json!({"key": "a", "policy": "gcra:9/1h"});
    let reply = operator.post("/v1/take", &take);
    assert_eq!((reply.status, &reply.json()["source"]), (429, &json!("cache")));
    assert_eq!(other.connect().integers("SG.TAKE a gcra:9/1h")[..3], [1, 9, 8]);
}
