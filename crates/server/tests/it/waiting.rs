//! `SG.WAIT` end to end. The races are tested in virtual time (`sluicegate_core::wait`). Order and lower
//! bounds of time are certain here; upper bounds are not.

use std::time::Duration;

use sluicegate_resp::Value;
use sluicegate_testing::{INVALID_WAITS, eventually};

use crate::harness::{RawClient, Running, integers, now, simple};

/// Sends a command on a connection of its own. Returns once `count` clients wait.
pub(crate) fn wait_in_queue(server: &Running, line: &str, count: u64) -> RawClient {
    let mut peer = server.connect();
    peer.send_command(line);
    server.until_exactly("blocked_clients", count);
    peer
}

#[test]
fn wait_leaky_queue_passes_one_each_interval() {
    let server = Running::new();
    let mut peer = server.connect();
    let start = now();
    for _ in 0..5 {
        peer.send_command("SG.WAIT q leaky-queue:50/1s:capacity=10");
    }
    for index in 0..5 {
        let decision = integers(&peer.read_reply());
        assert_eq!((decision[0], decision[5]), (1, 0), "{decision:?}");
        assert!(start.elapsed() >= Duration::from_millis(20 * index), "{index}");
    }
    assert_eq!(server.info_value("blocked_clients"), 0);
}

#[test]
fn disconnect_client_with_reservation_releases_it() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=2")[0], 1);
    let waiter =
        wait_in_queue(&server, "SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1125899906842624", 1);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 0, "it is full");
    drop(waiter);
    server.until_exactly("blocked_clients", 0);
    assert_eq!(
        peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0],
        1,
        "the reservation is released"
    );
}

#[test]
fn wait_many_clients_pass_in_order_of_arrival() {
    let server = Running::new();
    let policy = "gcra:20/1s:burst=1";
    let mut peer = server.connect();
    // An hour of debt: time for all to arrive.
    assert_eq!(peer.integers(&format!("SG.CHARGE l {policy} COST 72000"))[0], 1);
    let (sender, receiver) = std::sync::mpsc::channel();
    for index in 0..4 {
        let mut peer =
            wait_in_queue(&server, &format!("SG.WAIT l {policy} TIMEOUT 10000000000"), index + 1);
        let sender = sender.clone();
        std::thread::spawn(move || {
            let decision = integers(&peer.read_reply());
            assert_eq!(decision[0], 1, "{decision:?}");
            sender.send((now(), index)).unwrap();
        });
    }
    drop(sender);
    let start = now();
    assert_eq!(peer.call("SG.RESET l"), Value::Integer(1));
    let mut passed: Vec<_> = receiver.iter().collect();
    passed.sort();
    assert_eq!(passed.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(passed[3].0 - start >= Duration::from_millis(150), "one each 50 ms");
    assert_eq!(server.info_value("blocked_clients"), 0);
}

#[test]
fn wait_that_would_be_late_is_denied_immediately() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h")[0], 1);
    let denied = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 1000000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    // It would pass after 1 h, if no other client were ahead of it.
    let _ahead = wait_in_queue(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    let behind = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 4000000000");
    assert_eq!(behind[0], 0);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h COST 2")[3], -1, "never");
    assert_eq!(server.info_value("blocked_clients"), 1);
}

#[test]
fn command_that_lowers_usage_wakes_the_head() {
    let wakers = [
        "SG.RESET l",
        "DEL l",
        "SG.REFUND l gcra:1/1h",
        "SG.TAKE l gcra:1000000/1s",
        "SG.REFUND l fixed-window:1/1h",
    ];
    for waker in wakers {
        let server = Running::new();
        let mut peer = server.connect();
        assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
        let mut waiter = wait_in_queue(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
        if waker.contains("1000000/1s") {
            // Under another policy the usage drains sooner: one unit each microsecond.
            peer.call(waker);
            peer.call("SG.TAKE l gcra:1000000/1s COST 0");
            peer.call("SG.REFUND l gcra:1000000/1s COST 9");
        } else {
            assert!(!matches!(peer.call(waker), Value::Error(_)), "{waker}");
        }
        assert_eq!(integers(&waiter.read_reply())[0], 1, "{waker}");
    }
}

#[test]
fn disconnect_head_next_client_passes() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE l gcra:2/2h COST 1")[0], 1);
    let ahead = wait_in_queue(&server, "SG.WAIT l gcra:2/2h COST 2 TIMEOUT 100000000000", 1);
    let mut behind = wait_in_queue(&server, "SG.WAIT l gcra:2/2h TIMEOUT 100000000000", 2);
    drop(ahead);
    assert_eq!(integers(&behind.read_reply())[0], 1);
    server.until_exactly("blocked_clients", 0);
}

#[test]
fn commands_behind_a_wait_are_answered_after_it() {
    let server = Running::new();
    let mut peer = server.connect();
    peer.send_command("SG.WAIT l gcra:1/50ms");
    peer.send_command("SG.WAIT l gcra:1/50ms");
    peer.send_command("PING");
    peer.send_command("SG.WAIT l gcra:1/1h COST 0");
    peer.send_command("ECHO last");
    assert_eq!(integers(&peer.read_reply())[0], 1);
    assert_eq!(integers(&peer.read_reply())[0], 1);
    assert_eq!(peer.read_reply(), simple("PONG"));
    assert_eq!(integers(&peer.read_reply())[0], 1);
    assert_eq!(peer.read_reply(), crate::harness::bulk("last"));
}

#[test]
fn settle_lets_the_next_hold_go_at_once() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "concurrency:1/1h";
    assert_eq!(peer.integers(&format!("SG.HOLD k {policy} a"))[0], 1);
    let line = |id| format!("SG.HOLD k {policy} {id} TIMEOUT 1800000000");
    let mut next = wait_in_queue(&server, &line("b"), 1);
    let mut last = wait_in_queue(&server, &line("c"), 2);
    // The hold expires after the timeout: nothing but a settle lets them go.
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} a"))[0], 1);
    assert_eq!(integers(&next.read_reply())[0], 1);
    server.until_exactly("blocked_clients", 1);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} b"))[0], 1);
    assert_eq!(integers(&last.read_reply())[0], 1);
    assert_eq!(peer.integers(&format!("SG.PEEK k {policy}"))[2], 0, "the last one is open");
}

