//! The password.

use std::time::Duration;

use sluicegate_resp::Value;

use crate::harness::{Running, error, now, simple, size};

const WRONG: &str = "WRONGPASS invalid username-password pair or user is disabled.";

fn locked() -> Running {
    Running::with(|config| config.resp.password = Some("secret".into()))
}

#[test]
fn commands_before_the_password_are_rejected() {
    let server = locked();
    let mut peer = server.connect();
    for line in
        ["PING", "SG.TAKE k gcra:1/s", "SG.TAKE", "INFO", "COMMAND", "CONFIG GET *", "nonsense"]
    {
        assert_eq!(peer.error(line), "NOAUTH Authentication required.", "{line}");
    }
    assert!(
        peer.error("HELLO 3").starts_with("NOAUTH HELLO must be called with the client already")
    );
    for line in [
        "AUTH wrong",
        "AUTH default wrong",
        "AUTH secre",
        "AUTH secrets",
        "AUTH other secret",
        "HELLO 3 AUTH default wrong",
    ] {
        assert_eq!(peer.error(line), WRONG, "{line}");
    }
    assert_eq!(peer.error("AUTH a b c"), "ERR syntax error");
    assert_eq!(peer.error("PING"), "NOAUTH Authentication required.");
    assert_eq!(peer.call("AUTH secret"), simple("OK"));
    assert_eq!(peer.call("PING"), simple("PONG"));
    assert_eq!(peer.call("RESET"), simple("RESET"));
    assert_eq!(peer.error("PING"), "NOAUTH Authentication required.");
    assert_eq!(peer.call("AUTH default secret"), simple("OK"));
    assert_eq!(peer.call("PING"), simple("PONG"));
    assert!(matches!(server.connect().call("HELLO 3 AUTH default secret"), Value::Map(_)));
    let mut peer = server.connect();
    peer.send("QUIT\r\n");
    assert_eq!(peer.rest(), "+OK\r\n");
}

#[test]
fn sg_commands_before_the_password_are_rejected() {
    let server = Running::with(|config| {
        config.resp.password = Some("secret".into());
        config.workers = Some(1);
    });
    let (mut known, mut stranger) = (server.connect(), server.connect());
    assert_eq!(known.call("AUTH secret"), simple("OK"));
    for left in [98, 97, 96] {
        assert_eq!(known.integers("SG.TAKE k gcra:1/1d:burst=99")[..3], [1, 99, left]);
        let refused = stranger.error("SG.TAKE k gcra:1/1d:burst=99");
        assert_eq!(refused, "NOAUTH Authentication required.");
    }
}

#[test]
fn password_is_never_returned() {
    let server = locked();
    let mut peer = server.connect();
    assert_eq!(peer.call("AUTH secret"), simple("OK"));
    for line in ["CONFIG GET *", "INFO", "CLIENT LIST"] {
        assert!(!format!("{:?}", peer.call(line)).contains("secret"), "{line}");
    }
}

#[test]
fn auth_without_a_password_is_an_error() {
    let server = Running::new();
    let mut peer = server.connect();
    assert!(
        peer.error("AUTH secret").starts_with("ERR AUTH <password> called without any password")
    );
    assert_eq!(peer.call("AUTH default anything"), simple("OK"));
    assert_eq!(peer.error("AUTH other anything"), WRONG);
}

#[test]
fn protocol_limits_before_the_password_are_tight() {
    let server = locked();
    let closed = |bytes: &[u8], reply: &str| {
        let mut peer = server.connect();
        peer.send(bytes);
        assert_eq!(peer.rest(), format!("-ERR Protocol error: {reply}\r\n"));
    };
    closed(b"*11\r\n", "unauthenticated multibulk length");
    closed(b"*2\r\n$4\r\nAUTH\r\n$16385\r\n", "unauthenticated bulk length");
    let mut peer = server.connect();
    let long = vec![b'x'; 16_384];
    assert_eq!(crate::harness::error(&peer.call_bytes(&[b"AUTH", &long])), WRONG);
    assert_eq!(
        crate::harness::error(&peer.call("A 1 2 3 4 5 6 7 8 9")),
        "NOAUTH Authentication required."
    );
    assert_eq!(peer.call("AUTH secret"), simple("OK"));
    // In the same batch, too: the limits hold from the next command on.
    assert!(matches!(peer.call_bytes(&[b"ECHO", &[b'x'; 16_385]]), Value::Bulk(_)));
    let mut together = server.connect();
    together.send("AUTH secret\r\n");
    together.send_arguments(&[b"ECHO", &[b'x'; 16_385]]);
    assert_eq!(together.read_reply(), simple("OK"));
    assert!(matches!(together.read_reply(), Value::Bulk(_)));
}

/// RELIABILITY 61: a connection has at most a thousand guesses a second, and others do not wait for them.
#[test]
fn auth_wrong_password_is_delayed_and_counted() {
    let server = locked();
    let tries = size("SLUICEGATE_WRONG_PASSWORDS", 100);
    let mut guesser = server.connect();
    let start = now();
    for guess in 0..tries {
        guesser.send_command(&format!("AUTH wrong{guess}"));
    }
    let mut other = server.connect();
    assert_eq!(
        other.call("AUTH secret"),
        simple("OK"),
        "other clients do not wait for the guesses"
    );
    for _ in 0..tries {
        assert_eq!(error(&guesser.read_reply()), WRONG);
    }
    let took = start.elapsed();
    println!("figure: {tries} wrong passwords on one connection took {took:?}");
    assert!(took >= Duration::from_millis(tries as u64), "{took:?}");
    let Value::Bulk(actual) = other.call("INFO stats") else { panic!("no text") };
    let actual = String::from_utf8(actual).unwrap();
    assert!(actual.contains(&format!("login_failures:{tries}\r\n")), "{actual}");
    // The right password is delayed behind a wrong one, too.
    guesser.send_command("AUTH wrong");
    guesser.send_command("AUTH secret");
    assert_eq!(error(&guesser.read_reply()), WRONG);
    assert_eq!(guesser.read_reply(), simple("OK"));
}
