//! Clients that send no request, and clients that read no reply.

use std::{
    io::{Read, Write},
    time::Duration,
};

use crate::harness::{Running, integers, simple};

#[test]
fn idle_client_is_closed() {
    let server = Running::with(|config| config.timeouts.idle = Duration::from_millis(300));
    let mut silent = server.connect();
    assert_eq!(silent.rest(), "");
    // A client that has sent requests is closed later as well; a waiting one is not.
    let mut waiting = server.connect();
    waiting.send("SG.WAIT k gcra:1/1s COST 1\r\nSG.WAIT k gcra:1/1s\r\nINFO stats\r\n");
    assert_eq!(integers(&waiting.read_reply())[0], 1);
    assert_eq!(integers(&waiting.read_reply())[0], 1);
    let actual = waiting.rest();
    let closed = actual.lines().find_map(|line| line.strip_prefix("closed_idle:")).unwrap();
    assert_eq!(closed, "1");
}

#[test]
fn client_after_a_wait_is_served() {
    let server = Running::with(|config| config.timeouts.idle = Duration::from_secs(2));
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.WAIT k gcra:1/3s")[0], 1);
    assert_eq!(peer.integers("SG.WAIT k gcra:1/3s")[0], 1);
    assert_eq!(peer.call("PING"), simple("PONG"), "its last command was 3 seconds ago");
}

#[test]
fn client_that_does_not_read_is_closed() {
    let server = Running::with(|config| config.timeouts.output = Duration::from_millis(300));
    let mut peers: Vec<_> = (0..20).map(|_| server.connect()).collect();
    let line = format!("ECHO {}\r\n", "x".repeat(60_000));
    for peer in &mut peers {
        // The connection is closed while the client still sends, which it notices sooner or later.
        while peer.stream.write_all(line.as_bytes()).is_ok() {}
    }
    server.until_exactly("closed_slow", 20);
    server.until_exactly("connected_clients", 1);
    // Bytes that were sent to a client earlier end without the rest.
    let mut taken = Vec::new();
    let _ = peers[0].stream.read_to_end(&mut taken);
    assert_eq!(server.connect().call("PING"), simple("PONG"));
}