/// A client that has lost its connection repeats its hold: it does not wait behind those that wait for its units.
#[test]
fn repeated_hold_is_answered_before_those_that_wait() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "concurrency:1/1h";
    assert_eq!(peer.integers(&format!("SG.HOLD k {policy} a"))[0], 1);
    let line = |id| format!("SG.HOLD k {policy} {id} TIMEOUT 1800000000");
    let mut next = wait_in_queue(&server, &line("b"), 1);
    assert_eq!(peer.integers(&line("a"))[..3], [1, 1, 0]);
    server.until_exactly("blocked_clients", 1);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} a"))[0], 1);
    assert_eq!(integers(&next.read_reply())[0], 1);
    // Here a peek, which denies, comes before each attempt.
    let policy = "concurrency:1/1h,fixed-window:9/1h:count=all";
    let hold = format!("SG.HOLD l {policy} a");
    assert_eq!(peer.integers(&hold)[0], 1);
    assert_eq!(peer.integers(&format!("{hold} TIMEOUT 1800000000"))[0], 1);
    let all = format!("SG.TAKEALL 1 l {policy} 1 ID a TIMEOUT 1800000000");
    assert_eq!(of_all(&peer.call(&all)).0, 1);
}

/// What can never be allowed does not wait for its error, nor is it allowed without a unit.
#[test]
fn wait_for_an_invalid_request_is_an_error_immediately() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=1")[0], 1);
    assert_eq!(peer.integers("SG.TAKE k gcra:1/1h")[0], 1);
    let _waiting = wait_in_queue(&server, "SG.WAIT k gcra:1/1h TIMEOUT 10000000000", 1);
    for (command, expected) in INVALID_WAITS {
        let error = peer.error(command);
        assert!(error.starts_with(expected), "{command}: {error}");
    }
}

