//! What a client may send, at the bound, one less and one more.

use sluicegate_resp::Value;
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
fn protocol_errors_are_told_before_closing() {
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
    // What was asked before is answered before.
    let mut peer = server.connect();
    peer.send("PING\r\n*x\r\nPING\r\n");
    assert_eq!(peer.rest(), "+PONG\r\n-ERR Protocol error: invalid multibulk length\r\n");
    assert_eq!(server.connect().say("PING"), simple("PONG"), "others are served");
}

#[test]
fn arguments_are_bounded_in_number_and_length() {
    let server = Running::new();
    let mut peer = server.connect();
    for count in [1023, 1024] {
        let mut arguments = vec![&b"EXISTS"[..]];
        arguments.resize(count, b"k");
        assert_eq!(peer.say_bytes(&arguments), Value::Integer(0), "{count}");
    }
    for length in [131_071, 131_072] {
        assert_eq!(
            peer.say_bytes(&[b"ECHO", &vec![b'x'; length]]),
            Value::Bulk(vec![b'x'; length])
        );
    }
    for length in [65_535, 65_536] {
        let mut line = b"ECHO ".to_vec();
        line.resize(length - 1, b'x');
        line.extend_from_slice(b"\r\n");
        peer.send(&line);
        assert!(matches!(peer.hear(), Value::Bulk(_)), "{length}");
    }
}

#[test]
fn a_command_is_bounded_in_all() {
    let server = Running::new();
    let with = |arguments: usize| {
        let mut bytes = format!("*{arguments}\r\n$6\r\nEXISTS\r\n").into_bytes();
        for _ in 1..arguments {
            bytes.extend_from_slice(b"$65536\r\n");
            bytes.extend(std::iter::repeat_n(b'x', 65_536));
            bytes.extend_from_slice(b"\r\n");
        }
        bytes
    };
    let mut peer = server.connect();
    peer.send(with(16));
    assert_eq!(peer.hear(), Value::Integer(0));
    closes(&server, &with(17), "a command exceeds 1048576 bytes");
}

#[test]
fn keys_of_any_length_up_to_the_bound() {
    let server = Running::new();
    let mut peer = server.connect();
    for length in [0, 1, 65_536] {
        let key = vec![0xff; length];
        let reply = peer.say_bytes(&[b"CL.THROTTLE", &key, b"15", b"30", b"60"]);
        assert_eq!(crate::harness::integers(&reply), [0, 16, 15, -1, 2], "{length}");
    }
    let reply = peer.say_bytes(&[b"SG.TAKE", &[b'k'; 65_537], b"gcra:1/s"]);
    assert_eq!(
        crate::harness::error(&reply),
        "ERR key has 65537 bytes, which is outside 0..=65536"
    );
    assert_eq!(peer.say("PING"), simple("PONG"), "the connection lives on");
}

#[test]
fn clients_beyond_the_bound_are_told_so() {
    let server = Running::with(|config| config.max_clients = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    assert_eq!(first.say("PING"), simple("PONG"));
    assert_eq!(second.say("PING"), simple("PONG"));
    assert_eq!(server.connect().rest(), "-ERR max number of clients reached\r\n");
    assert_eq!(first.say("QUIT"), simple("OK"));
    assert_eq!(first.rest(), "");
    drop(first);
    // Its place is free as soon as the server has seen it leave.
    eventually("a third client is served", || {
        let mut third = server.connect();
        third.send("PING\r\n");
        match third.hear() {
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
fn one_who_does_not_read_is_not_read_from() {
    let server = Running::new();
    let mut peer = server.connect();
    let mut sender = peer.stream.try_clone().unwrap();
    let many: usize = 400;
    let long = "x".repeat(60_000);
    let line = format!("ECHO {long}\r\n");
    let sending = std::thread::spawn(move || {
        // 24 MB, which no buffer holds: this blocks until the replies are read.
        for _ in 0..many {
            std::io::Write::write_all(&mut sender, line.as_bytes()).unwrap();
        }
    });
    for _ in 0..20 {
        assert_eq!(server.connect().say("PING"), simple("PONG"), "others are served");
    }
    for _ in 0..many {
        assert_eq!(peer.hear(), bulk(&long));
    }
    sending.join().unwrap();
}

#[test]
fn nonsense_harms_nobody() {
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
        let mut heard = Vec::new();
        std::io::Read::read_to_end(&mut peer.stream, &mut heard).unwrap();
    }
    assert_eq!(server.connect().say("PING"), simple("PONG"));
}
