//! Limits on what clients send: at the bound, one less and one more.

use std::io::{Read as _, Write as _};

use sluicegate_resp::{Value, encode_command};
use sluicegate_testing::eventually;

use crate::harness::{Running, bulk, simple};

/// The server answers `bytes` with `reply` and closes.
fn closes(server: &Running, bytes: &[u8], reply: &str) {
    let mut peer = server.connect();
    peer.send(bytes);
    assert_eq!(
        peer.rest(),
        format!("-ERR Protocol error: {reply}\r\n"),
        "{}",
        bytes[..bytes.len().min(40)].escape_ascii()
    );
}

#[test]
fn protocol_error_is_sent_before_closing() {
    let server = Running::new();
    closes(&server, b"*x\r\n", "invalid multibulk length");
    closes(&server, b"*1000000000\r\n", "invalid multibulk length");
    closes(&server, b"*1025\r\n", "invalid multibulk length");
    closes(&server, b"*1\r\n!4\r\n", "expected '$', got '!'");
    closes(&server, b"*1\r\n$-1\r\n", "invalid bulk length");
    closes(&server, b"*1\r\n$536870912\r\n", "invalid bulk length");
    closes(&server, b"*1\r\n$131073\r\n", "invalid bulk length");
    closes(&server, b"PING \"x\r\n", "unbalanced quotes in request");
    closes(&server, &[b'x'; 65_537], "too big inline request");
    // Earlier commands are answered first.
    let mut peer = server.connect();
    peer.send("PING\r\n*x\r\nPING\r\n");
    assert_eq!(peer.rest(), "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n");
    assert_eq!(server.connect().call("PING"), simple("PONG"), "others are served");
}

/// RELIABILITY 26: each limit at n - 1, n and n + 1.
#[test]
fn protocol_limits_hold_to_the_byte() {
    let open = Running::new();
    let locked = Running::with(|config| config.resp.password = Some("secret".into()));
    let words = |count: usize| {
        let mut arguments = vec![&b"EXISTS"[..]];
        arguments.resize(count, b"k");
        let mut bytes = Vec::new();
        encode_command(&arguments, &mut bytes);
        bytes
    };
    // The bytes before the line feed count.
    let line = |length: usize| [b"ECHO ", &vec![b'x'; length - 6][..], b"\r\n"].concat();
    let echo = |length: usize| {
        let mut bytes = Vec::new();
        encode_command(&[b"ECHO", &vec![b'x'; length]], &mut bytes);
        bytes
    };
    type Case<'a> = (&'a str, &'a Running, usize, &'a dyn Fn(usize) -> Vec<u8>, &'a str);
    let cases: [Case<'_>; 6] = [
        ("arguments", &open, 1024, &words, "invalid multibulk length"),
        ("argument", &open, 131_072, &echo, "invalid bulk length"),
        ("line", &open, 65_536, &line, "too big inline request"),
        ("arguments, unknown client", &locked, 10, &words, "unauthenticated multibulk length"),
        ("argument, unknown client", &locked, 16_384, &echo, "unauthenticated bulk length"),
        ("line, unknown client", &locked, 16_384, &line, "too big inline request"),
    ];
    for (name, server, most, bytes, reply) in cases {
        for length in [most - 1, most] {
            let mut peer = server.connect();
            peer.send(bytes(length));
            let output = peer.read_reply();
            let passed = match &output {
                Value::Error(text) => text.starts_with(b"NOAUTH") || text.starts_with(b"ERR wrong"),
                _ => true,
            };
            assert!(passed, "{name}, {length}: {output:?}");
            peer.send("QUIT\r\n");
            assert_eq!(peer.read_reply(), simple("OK"), "{name}, {length}: it is not closed");
        }
        closes(server, &bytes(most + 1), reply);
    }
}

#[test]
fn command_total_length_is_bounded() {
    const MAX_COMMAND_BYTES: usize = 1 << 20;
    let server = Running::new();
    // Fifteen arguments of 64 KiB, and one with the rest.
    let of = |total: usize| {
        let head = b"*17\r\n$6\r\nEXISTS\r\n".to_vec();
        let long = [b"$65536\r\n", &vec![b'x'; 65_536][..], b"\r\n"].concat();
        let rest = total - head.len() - 15 * long.len() - "$12345\r\n\r\n".len();
        let last = [format!("${rest:05}\r\n").as_bytes(), &vec![b'x'; rest], b"\r\n"].concat();
        let bytes = [head, long.repeat(15), last].concat();
        assert_eq!(bytes.len(), total);
        bytes
    };
    for total in [MAX_COMMAND_BYTES - 1, MAX_COMMAND_BYTES] {
        let mut peer = server.connect();
        peer.send(of(total));
        assert_eq!(peer.read_reply(), Value::Integer(0), "{total}");
    }
    // The bound is on bytes that were received and not answered, and 16 KiB are read at
    // once: one byte more may or may not come with those before it.
    closes(&server, &of(MAX_COMMAND_BYTES + 16 * 1024), "a command exceeds 1048576 bytes");
}