#[test]
fn hold_is_denied_when_its_timeout_is_over() {
    let server = Running::new();
    let mut peer = server.connect();
    let start = now();
    assert_eq!(peer.integers("SG.HOLD k concurrency:1/1h a")[0], 1);
    assert_eq!(peer.integers("SG.HOLD k concurrency:1/1h b TIMEOUT 50000")[0], 0);
    assert!(start.elapsed() >= Duration::from_millis(50));
    assert_eq!(peer.integers("SG.HOLD k concurrency:1/1h b COST 2 TIMEOUT 1800000000")[3], -1);
    assert_eq!(
        peer.integers("SG.HOLD k concurrency:1/1h a TIMEOUT 1800000000")[0],
        1,
        "it is open"
    );
}

/// Checks that nothing of `policy` is held in `key`.
fn until_free(server: &Running, key: &str, policy: &str, room: i64) {
    eventually(&format!("the holds of {key} are settled"), || {
        let decision = server.connect().integers(&format!("SG.PEEK {key} {policy}"));
        if decision[2] == room { Ok(()) } else { Err(decision) }
    });
}

#[test]
fn session_holds_are_settled_with_0_when_the_client_disconnects() {
    let server = Running::new();
    let both = "concurrency:9/1h,fixed-window:9/1h";
    let mut peer = server.connect();
    let mut client = server.connect();
    let hold = |id: &str, more: &str| format!("SG.HOLD k {both} {id} COST 2{more}");
    assert_eq!(client.integers(&hold("a", " SESSION"))[0], 1);
    assert_eq!(client.integers(&hold("a", " SESSION"))[0], 1, "it is open");
    assert_eq!(client.integers(&hold("b", " SESSION"))[0], 1);
    assert_eq!(client.integers(&hold("c", ""))[0], 1);
    assert_eq!(client.integers(&hold("d", " SESSION"))[2], 1);
    assert_eq!(client.integers(&format!("SG.SETTLE k {both} b USED 1"))[2], 2);
    assert_eq!(client.integers(&format!("SG.RENEW k {both} d"))[0], 1);
    // Another client's hold of an id that was denied here is not settled.
    let more = format!("SG.HOLD k {both} e COST 3 SESSION");
    assert_eq!(client.integers(&more)[0], 0);
    assert_eq!(peer.integers(&format!("SG.HOLD k {both} e"))[0], 1);
    // A client that waits leaves the queue.
    client.send_command(&format!("SG.HOLD k {both} w COST 9 TIMEOUT 1800000000 SESSION"));
    server.until_exactly("blocked_clients", 1);
    drop(client);
    // Left: `c`, `e` and the unit that `b` used.
    until_free(&server, "k", both, 5);
    for (id, is_open) in [("a", 0), ("b", 0), ("c", 1), ("d", 0), ("e", 1)] {
        assert_eq!(peer.integers(&format!("SG.SETTLE k {both} {id}"))[0], is_open, "{id}");
    }
}

/// A client that has lost its connection repeats its hold before the server has noticed that.
#[test]
fn session_hold_ends_with_the_last_connection_that_asked_for_it() {
    let server = Running::new();
    let policy = "concurrency:9/1h";
    let hold = |id: &str| format!("SG.HOLD k {policy} {id} SESSION");
    let (mut first, mut second) = (server.connect(), server.connect());
    for client in [&mut first, &mut second] {
        assert_eq!(client.integers(&hold("a"))[0], 1);
    }
    // Settled after `a`.
    assert_eq!(first.integers(&hold("b"))[2], 7);
    drop(first);
    until_free(&server, "k", policy, 8);
    assert_eq!(server.connect().integers(&format!("SG.RENEW k {policy} a"))[0], 1, "it is open");
    drop(second);
    until_free(&server, "k", policy, 9);
    server.until_exactly("buffer_bytes", 0);
}

