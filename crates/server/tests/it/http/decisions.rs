//! Responses to valid requests.

use serde_json::json;
use sluicegate_server::HeaderStyle;

use super::client::{Client, server};

#[test]
fn json_answers_are_one_line() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let take = r#"{"key":"user7","policy":"gcra:1/1h"}"#;
    let hold = r#"{"key":"held","policy":"concurrency:1/1h","id":"a"}"#;
    let all = r#"{"takes":[{"key":"a","policy":"gcra:1/1h"},{"key":"b","policy":"gcra:1/1h"}]}"#;
    for (path, body, status) in [
        ("/v1/take", take, 200),
        ("/v1/take", take, 429),
        ("/v1/peek", take, 200),
        ("/v1/take_all", all, 200),
        ("/v1/take_all", all, 429),
        ("/v1/take_many", &all.replace("takes", "requests"), 200),
        ("/v1/hold", hold, 200),
        ("/v1/settle", hold, 200),
        ("/v1/reset", r#"{"key":"user7"}"#, 200),
        ("/v1/take", "{}", 422),
        ("/v1/take", "{", 400),
        ("/v1/unknown", take, 404),
    ] {
        let reply = client.post(path, body);
        let text = String::from_utf8(reply.body).unwrap();
        assert_eq!(reply.status, status, "{path} {body}: {text}");
        assert_eq!(text.find('\n'), Some(text.len() - 1), "{path} {body}: {text:?}");
    }
}

#[test]
fn take_is_allowed_and_denied() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let body = r#"{"key":"user7","policy":"gcra:30/1m:burst=2","at_us":0}"#;
    let reply = client.post("/v1/take", body);
    assert_eq!((reply.status, reply.field("content-type")), (200, "application/json"));
    assert_eq!(reply.field("cache-control"), "no-store");
    assert_eq!(reply.field("ratelimit-policy"), r#""default";q=30;w=60"#);
    assert_eq!(reply.field("ratelimit"), r#""default";r=1;t=2"#);
    assert_eq!(
        String::from_utf8(reply.body).unwrap(),
        "{\"allowed\":true,\"limit\":2,\"remaining\":1,\"retry_after_us\":0,\"reset_after_us\":2000000,\"delay_us\":0,\"binding\":0}\n"
    );
    client.post("/v1/take", body);
    let reply = client.post("/v1/take", body);
    assert_eq!((reply.status, reply.field("content-type")), (429, "application/problem+json"));
    assert_eq!((reply.field("retry-after"), reply.field("cache-control")), ("2", "no-store"));
    assert_eq!(reply.field("ratelimit"), r#""default";r=0;t=2"#);
    assert_eq!(
        reply.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Too many requests",
            "status": 429,
            "detail": "Retry after 2 seconds.",
            "violated-policies": ["default"],
            "allowed": false,
            "limit": 2,
            "remaining": 0,
            "retry_after_us": 2_000_000,
            "reset_after_us": 4_000_000,
            "delay_us": 0,
            "binding": 0,
        })
    );
    let never = r#"{"key":"user7","policy":"gcra:30/1m:burst=2","cost":3,"at_us":0}"#;
    let reply = client.post("/v1/take", never);
    assert_eq!((reply.status, reply.field("retry-after")), (429, ""));
    assert_eq!(reply.detail(), "The cost exceeds the limit: this request can never be allowed.");
    // A query that is answered is not an error, whether allowed or denied.
    let reply = client.post("/v1/peek", never);
    assert_eq!((reply.status, reply.field("content-type")), (200, "application/json"));
    assert_eq!((reply.json()["allowed"].clone(), reply.field("retry-after")), (json!(false), ""));
    assert_eq!(
        (reply.json()["retry_after_us"].clone(), reply.json()["never"].clone()),
        (json!(null), json!(true))
    );
}

