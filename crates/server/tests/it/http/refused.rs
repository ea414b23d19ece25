//! What is answered to those who ask otherwise: a problem that names the value and what would do.

use super::client::{Client, server};

#[test]
fn wrong_requests_are_refused_and_the_connection_goes_on() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let key = format!(r#"{{"key":"{}","policy":"gcra:1/1s"}}"#, "x".repeat(65_537));
    let table = [
        ("/v1/take", "", 400, "the body is no JSON: EOF"),
        ("/v1/take", "{", 400, "the body is no JSON: EOF"),
        ("/v1/take", "[]", 422, "expected an object"),
        ("/v1/take", "{}", 422, "there is no key; `key`, a text, or `key_base64`"),
        ("/v1/take", r#"{"key":"k"}"#, 422, "there is no `policy`; a policy text would do"),
        ("/v1/take", r#"{"key":"k","key_base64":""}"#, 422, "both `key` and `key_base64`"),
        ("/v1/take", r#"{"key_base64":"!"}"#, 422, "`key_base64` is no Base64"),
        (
            "/v1/take",
            r#"{"key":"k","policy":"gcra:1/0s"}"#,
            422,
            "period `0s` is outside 1ms..=366d",
        ),
        ("/v1/take", r#"{"key":"k","policy":"gcra:1/1s","cost":-1}"#, 422, "integer `-1`"),
        ("/v1/take", r#"{"key":"k","policy":"gcra:1/1s","at_us":1}"#, 422, "--test-clock"),
        (
            "/v1/peek",
            r#"{"key":"k","policy":"gcra:1/1s","wait_us":1}"#,
            422,
            "`wait_us` is for /v1/take",
        ),
        ("/v1/take", r#"{"key":"k","policy":"gcra:1/1s","max_wait_us":1}"#, 422, "for /v1/reserve"),
        ("/v1/reserve", r#"{"key":"k","policy":"sliding-log:1/1s"}"#, 422, "reserve"),
        ("/v1/reset", r#"{"key":"k","cost":1}"#, 422, "`cost` is for requests that decide"),
        ("/v1/take", &key, 422, "key has 65537 bytes, which is outside 0..=65536"),
        (
            "/v1/take_many",
            r#"{"requests":[]}"#,
            422,
            "invalid length 0, expected `requests`, 1..=256",
        ),
        (
            "/v1/take_many",
            r#"{"requests":[{"key":"k"}]}"#,
            422,
            "requests[0]: there is no `policy`",
        ),
        ("/v2/take", "{}", 404, "nothing is at `/v2/take`; /openapi.json tells"),
        ("/healthz", "{}", 405, "method `POST` does not do here; `GET` would"),
    ];
    for (path, body, status, expected) in table {
        let heard = client.post(path, body);
        assert_eq!(heard.status, status, "{path} {body:.80}");
        let detail = heard.detail();
        assert!(detail.contains(expected), "{path} {body:.80}: {detail}");
    }
    client.ask("GET", "/v1/take", "");
    let heard = client.hear();
    assert_eq!((heard.status, heard.field("allow")), (405, "POST"));
    client.send("POST /v1/take HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    let heard = client.hear();
    assert_eq!(heard.status, 415);
    assert!(heard.detail().contains("`text/plain`; `Content-Type: application/json` would do"));
}

#[test]
fn a_longest_key_is_taken() {
    let running = server(|_| {});
    let body = format!(r#"{{"key":"{}","policy":"gcra:1/1s"}}"#, "x".repeat(65_536));
    assert_eq!(Client::connect(&running).post("/v1/take", body).status, 200);
}

#[test]
fn what_is_too_large_is_refused() {
    let running = server(|_| {});
    // A body of 10 MB that says how long it is, and one that does not.
    let mut client = Client::connect(&running);
    client.send("POST /v1/take HTTP/1.1\r\nHost: h\r\nContent-Length: 10000000\r\n\r\n");
    let heard = client.hear();
    assert_eq!(heard.status, 413);
    assert!(heard.detail().contains("longer than 1048576 bytes"));
    let mut client = Client::connect(&running);
    client.send("POST /v1/take HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    for _ in 0..65 {
        client.send(&chunk);
    }
    assert_eq!(client.hear().status, 413);
    // Fields that are too long in all, and one of 1 MB.
    let mut client = Client::connect(&running);
    client.ask("GET", "/healthz", &format!("X-Long: {}\r\n", "x".repeat(40_000)));
    let heard = client.hear();
    assert_eq!(heard.status, 431);
    assert!(heard.detail().contains("32768 at most would do"), "{}", heard.detail());
    let mut client = Client::connect(&running);
    let head = format!("GET / HTTP/1.1\r\nHost: h\r\nX-Long: {}", "x".repeat(200_000));
    client.send(head);
    assert_eq!(client.hear().status, 431);
}

#[test]
fn a_token_is_asked_for() {
    let running = server(|config| config.http_token = Some("s3cret".into()));
    let mut client = Client::connect(&running);
    for (fields, expected) in [
        ("", 401),
        ("Authorization: Bearer wrong\r\n", 401),
        ("Authorization: Basic s3cret\r\n", 401),
        ("Authorization: Bearer s3cretx\r\n", 401),
        ("Authorization: bearer s3cret\r\n", 422),
    ] {
        client.ask("POST", "/v1/take", &format!("{fields}Content-Length: 2\r\n"));
        client.send("{}");
        let heard = client.hear();
        assert_eq!(heard.status, expected, "{fields}");
        if expected == 401 {
            assert_eq!(heard.field("www-authenticate"), "Bearer");
        }
    }
    assert_eq!(client.get("/healthz").status, 200);
}
