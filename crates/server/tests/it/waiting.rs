//! `SG.WAIT` end to end. The races are tested in virtual time (`sluicegate_core::wait`). Order and lower
//! bounds of time are certain here; upper bounds are not.

use std::time::Duration;

use sluicegate_resp::Value;
use sluicegate_testing::INVALID_WAITS;

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

#[test]
fn wait_requests_use_at_most_three_quarters_of_the_budget() {
    let server = Running::with(|config| config.max_buffer_memory = 256 << 10);
    let policy = "gcra:1/1h:burst=1";
    let one = |it: usize| format!("SG.WAIT {it:x>60000} {policy} TIMEOUT 7200000000");
    let all = |it: usize| {
        let takes = (0..2).map(|at| format!(" {at}{it:x>30000} {policy} 1"));
        format!("SG.TAKEALL 2{} TIMEOUT 7200000000", takes.collect::<String>())
    };
    let mut peer = server.connect();
    for it in 0..4 {
        assert_eq!(peer.integers(&format!("SG.TAKE {it:x>60000} {policy}"))[0], 1);
        assert_eq!(peer.integers(&format!("SG.TAKE 0{it:x>30000} {policy}"))[0], 1);
    }
    for line in [&one as &dyn Fn(usize) -> String, &all] {
        // What a command needs while it arrives is in the budget, too.
        let waiting: Vec<_> =
            (0..2).map(|it| wait_in_queue(&server, &line(it), it as u64 + 1)).collect();
        assert_eq!(server.connect().error(&line(3)), "ERR max buffer memory reached");
        let reserved = server.info_value("buffer_bytes");
        assert!((120_000..=192 << 10).contains(&reserved), "{reserved}");
        drop(waiting);
        server.until_exactly("buffer_bytes", 0);
    }
}

#[test]
fn wait_policies_of_requests_are_reserved() {
    let server = Running::new();
    let limits = |at: usize| {
        let limit = |it| format!("fixed-window:{}/day:tz=America/Argentina/Ushuaia", at * 10 + it);
        (1..=8).map(limit).collect::<Vec<_>>().join(",")
    };
    let takes: String = (0..8).map(|at| format!(" k{at} {} 1", limits(at))).collect();
    let mut peer = server.connect();
    peer.call(&format!("SG.CHARGE k0 {} COST 99", limits(0)));
    let waiting = wait_in_queue(&server, &format!("SG.TAKEALL 8{takes} TIMEOUT 600000000000"), 1);
    let reserved = server.info_value("buffer_bytes");
    assert!(reserved >= 8 * 1024, "{reserved}");
    drop(waiting);
    server.until_exactly("buffer_bytes", 0);
}
