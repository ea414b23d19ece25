//! Errors of HTTP requests: problems that name the invalid value and what is expected.

use std::time::Duration;

use super::client::{Client, server};

#[test]
fn invalid_request_is_rejected_and_the_connection_continues() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let key = format!(r#"{{"key":"{}","policy":"gcra:1/1s"}}"#, "x".repeat(65_537));
    let table = [
        ("/v1/take", "", 400, "the body is empty: expected a JSON object"),
        ("/v1/take", "{", 400, "the body is not valid JSON: it ends early (line 1, column 1)"),
        (
            "/v1/take",
            "foo",
            400,
            "the body is not valid JSON: unexpected character (line 1, column 2)",
        ),
        (
            "/v1/take",
            "{'key':'k'}",
            400,
            "the body is not valid JSON: key must be a string (line 1, column 2)",
        ),
        ("/v1/take", "[]", 422, "invalid body: expected a JSON object, not an array"),
        (
            "/v1/take",
            "{}",
            422,
            "missing `key`: expected a string, or bytes in Base64 as `key_base64`",
        ),
        ("/v1/take", r#"{"key":1}"#, 422, "invalid `key` `1`: expected a string"),
        ("/v1/take", r#"{"kye":"k"}"#, 422, "unknown member `kye`: expected `key`, `key_base64`"),
        (
            "/v1/take",
            r#"{"key":"k"}"#,
            422,
            "missing `policy`: expected a policy such as `gcra:30/1m`",
        ),
        ("/v1/take", r#"{"key":"k","policy":7}"#, 422, "invalid `policy` `7`: expected a string"),
        (
            "/v1/take",
            r#"{"key":"k","key_base64":""}"#,
            422,
            "both `key` and `key_base64` are given: expected one of them",
        ),
        (
            "/v1/take",
            r#"{"key_base64":"!"}"#,
            422,
            "invalid `key_base64`: expected standard Base64 with padding",
        ),
        ("/v1/take", r#"{"key":"k","policy":"gcra:1/0s"}"#, 422, "period `0s`"),
        (
            "/v1/take",
            r#"{"key":"k","policy":"gcra:1/1s","cost":-1}"#,
            422,
            "invalid `cost` `-1`: expected a whole number from 0 to 4294967295",
        ),
        (
            "/v1/take",
            r#"{"key":"k","policy":"gcra:1/1s","cost":"5"}"#,
            422,
            "invalid `cost`: expected a whole number from 0 to 4294967295, not the string `5`",
        ),
        (
            "/v1/take",
            "{\n\"cost\": 1e3}",
            422,
            "invalid `cost` `1e3`: expected a whole number from 0 to 4294967295",
        ),
        (
            "/v1/take_many",
            r#"{"requests":[{"key":"k","policy":"gcra:1/1s"},{"cost":2.50}]}"#,
            422,
            "requests[1]: invalid `cost` `2.50`: expected a whole number",
        ),
        (
            "/v1/take",
            r#"{"headers":"x"}"#,
            422,
            "invalid `headers` `x`: expected `ietf`, `x-ratelimit` or `none`",
        ),
        (
            "/v1/take",
            r#"{"key":"k","policy":"gcra:1/1s","at_us":1}"#,
            422,
            "invalid `at_us`: expected a server with --test-clock",
        ),
        (
            "/v1/peek",
            r#"{"key":"k","policy":"gcra:1/1s","wait_us":1}"#,
            422,
            "unexpected `wait_us`: it is only valid for /v1/take",
        ),
        (
            "/v1/take",
            r#"{"key":"k","policy":"gcra:1/1s","max_wait_us":1}"#,
            422,
            "unexpected `max_wait_us`: it is only valid for /v1/reserve",
        ),
        ("/v1/reserve", r#"{"key":"k","policy":"sliding-log:1/1s"}"#, 422, "reserve"),
        ("/v1/reset", r#"{"key":"k","cost":1}"#, 422, "unexpected `cost`"),
        (
            "/v1/take",
            r#"{"key":"","policy":"gcra:1/1s"}"#,
            422,
            "invalid key: expected 1 to 65536 bytes, found 0",
        ),
        ("/v1/take", &key, 422, "invalid key: expected 1 to 65536 bytes, found 65537"),
        (
            "/v1/take_many",
            r#"{"requests":[]}"#,
            422,
            "invalid `requests`: expected 1 to 256 takes, not 0",
        ),
        ("/v1/take_many", "{}", 422, "missing `requests`: expected 1 to 256 takes"),
        ("/v1/take_many", r#"{"requests":[{"key":"k"}]}"#, 422, "requests[0]: missing `policy`"),
        (
            "/v1/take_many",
            r#"{"requests":[{"key":"k","policy":"gcra:1/1s","cost":"2"}]}"#,
            422,
            "requests[0]: invalid `cost`: expected a whole number",
        ),
        ("/v2/take", "{}", 404, "unknown path `/v2/take`: did you mean `/v1/take`?"),
        ("/v1/ask", "{}", 404, "unknown path `/v1/ask`: see /openapi.json for all paths"),
        ("/healthz", "{}", 405, "invalid method `POST`: expected GET"),
    ];
    for (path, body, status, expected) in table {
        let reply = client.post(path, body);
        assert_eq!(reply.status, status, "{path} {body:.80}");
        let detail = reply.detail();
        assert!(detail.contains(expected), "{path} {body:.80}: {detail}");
    }
    client.send_request("GET", "/v1/take", "");
    let reply = client.read_reply();
    assert_eq!((reply.status, reply.field("allow")), (405, "POST"));
    client.send("POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}");
    let reply = client.read_reply();
    assert_eq!(reply.status, 415);
    assert!(
        reply.detail().contains("invalid Content-Type `text/plain`: expected `application/json`")
    );
}

#[test]
fn key_of_maximum_length_is_accepted() {
    let running = server(|_| {});
    let body = format!(r#"{{"key":"{}","policy":"gcra:1/1s"}}"#, "x".repeat(65_536));
    assert_eq!(Client::connect(&running).post("/v1/take", body).status, 200);
}

#[test]
fn body_or_head_too_large_is_rejected() {
    let running = server(|_| {});
    // A body of 10 MB with its length, and one without.
    let mut client = Client::connect(&running);
    client.send("POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000\r\n\r\n");
    let reply = client.read_reply();
    assert_eq!(reply.status, 413);
    assert!(reply.detail().contains("expected up to 1048576 bytes"));
    let mut client = Client::connect(&running);
    client.send("POST /v1/take HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n");
    let chunk = format!("4000\r\n{}\r\n", "x".repeat(0x4000));
    for _ in 0..65 {
        client.send(&chunk);
    }
    assert_eq!(client.read_reply().status, 413);
    // Headers that are too long together, and one of 1 MB.
    let mut client = Client::connect(&running);
    client.send_request("GET", "/healthz", &format!("X-Long: {}\r\n", "x".repeat(40_000)));
    let reply = client.read_reply();
    assert_eq!(reply.status, 431);
    assert!(reply.detail().contains("expected up to 32768 bytes"), "{}", reply.detail());
    let mut client = Client::connect(&running);
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Long: {}", "x".repeat(1_000_000));
    client.send(head);
    assert_eq!(client.read_reply().status, 431);
}

#[test]
fn token_configured_is_required() {
    let running = server(|config| config.http.token = Some("s3cret".into()));
    let mut client = Client::connect(&running);
    for (fields, expected) in [
        ("", 401),
        ("Authorization: Bearer wrong\r\n", 401),
        ("Authorization: Basic s3cret\r\n", 401),
        ("Authorization: Bearer s3cretx\r\n", 401),
        ("Authorization: bearer s3cret\r\n", 422),
    ] {
        client.send_request(
            "POST",
            "/v1/take",
            &format!("{fields}Content-Type: application/json\r\nContent-Length: 2\r\n"),
        );
        client.send("{}");
        let reply = client.read_reply();
        assert_eq!(reply.status, expected, "{fields}");
        if expected == 401 {
            assert_eq!(reply.field("www-authenticate"), "Bearer");
        }
    }
    assert_eq!(client.get("/healthz").status, 200);
}

/// The rest of the body of a rejected request does not end the connection, but a client that does not send it
/// gets `Connection: close`.
#[test]
fn body_after_its_rejection_is_drained() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    for refused in 1..=3 {
        client.send_request("POST", "/nowhere", "Content-Length: 2\r\n");
        running.until_exactly("total_error_replies", refused);
        client.send("{}");
        let reply = client.read_reply();
        assert_eq!((reply.status, reply.field("connection")), (404, ""));
    }
    let running = server(|config| config.timeouts.input = Duration::from_millis(100));
    for fields in ["Content-Length: 2\r\n", "Content-Length: 2\r\nExpect: 100-continue\r\n"] {
        let mut client = Client::connect(&running);
        client.send_request("POST", "/nowhere", fields);
        let reply = client.read_reply();
        assert_eq!((reply.status, reply.field("connection")), (404, "close"), "{fields}");
    }
    // nginx sends such requests unless it is configured to drop the length.
    client = Client::connect(&running);
    client.send_request("GET", "/healthz", "Content-Length: 2\r\n");
    let reply = client.read_reply();
    assert_eq!((reply.status, reply.field("connection")), (200, ""), "not waited for");
}

/// Over HTTP/2 the rest of a body is drained, because clients that are stopped early often
/// do not read the response.
#[test]
fn body_rejected_on_http_2_may_be_sent_to_its_end() {
    let running = server(|_| {});
    let mut client = Client::connect(&running);
    let frame = |kind: u8, flags: u8, stream: u8, body: &[u8]| {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, stream], body].concat()
    };
    // `POST /v1/take`, by the static table of HPACK and plain texts.
    let head = [&[0x83, 0x86, 0x04, 8][..], b"/v1/take", &[0x41, 4], b"here"].concat();
    client.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    client.send([frame(4, 0, 0, &[]), frame(1, 4, 1, &head)].concat());
    // A whole body of 10 MB, as fast as the server allows.
    let (mut to_send, mut windows) = (10_000_000_usize, [65_535_usize; 2]);
    let mut status = None;
    while to_send > 0 || status.is_none() {
        let now = windows[0].min(windows[1]).min(to_send).min(16_384);
        if now > 0 {
            to_send -= now;
            windows = windows.map(|window| window - now);
            client.send(frame(0, u8::from(to_send == 0), 1, &vec![b'x'; now]));
            continue;
        }
        let head = client.take(9);
        let body = client.take(usize::from(head[1]) << 8 | usize::from(head[2]));
        match (head[3], head[8]) {
            (1, 1) => status = Some(body[0]),
            (3, _) => panic!("it took the request back: {body:?}"),
            (7, _) => panic!("it closes: {}", body.escape_ascii()),
            (8, of) => {
                let more = u32::from_be_bytes(body[..4].try_into().unwrap());
                windows[usize::from(of)] += usize::try_from(more).unwrap();
            }
            // The window of a stream, among its settings.
            (4, _) if !body.is_empty() => {
                client.send(frame(4, 1, 0, &[]));
                for setting in body.chunks(6).filter(|setting| setting[1] == 4) {
                    let window = u32::from_be_bytes(setting[2..].try_into().unwrap());
                    windows[1] = windows[1] + usize::try_from(window).unwrap() - 65_535;
                }
            }
            _ => {}
        }
    }
    // A literal field by the name of `:status`.
    assert_eq!(status, Some(0x48), "413 came first, and then the rest was taken");
}
