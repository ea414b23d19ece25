//! HTTP on a server that keeps its state in a Redis or Valkey.

use sluicegate_core::{OnError, Share};
use std::time::Duration;

use sluicegate_conformance::{check_keys, check_traces};
use sluicegate_server::FallbackDenial;
use sluicegate_testing::{Engine, Server};

use super::{client::Client, conformance::OverHttp};
use crate::{
    harness::{Running, TempDir, any_port},
    store::on,
};

fn server(store: &Server) -> Running {
    on(store, |config, _| config.http.address = Some(any_port()))
}

#[test]
fn http_with_redis_all_traces_agree_with_the_core() {
    for engine in Engine::NEWER {
        let store = Server::start(engine);
        let running = on(&store, |config, _| {
            config.http.address = Some(any_port());
            config.test_clock = true;
        });
        check_traces(&mut OverHttp(Client::connect(&running)));
        check_keys(&mut OverHttp(Client::connect(&running)));
    }
}

#[test]
fn response_names_the_source() {
    let store = Server::start(Engine::Redis70);
    let (one, other) = (server(&store), server(&store));
    let mut client = Client::connect(&one);
    let body = r#"{"key":"k","policy":"gcra:1/1h:burst=2"}"#;
    let mut decide = |path: &str| {
        let reply = client.post(path, body);
        (reply.status, reply.json()["source"].as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(decide("/v1/take"), (200, "store".to_owned()));
    // The other server has the same state, over either protocol.
    assert_eq!(other.connect().integers("SG.TAKE k gcra:1/1h:burst=2")[..3], [1, 2, 0]);
    assert_eq!(decide("/v1/take"), (429, "store".to_owned()));
    assert_eq!(decide("/v1/take"), (429, "cache".to_owned()));
    assert_eq!(decide("/v1/refund"), (200, "store".to_owned()));
    assert_eq!(decide("/v1/take"), (200, "store".to_owned()));
    let mut client = Client::connect(&other);
    let many =
        r#"{"requests":[{"key":"a","policy":"gcra:1/1h"},{"key":"a","policy":"gcra:1/1h"}]}"#;
    let reply = client.post("/v1/take_many", many).json();
    let allowed = [0, 1].map(|at| reply["decisions"][at]["allowed"].as_bool().unwrap());
    assert_eq!(allowed, [true, false]);
    assert_eq!(client.post("/v1/reset", r#"{"key":"a"}"#).json()["existed"], true);
    // A request that passes later: the response is delayed until then.
    let wait = r#"{"key":"w","policy":"gcra:20/1s:burst=1","wait_us":30000000}"#;
    assert_eq!([(); 3].map(|()| client.post("/v1/take", wait).status), [200; 3]);
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    for line in [
        r#"sluicegate_decisions_total{protocol="resp",outcome="allowed",source="store"} 1"#,
        "sluicegate_store_connected 1",
        "sluicegate_store_breaker_open 0",
        r#"sluicegate_store_events_total{event="timeouts"} 0"#,
    ] {
        assert!(text.contains(line), "`{line}` is not in:\n{text}");
    }
    let count = text.lines().find_map(|it| {
        it.strip_prefix("sluicegate_store_request_duration_seconds_count ")?.parse::<u64>().ok()
    });
    assert!(count.is_some_and(|count| (8..1000).contains(&count)), "{text}");
}

#[test]
fn hold_with_redis_is_shared_by_servers() {
    let store = Server::start(Engine::Redis70);
    let (one, other) = (server(&store), server(&store));
    let [mut one, mut other] = [&one, &other].map(Client::connect);
    let hold = |id: &str| format!(r#"{{"key":"k","policy":"concurrency:1/30s","id":"{id}"}}"#);
    let reply = one.post("/v1/hold", hold("a"));
    assert_eq!((reply.status, reply.json()["source"].as_str()), (200, Some("store")));
    assert_eq!(other.post("/v1/hold", hold("b")).status, 429);
    assert_eq!(other.post("/v1/settle", hold("a")).json()["allowed"], true);
    let take = r#"{"key":"k","policy":"concurrency:1/30s"}"#;
    let all = format!(r#"{{"takes":[{take}],"id":"c"}}"#);
    let reply = one.post("/v1/take_all", &all).json();
    assert_eq!((reply["allowed"].as_bool(), reply["source"].as_str()), (Some(true), Some("store")));
    let settles = format!(r#"{{"settles":[{take}],"id":"c"}}"#);
    assert_eq!(other.post("/v1/settle_all", &settles).json()["decisions"][0]["allowed"], true);
    assert_eq!(one.post("/v1/settle_all", &settles).json()["decisions"][0]["allowed"], false);
}

#[test]
fn store_unavailable_applies_the_fallback() {
    let mut store = Server::start(Engine::Redis70);
    let running = on(&store, |config, at| {
        config.http.address = Some(any_port());
        at.redis.deadline = Duration::from_millis(200);
    });
    let mut client = Client::connect(&running);
    let body = r#"{"key":"k","policy":"gcra:1/1h"}"#;
    assert_eq!(client.post("/v1/peek", body).status, 200);
    store.kill();
    let reply = client.post("/v1/take", body);
    assert_eq!((reply.status, reply.json()["source"].as_str()), (503, Some("fallback")));
    assert_eq!(reply.field("retry-after"), "1");
    let kind = reply.json()["type"].as_str().unwrap().to_owned();
    assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
    for path in ["/v1/charge", "/v1/refund"] {
        let reply = client.post(path, body);
        assert_eq!((reply.status, reply.field("retry-after")), (503, "1"), "{path}");
        assert!(reply.detail().starts_with("the store "), "{path}: {}", reply.detail());
    }
    assert_eq!(client.post("/v1/reset", r#"{"key":"k"}"#).status, 503);
    let hold = r#"{"key":"k","policy":"concurrency:1/30s","id":"a"}"#;
    for path in ["/v1/settle", "/v1/renew"] {
        let reply = client.post(path, hold);
        assert_eq!((reply.status, reply.field("retry-after")), (503, "1"), "{path}");
    }
    let waited = running.connect().integers("SG.WAIT k gcra:1/1h TIMEOUT 1000");
    assert_eq!(waited[0], 0);
    let text = String::from_utf8(client.get("/metrics").body).unwrap();
    for protocol in ["http", "resp"] {
        let line = format!(
            r#"sluicegate_decisions_total{{protocol="{protocol}",outcome="denied",source="fallback"}} 1"#
        );
        assert!(text.contains(&line), "`{line}` is not in:\n{text}");
    }
}

const RULES: &str = "rules: [{name: all, key: client, policy: 'fixed-window:2/1h'}]";

/// Every route distinguishes a fallback denial from the denial of a limit, and so does readiness.
#[test]
fn fallback_denial_is_never_quota_exceeded() {
    for (on_error, denial, take, ready) in [
        (OnError::Deny, FallbackDenial::Unavailable, 503, 503),
        (OnError::Deny, FallbackDenial::TooManyRequests, 429, 503),
        (OnError::Allow, FallbackDenial::Unavailable, 200, 200),
        (OnError::Local(Share::ALL), FallbackDenial::Unavailable, 503, 200),
    ] {
        let mut store = Server::start(Engine::Redis70);
        let folder = TempDir::new();
        std::fs::write(folder.file("rules.yaml"), RULES).unwrap();
        let running = on(&store, |config, at| {
            config.http.address = Some(any_port());
            config.fallback_denial = denial;
            config.rules = vec![folder.file("rules.yaml")];
            at.redis.deadline = Duration::from_millis(200);
            at.on_error = on_error;
        });
        let mut client = Client::connect(&running);
        assert_eq!(client.get("/readyz").status, 200);
        let body = r#"{"key":"k","policy":"fixed-window:2/1h"}"#;
        assert_eq!(client.post("/v1/take", body).status, 200);
        store.kill();
        // Until `local` has no units left.
        for _ in 0..3 {
            let _ = client.post("/v1/take", body);
        }
        let wait = r#"{"key":"k","policy":"fixed-window:2/1h","wait_us":1000}"#;
        let mut reply = vec![client.post("/v1/take", body), client.post("/v1/take", wait)];
        for _ in 0..3 {
            client.send_request("GET", "/v1/gate", "X-Forwarded-Uri: /\r\n");
            let answer = client.read_reply();
            if reply.len() == 2 && answer.status != 200 {
                reply.push(answer);
            }
        }
        for reply in reply {
            assert_eq!(reply.status, take, "{on_error:?}");
            if take != 200 {
                let kind = reply.json()["type"].as_str().unwrap().to_owned();
                assert!(kind.ends_with("#temporary-reduced-capacity"), "{kind}");
                assert!(reply.field("retry-after").parse::<u32>().unwrap() >= 1);
            }
        }
        sluicegate_testing::eventually_true("readiness has the expected status", || {
            client.get("/readyz").status == ready
        });
        if ready == 503 {
            let detail = client.get("/readyz").detail();
            assert!(
                detail.starts_with("the store is unavailable, and requests are denied"),
                "{detail}"
            );
        }
        let text = String::from_utf8(client.get("/metrics").body).unwrap();
        assert!(text.contains("sluicegate_store_breaker_open 1\n"), "{text}");
        // The outage is noticed without requests.
        store.restart();
        let took = sluicegate_testing::eventually_true("it is ready again", || {
            client.get("/readyz").status == 200
        });
        assert!(took < Duration::from_secs(5), "{took:?}");
    }
}