#[test]
fn session_holds_that_are_over_or_renewed_by_others_end_when_they_should() {
    let server = Running::new();
    let policy = "concurrency:9/1h";
    let (mut client, mut peer) = (server.connect(), server.connect());
    let session = |id: &str, more: &str| format!("SG.HOLD k {policy} {id} {more} SESSION");
    for (id, more) in [
        ("renewed", "TTL 500000"),
        ("expired", "TTL 500000"),
        ("settled", "TTL 3600000000"),
        ("waited", "TTL 500000 TIMEOUT 3000000000"),
        ("z", "TTL 3600000000"),
    ] {
        assert_eq!(client.integers(&session(id, more))[0], 1, "{id}");
    }
    assert_eq!(peer.integers(&format!("SG.RENEW k {policy} renewed TTL 3000000000"))[0], 1);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} settled"))[0], 1);
    // Left: `renewed` and `z`.
    until_free(&server, "k", policy, 7);
    // Holds of other clients with the same ids.
    for id in ["expired", "settled", "waited"] {
        assert_eq!(peer.integers(&format!("SG.HOLD k {policy} {id}"))[0], 1, "{id}");
    }
    drop(client);
    until_free(&server, "k", policy, 6);
    for (id, is_open) in [("expired", 1), ("renewed", 0), ("settled", 1), ("waited", 1), ("z", 0)] {
        assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} {id}"))[0], is_open, "{id}");
    }
}

#[test]
fn session_holds_of_a_reset_key_are_forgotten() {
    let server = Running::new();
    let policy = "concurrency:9/1h";
    let (mut client, mut peer) = (server.connect(), server.connect());
    for (key, id) in [("k", "a"), ("k", "b"), ("z", "last")] {
        assert_eq!(client.integers(&format!("SG.HOLD {key} {policy} {id} SESSION"))[0], 1);
    }
    assert_eq!(peer.call("SG.RESET k"), Value::Integer(1));
    assert_eq!(peer.integers(&format!("SG.HOLD k {policy} a"))[0], 1, "of another client");
    drop(client);
    until_free(&server, "z", policy, 9);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} a"))[0], 1, "it was open");
    server.until_exactly("buffer_bytes", 0);
}

#[test]
fn session_holds_of_a_killed_or_quitting_client_let_the_next_one_go() {
    let server = Running::new();
    let policy = "concurrency:1/1h";
    let mut killer = server.connect();
    for (index, end) in ["QUIT", "CLIENT KILL"].into_iter().enumerate() {
        let mut client = server.connect();
        assert_eq!(client.integers(&format!("SG.HOLD k {policy} a SESSION"))[0], 1);
        let line = format!("SG.HOLD k {policy} next TIMEOUT 1800000000");
        let mut next = wait_in_queue(&server, &line, 1);
        if index == 0 {
            client.send_command(end);
        } else {
            let Value::Integer(id) = client.call("CLIENT ID") else { panic!("no id") };
            assert_eq!(killer.call(&format!("CLIENT KILL ID {id}")), Value::Integer(1));
        }
        assert_eq!(integers(&next.read_reply())[0], 1, "{end}");
        assert_eq!(killer.integers(&format!("SG.SETTLE k {policy} next"))[0], 1);
    }
}

#[test]
fn session_holds_are_bounded() {
    let server = Running::new();
    let policy = "concurrency:9999/1h";
    let mut client = server.connect();
    for id in 0..1024 {
        assert_eq!(client.integers(&format!("SG.HOLD k {policy} {id} SESSION"))[0], 1);
    }
    let one_more = client.call(&format!("SG.HOLD k {policy} x SESSION"));
    let Value::Error(error) = one_more else { panic!("{one_more:?}") };
    assert!(error.starts_with(b"ERR too many holds of this connection: expected at most 1024"));
    let waits = client.error(&format!("SG.HOLD k {policy} x TIMEOUT 1000 SESSION"));
    assert_eq!(waits.as_bytes(), error);
    assert_eq!(server.info_value("total_error_replies"), 2);
    assert_eq!(client.integers(&format!("SG.SETTLE k {policy} 7"))[0], 1);
    assert_eq!(client.integers(&format!("SG.HOLD k {policy} x SESSION"))[0], 1);
    assert!(server.info_value("buffer_bytes") > 1024 * 100, "they are counted");
    drop(client);
    until_free(&server, "k", policy, 9999);
    server.until_exactly("buffer_bytes", 0);
}