#[test]
fn key_up_to_the_maximum_length_is_accepted() {
    let server = Running::new();
    let mut peer = server.connect();
    for length in [1, 65_535, 65_536] {
        let key = vec![0xff; length];
        let reply = peer.call_bytes(&[b"CL.THROTTLE", &key, b"15", b"30", b"60"]);
        assert_eq!(crate::harness::integers(&reply), [0, 16, 15, -1, 2], "{length}");
    }
    let reply = peer.call_bytes(&[b"SG.TAKE", &[b'k'; 65_537], b"gcra:1/s"]);
    assert_eq!(
        crate::harness::error(&reply),
        "ERR invalid key: expected 1 to 65536 bytes, found 65537"
    );
    assert_eq!(peer.call("PING"), simple("PONG"), "the connection lives on");
}

#[test]
fn max_clients_further_client_is_rejected() {
    let server = Running::with(|config| config.max_clients = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!(first.call("PING"), simple("PONG"));
    assert_eq!(second.call("PING"), simple("PONG"));
    assert_eq!(server.connect().rest(), "-ERR max number of clients reached\r\n");
    assert_eq!(first.call("QUIT"), simple("OK"));
    assert_eq!(first.rest(), "");
    drop(first);
    // Its permit is free once the server has noticed that it left.
    eventually("a third client is served", || {
        let mut third = server.connect();
        third.send("PING\r\n");
        match third.read_reply() {
            Value::Error(text) => {
                assert_eq!(text, b"ERR max number of clients reached");
                Err("rejected")
            }
            served => {
                assert_eq!(served, simple("PONG"));
                Ok(())
            }
        }
    });
}

#[test]
fn client_that_does_not_read_is_not_read_from() {
    let server = Running::new();
    let mut peer = server.connect();
    let mut sender = peer.stream.try_clone().unwrap();
    let many: usize = 400;
    let long = "x".repeat(60_000);
    let line = format!("ECHO {long}\r\n");
    let sending = std::thread::spawn(move || {
        // 24 MB fit into no buffer: this blocks until the replies are read.
        for _ in 0..many {
            std::io::Write::write_all(&mut sender, line.as_bytes()).unwrap();
        }
    });
    for _ in 0..20 {
        assert_eq!(server.connect().call("PING"), simple("PONG"), "others are served");
    }
    for _ in 0..many {
        assert_eq!(peer.read_reply(), bulk(&long));
    }
    sending.join().unwrap();
}

#[test]
fn random_input_affects_no_other_client() {
    let server = Running::new();
    let mut state = 7_u64;
    for _ in 0..200 {
        let mut peer = server.connect();
        let mut bytes = Vec::new();
        for _ in 0..200 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let telling = b"*$\r\n0123456789\" SG.TAKE\0\xff";
            bytes.push(telling[usize::try_from(state >> 33).unwrap() % telling.len()]);
        }
        peer.send(&bytes);
        peer.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let mut output = Vec::new();
        std::io::Read::read_to_end(&mut peer.stream, &mut output).unwrap();
    }
    assert_eq!(server.connect().call("PING"), simple("PONG"));
}

/// RELIABILITY 49: a page can make a browser send an HTTP request to this port. None of it is executed.
#[test]
fn http_request_is_closed_before_any_command_is_executed() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE victim fixed-window:1/1h")[0], 1);
    let body = "SG.RESET victim\r\nSG.CHARGE other fixed-window:1/1h\r\n";
    for head in [
        "POST / HTTP/1.1\r\nHost: 127.0.0.1:6380\r\nContent-Length: 99\r\n\r\n",
        "post / http/1.1\r\n\r\n",
        "GET /SG.RESET HTTP/1.1\r\nHost: a\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "PUT /x HTTP/1.0\r\n",
        "ANY / HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: 127.0.0.1:6380\r\n",
        "host: x\r\n",
        "*2\r\n$4\r\nPOST\r\n$1\r\n/\r\n",
    ] {
        let mut browser = server.connect();
        browser.send(head);
        // It may be closed while it sends.
        let _ = browser.stream.write_all(body.as_bytes());
        let mut output = Vec::new();
        let _ = browser.stream.read_to_end(&mut output);
        assert_eq!(String::from_utf8_lossy(&output), "", "{head}");
        assert_eq!(peer.integers("SG.PEEK victim fixed-window:1/1h")[0], 0, "{head}");
        assert_eq!(peer.integers("SG.PEEK other fixed-window:1/1h")[0], 1, "{head}");
    }
    // Unknown commands are only errors, whatever their names.
    assert!(peer.error("MGET key").starts_with("ERR unknown command"));
    assert_eq!(peer.call("ECHO HTTP/1.1"), crate::harness::bulk("HTTP/1.1"));
}