#[test]
fn operations_have_their_effects() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let mut decide = |path: &str, more: &str| {
        let body = format!(r#"{{"key":"k","policy":"gcra:10/10s","at_us":0{more}}}"#);
        client.post(path, body).json()
    };
    assert_eq!(decide("/v1/take", "")["remaining"], 9);
    assert_eq!(decide("/v1/peek", "")["remaining"], 9);
    assert_eq!(decide("/v1/charge", r#","cost":12"#)["reset_after_us"], 13_000_000);
    assert_eq!(decide("/v1/refund", r#","cost":4"#)["remaining"], 1);
    assert_eq!(decide("/v1/reserve", r#","cost":3,"max_wait_us":2000000"#)["delay_us"], 2_000_000);
    assert_eq!(decide("/v1/reserve", r#","max_wait_us":2000000"#)["allowed"], false);
    let body = r#"{"key":"k","at_us":0}"#;
    assert_eq!(client.post("/v1/reset", body).json(), json!({"existed": true}));
    assert_eq!(client.post("/v1/reset", body).json(), json!({"existed": false}));
    let many = r#"{"requests":[
        {"key":"a","policy":"gcra:1/1s"},
        {"key":"a","policy":"gcra:1/1s"},
        {"key_base64":"AP8=","policy":"gcra:5/1s","cost":5}
    ],"at_us":0}"#;
    let reply = client.post("/v1/take_many", many);
    let allowed: Vec<_> = reply.json()["decisions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|decision| decision["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!((reply.status, allowed), (200, vec![true, false, true]));
}

#[test]
fn headers_are_chosen_by_setting_and_request() {
    let running = server(|config| config.http.headers = HeaderStyle::XRateLimit);
    let mut client = Client::connect(&running);
    let mut fields = |more: &str| {
        let body = format!(r#"{{"key":"k","policy":"fixed-window:10/1h"{more}}}"#);
        let reply = client.post("/v1/peek", body);
        ["ratelimit", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"]
            .map(|name| reply.field(name).to_owned())
    };
    assert_eq!(fields(""), ["", "10", "10", "0"]);
    assert_eq!(fields(r#","headers":"ietf""#), [r#""default";r=10"#, "", "", ""]);
    assert_eq!(fields(r#","headers":"none""#), ["", "", "", ""]);
}

/// `X-RateLimit-*` and `RateLimit` describe the binding limit alone; the JSON has the time until the key is unused.
#[test]
fn headers_of_several_limits_describe_the_binding_one() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let mut fields = |key: &str, at_seconds: u64| {
        let [ietf, x] = ["ietf", "x-ratelimit"].map(|style| {
            let at = 1_000_000_000_000_000 + at_seconds * 1_000_000;
            let policy = "fixed-window:5/1m,fixed-window:100000/365d";
            let body = format!(
                r#"{{"key":"{key}-{style}","policy":"{policy}","headers":"{style}","at_us":{at}}}"#
            );
            client.post("/v1/take", body)
        });
        let x = ["limit", "remaining", "reset"]
            .map(|it| x.field(&format!("x-ratelimit-{it}")).to_owned());
        (
            ietf.status,
            x.join(" "),
            ietf.field("ratelimit").to_owned(),
            ietf.json()["reset_after_us"].clone(),
        )
    };
    let year = json!(31_536_000_000_000_u64);
    for left in [4, 3, 2, 1, 0] {
        let expected =
            (200, format!("5 {left} 60"), format!(r#""default-1";r={left}"#), year.clone());
        assert_eq!(fields("k", 0), expected);
    }
    assert_eq!(
        fields("k", 0),
        (429, "5 0 60".to_owned(), r#""default-1";r=0;t=60"#.to_owned(), year)
    );
    let (status, x, ietf, _) = fields("k", 20);
    assert_eq!((status, &*x, &*ietf), (429, "5 0 40", r#""default-1";r=0;t=40"#));
}

#[test]
fn headers_of_several_keys_describe_the_binding_one() {
    let running = server(|config| config.test_clock = true);
    let mut client = Client::connect(&running);
    let mut fields = |cost: u32| {
        let body = format!(
            r#"{{"takes":[{{"key":"a","policy":"fixed-window:5/1m","cost":{cost}}},
                {{"key":"b","policy":"fixed-window:9/365d","cost":7}}],
                "headers":"x-ratelimit","at_us":1000000000000000}}"#
        );
        let reply = client.post("/v1/take_all", body);
        let fields = ["limit", "remaining", "reset"];
        let fields = fields.map(|it| reply.field(&format!("x-ratelimit-{it}")).to_owned());
        (reply.status, fields.join(" "))
    };
    assert_eq!(fields(4), (200, "5 1 60".to_owned()));
    // The second key has the longest wait. The first one has less left.
    assert_eq!(fields(0), (429, "9 2 31536000".to_owned()));
}

#[test]
fn take_over_http_and_resp_shares_state() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let reply = client.post("/v1/take", r#"{"key":"k","policy":"gcra:1/1h"}"#);
    assert_eq!(reply.status, 200);
    assert_eq!(running.connect().integers("SG.TAKE k gcra:1/1h")[0], 0);
    assert_eq!((running.info_value("allowed"), running.info_value("denied")), (1, 1));
}

#[test]
fn health_and_readiness_are_reported() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    for path in ["/healthz", "/readyz"] {
        assert_eq!(client.get(path).status, 200, "{path}");
    }
}