/// The first decision of a reply to `SG.TAKEALL`: allowed, and the binding key.
fn of_all(reply: &Value) -> (i64, i64) {
    let Value::Array(parts) = reply else { panic!("{reply:?}") };
    let first = integers(&parts[0]);
    (first[0], first[7])
}

#[test]
fn takeall_waits_for_one_key_after_the_other() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "concurrency:1/1h";
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.HOLD {key} {policy} a"))[0], 1);
    }
    // A key that is given twice counts once.
    let both = |id| {
        let takes = format!("x {policy} 1 x {policy} 1 y {policy} 1");
        format!("SG.TAKEALL 3 {takes} ID {id} TIMEOUT 1800000000")
    };
    let mut next = wait_in_queue(&server, &both("b"), 1);
    let mut last = wait_in_queue(&server, &both("c"), 2);
    // One key has free units now: nothing is held there, because the other one has none.
    assert_eq!(peer.integers(&format!("SG.SETTLE x {policy} a"))[0], 1);
    assert_eq!(peer.integers(&format!("SG.PEEK x {policy}"))[0], 1);
    assert_eq!(server.info_value("blocked_clients"), 2);
    assert_eq!(peer.integers(&format!("SG.SETTLE y {policy} a"))[0], 1);
    assert_eq!(of_all(&next.read_reply()), (1, 0));
    server.until_exactly("blocked_clients", 1);
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.PEEK {key} {policy}"))[0], 0, "{key} is held");
        assert_eq!(peer.integers(&format!("SG.SETTLE {key} {policy} b"))[0], 1);
    }
    assert_eq!(of_all(&last.read_reply()), (1, 0));
}

#[test]
fn takeall_is_denied_when_its_timeout_is_over_and_leaves_when_its_client_does() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "fixed-window:1/1h";
    assert_eq!(peer.integers(&format!("SG.TAKE y {policy}"))[0], 1);
    let takes = format!("SG.TAKEALL 2 x {policy} 1 y {policy} 1");
    let start = now();
    assert_eq!(of_all(&peer.call(&format!("{takes} TIMEOUT 50000"))), (0, 1));
    assert!(start.elapsed() >= Duration::from_millis(50));
    let never = peer.call(&format!("SG.TAKEALL 2 x {policy} 2 y {policy} 1 TIMEOUT 1800000000"));
    assert_eq!(of_all(&never), (0, 0), "it can never pass");
    let waiter = wait_in_queue(&server, &format!("{takes} TIMEOUT 1800000000"), 1);
    drop(waiter);
    server.until_exactly("blocked_clients", 0);
    assert_eq!(peer.integers(&format!("SG.PEEK x {policy}"))[0], 1, "nothing was taken");
    assert_eq!(peer.integers(&format!("SG.REFUND y {policy}"))[0], 1);
    assert_eq!(of_all(&peer.call(&format!("{takes} TIMEOUT 1800000000"))), (1, 0));
}

#[test]
fn takeall_denied_under_count_all_is_recorded_once() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "sliding-log:3/1h:count=all";
    assert_eq!(peer.integers("SG.TAKE y fixed-window:1/1h")[0], 1);
    let takes = format!("SG.TAKEALL 2 x {policy} 1 y fixed-window:1/1h 1 TIMEOUT 50000");
    assert_eq!(of_all(&peer.call(&takes)), (0, 1));
    assert_eq!(peer.integers(&format!("SG.PEEK x {policy}"))[2], 2, "one denial is recorded");
    // A cost beyond the limit can never pass, and is recorded as without a timeout.
    for timeout in ["", " TIMEOUT 50000"] {
        let key = format!("never{}", timeout.len());
        let takes = format!("SG.TAKEALL 2 {key} {policy} 1 other {policy} 4{timeout}");
        assert_eq!(of_all(&peer.call(&takes)), (0, 1), "{timeout}");
        assert_eq!(peer.integers(&format!("SG.PEEK {key} {policy}"))[2], 2, "{timeout}");
    }
}
