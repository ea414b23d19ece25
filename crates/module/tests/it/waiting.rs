//! `SG.WAIT` end to end. The races are tested in virtual time (`sluicegate_core::wait`). Order and lower
//! bounds of time are certain here; upper bounds are not.

use std::time::Duration;

use redis::Value;
use sluicegate_testing::{Engine, INVALID_WAITS, RawClient, Server, integers, module, now};

use crate::{on_both, server::serve};

/// A client that waits, on a connection and a thread of its own.
pub(crate) struct WaitingPeer {
    pub(crate) thread: std::thread::JoinHandle<Result<Value, String>>,
    id: i64,
}

impl WaitingPeer {
    pub(crate) fn read_reply(self) -> Vec<i64> {
        integers(&self.thread.join().unwrap().unwrap())
    }
}

/// Sends a command. Returns once `count` clients wait.
pub(crate) fn wait_in_queue(server: &Server, line: &str, count: u64) -> WaitingPeer {
    let mut peer = server.raw_client();
    let Ok(Value::Int(id)) = peer.call("CLIENT ID") else { panic!("no id") };
    let line = line.to_owned();
    let thread = std::thread::spawn(move || peer.call(&line));
    until_waiting(&mut server.raw_client(), count);
    WaitingPeer { thread, id }
}

pub(crate) fn until_waiting(peer: &mut RawClient, count: u64) {
    peer.eventually_true(|it| it.info_value("sluicegate", "sluicegate_waiting") == count);
}

fn leave(peer: &mut RawClient, waiting: WaitingPeer) {
    assert_eq!(peer.call(&format!("CLIENT KILL ID {}", waiting.id)), Ok(Value::Int(1)));
    assert!(waiting.thread.join().unwrap().is_err());
}

fn wait_leaky_queue_passes_one_each_interval(engine: Engine) {
    let server = serve(engine);
    let policy = "leaky-queue:50/1s:capacity=10";
    let start = now();
    let mut waiting = Vec::new();
    for _ in 0..5 {
        let mut peer = server.raw_client();
        let line = format!("SG.WAIT q {policy}");
        waiting.push(std::thread::spawn(move || (peer.integers(&line), now())));
    }
    let mut answers: Vec<_> = waiting.into_iter().map(|it| it.join().unwrap()).collect();
    answers.sort_by_key(|(_, at)| *at);
    for (index, (decision, at)) in (0..).zip(answers) {
        assert_eq!((decision[0], decision[5]), (1, 0), "{decision:?}");
        assert!(at - start >= Duration::from_millis(20 * index), "{index}");
    }
    until_waiting(&mut server.raw_client(), 0);
}

fn kill_client_with_reservation_releases_it(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    assert_eq!(peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=2")[0], 1);
    let line = "SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1125899906842624";
    let waiter = wait_in_queue(&server, line, 1);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 0, "it is full");
    leave(&mut peer, waiter);
    until_waiting(&mut peer, 0);
    assert_eq!(
        peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0],
        1,
        "the reservation is released"
    );
}

fn wait_many_clients_pass_in_order_of_arrival(engine: Engine) {
    let server = serve(engine);
    let policy = "gcra:20/1s:burst=1";
    let mut peer = server.raw_client();
    // An hour of debt: time for all to arrive.
    assert_eq!(peer.integers(&format!("SG.CHARGE l {policy} COST 72000"))[0], 1);
    let line = format!("SG.WAIT l {policy} TIMEOUT 10000000000");
    let waiting: Vec<_> = (1..=4).map(|place| wait_in_queue(&server, &line, place)).collect();
    let start = now();
    assert_eq!(peer.call("SG.RESET l"), Ok(Value::Int(1)));
    let mut last = start;
    for (index, waiting) in (0..).zip(waiting) {
        assert_eq!(waiting.read_reply()[0], 1);
        let received = now();
        assert!(
            received >= last && received - start >= Duration::from_millis(50 * index),
            "{index}"
        );
        last = received;
    }
    until_waiting(&mut peer, 0);
}

fn wait_that_would_be_late_is_denied_immediately(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h")[0], 1);
    let denied = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 1000000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    // It would pass after 1 h, if no other client were ahead of it.
    let ahead = wait_in_queue(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 4000000000")[0], 0);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h COST 2")[3], -1, "never");
    assert_eq!(peer.info_value("sluicegate", "sluicegate_waiting"), 1);
    leave(&mut peer, ahead);
}

fn command_that_lowers_usage_wakes_the_head(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let wakers = [
        "SG.RESET l",
        "DEL l",
        "FLUSHALL",
        "PEXPIRE l 1",
        "RENAME l elsewhere",
        "SG.REFUND l gcra:1/1h",
        "SG.REFUND l fixed-window:1/1h",
        "SG.CHARGE l gcra:1000000/1s COST 0",
    ];
    for waker in wakers {
        peer.call("SG.RESET l").unwrap();
        assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
        let waiter = wait_in_queue(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
        if waker.contains("1000000/1s") {
            // Under another policy the usage drains sooner: one unit each microsecond.
            assert_eq!(peer.integers("SG.REFUND l gcra:1000000/1s COST 9")[0], 1);
        } else {
            assert!(peer.call(waker).is_ok(), "{waker}");
        }
        assert_eq!(waiter.read_reply()[0], 1, "{waker}");
        until_waiting(&mut peer, 0);
    }
}

fn kill_head_next_client_passes(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    assert_eq!(peer.integers("SG.TAKE l gcra:2/2h COST 1")[0], 1);
    let ahead = wait_in_queue(&server, "SG.WAIT l gcra:2/2h COST 2 TIMEOUT 100000000000", 1);
    let behind = wait_in_queue(&server, "SG.WAIT l gcra:2/2h TIMEOUT 100000000000", 2);
    leave(&mut peer, ahead);
    assert_eq!(behind.read_reply()[0], 1);
}

fn wait_in_transaction_or_script_is_a_take(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let line = "SG.WAIT t gcra:2/1h TIMEOUT 10000000000";
    for allowed in [1, 1, 0] {
        peer.call("MULTI").unwrap();
        peer.call(line).unwrap();
        let Ok(Value::Array(replies)) = peer.call("EXEC") else { panic!("no array") };
        assert_eq!(integers(&replies[0])[0], allowed);
    }
    let script = b"return redis.call('SG.WAIT', KEYS[1], 'gcra:2/1h', 'TIMEOUT', '10000000000')";
    let reply = peer.call_bytes(&[b"EVAL", script, b"1", b"t"]).unwrap();
    assert_eq!(integers(&reply)[0], 0);
    assert_eq!(peer.info_value("sluicegate", "sluicegate_waiting"), 0);
}

fn key_of_another_type_is_an_error_for_waiting_clients(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
    let waiter = wait_in_queue(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    peer.call("MULTI").unwrap();
    peer.call("DEL l").unwrap();
    peer.call("RPUSH l 1").unwrap();
    peer.call("EXEC").unwrap();
    let error = waiter.thread.join().unwrap().unwrap_err();
    assert!(error.starts_with("WRONGTYPE key `"), "{error}");
}

fn settle_lets_the_next_hold_go_at_once(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let policy = "concurrency:1/1h";
    assert_eq!(peer.integers(&format!("SG.HOLD k {policy} a"))[0], 1);
    let line = |id| format!("SG.HOLD k {policy} {id} TIMEOUT 1800000000");
    let next = wait_in_queue(&server, &line("b"), 1);
    let last = wait_in_queue(&server, &line("c"), 2);
    // The hold expires after the timeout: nothing but a settle lets them go.
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} a"))[0], 1);
    assert_eq!(next.read_reply()[0], 1);
    until_waiting(&mut peer, 1);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} b"))[0], 1);
    assert_eq!(last.read_reply()[0], 1);
    assert_eq!(peer.integers("SG.HOLD k concurrency:1/1h d TIMEOUT 50000")[0], 0);
}

/// A client that has lost its connection repeats its hold: it does not wait behind those that wait for its units.
fn repeated_hold_is_answered_before_those_that_wait(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let policy = "concurrency:1/1h";
    assert_eq!(peer.integers(&format!("SG.HOLD k {policy} a"))[0], 1);
    let line = |id| format!("SG.HOLD k {policy} {id} TIMEOUT 1800000000");
    let next = wait_in_queue(&server, &line("b"), 1);
    assert_eq!(peer.integers(&line("a"))[..3], [1, 1, 0]);
    until_waiting(&mut peer, 1);
    assert_eq!(peer.integers(&format!("SG.SETTLE k {policy} a"))[0], 1);
    assert_eq!(next.read_reply()[0], 1);
    // Here a peek, which denies, comes before each attempt.
    let policy = "concurrency:1/1h,fixed-window:9/1h:count=all";
    let hold = format!("SG.HOLD l {policy} a");
    assert_eq!(peer.integers(&hold)[0], 1);
    assert_eq!(peer.integers(&format!("{hold} TIMEOUT 1800000000"))[0], 1);
    let all = format!("SG.TAKEALL 1 l {policy} 1 ID a TIMEOUT 1800000000");
    assert_eq!(of_all(&peer.call(&all).unwrap()).0, 1);
}

/// The first decision of a reply to `SG.TAKEALL`: allowed, and the binding key.
fn of_all(reply: &Value) -> (i64, i64) {
    let Value::Array(parts) = reply else { panic!("{reply:?}") };
    let first = integers(&parts[0]);
    (first[0], first[7])
}

fn takeall_waits_for_one_key_after_the_other(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let policy = "concurrency:1/1h";
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.HOLD {key} {policy} a"))[0], 1);
    }
    // A key that is given twice counts once.
    let both = |id| {
        let takes = format!("x {policy} 1 x {policy} 1 y {policy} 1");
        format!("SG.TAKEALL 3 {takes} ID {id} TIMEOUT 1800000000")
    };
    let next = wait_in_queue(&server, &both("b"), 1);
    let last = wait_in_queue(&server, &both("c"), 2);
    // One key has free units now: nothing is held there, because the other one has none.
    assert_eq!(peer.integers(&format!("SG.SETTLE x {policy} a"))[0], 1);
    assert_eq!(peer.integers(&format!("SG.PEEK x {policy}"))[0], 1);
    until_waiting(&mut peer, 2);
    assert_eq!(peer.integers(&format!("SG.SETTLE y {policy} a"))[0], 1);
    assert_eq!(of_all(&next.thread.join().unwrap().unwrap()), (1, 0));
    until_waiting(&mut peer, 1);
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.PEEK {key} {policy}"))[0], 0, "{key} is held");
        assert_eq!(peer.integers(&format!("SG.SETTLE {key} {policy} b"))[0], 1);
    }
    assert_eq!(of_all(&last.thread.join().unwrap().unwrap()), (1, 0));
}

fn takeall_is_denied_when_its_timeout_is_over_and_leaves_when_its_client_does(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let policy = "fixed-window:1/1h";
    assert_eq!(peer.integers(&format!("SG.TAKE y {policy}"))[0], 1);
    let takes = format!("SG.TAKEALL 2 x {policy} 1 y {policy} 1");
    let start = now();
    assert_eq!(of_all(&peer.call(&format!("{takes} TIMEOUT 50000")).unwrap()), (0, 1));
    assert!(now() - start >= Duration::from_millis(50));
    let never = peer.call(&format!("SG.TAKEALL 2 x {policy} 2 y {policy} 1 TIMEOUT 1800000000"));
    assert_eq!(of_all(&never.unwrap()), (0, 0), "it can never pass");
    let waiter = wait_in_queue(&server, &format!("{takes} TIMEOUT 1800000000"), 1);
    leave(&mut peer, waiter);
    until_waiting(&mut peer, 0);
    assert_eq!(peer.integers(&format!("SG.PEEK x {policy}"))[0], 1, "nothing was taken");
    let log = "sliding-log:3/1h:count=all";
    let late = format!("SG.TAKEALL 2 z {log} 1 y {policy} 1 TIMEOUT 50000");
    assert_eq!(of_all(&peer.call(&late).unwrap()), (0, 1));
    assert_eq!(peer.integers(&format!("SG.PEEK z {log}"))[2], 2, "one denial is recorded");
    let never = format!("SG.TAKEALL 2 n {log} 1 o {log} 4 TIMEOUT 50000");
    assert_eq!(of_all(&peer.call(&never).unwrap()), (0, 1));
    assert_eq!(peer.integers(&format!("SG.PEEK n {log}"))[2], 2, "so is one that can never pass");
    assert_eq!(peer.integers(&format!("SG.REFUND y {policy}"))[0], 1);
    assert_eq!(of_all(&peer.call(&format!("{takes} TIMEOUT 1800000000")).unwrap()), (1, 0));
}

/// What can never be allowed does not wait for its error, nor is it allowed without a unit.
fn wait_for_an_invalid_request_is_an_error_immediately(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=1");
    peer.integers("SG.TAKE k gcra:1/1h");
    let waiting = wait_in_queue(&server, "SG.WAIT k gcra:1/1h TIMEOUT 10000000000", 1);
    for (command, expected) in INVALID_WAITS {
        let error = peer.error(command);
        assert!(error.starts_with(expected), "{command}: {error}");
    }
    leave(&mut peer, waiting);
}

/// While clients are paused, as during a failover, a write outside of a command aborts the server.
fn paused_server_serves_waiting_clients_afterwards(engine: Engine) {
    let server = Server::with(engine, &["--loadmodule", module(), "--appendonly", "yes"]);
    let mut peer = server.raw_client();
    peer.integers("SG.TAKE k gcra:20/1s:burst=1");
    peer.integers("SG.HOLD h concurrency:1/100ms old");
    let waiting = wait_in_queue(&server, "SG.WAIT k gcra:20/1s:burst=1", 1);
    let all = wait_in_queue(&server, "SG.TAKEALL 1 k gcra:20/1s:burst=1 1 TIMEOUT 30000000", 2);
    let hold = wait_in_queue(&server, "SG.HOLD h concurrency:1/100ms new TIMEOUT 30000000", 3);
    let start = now();
    peer.call("CLIENT PAUSE 700 WRITE").unwrap();
    for waiting in [waiting, hold] {
        assert_eq!(waiting.read_reply()[0], 1);
        assert!(now() - start >= Duration::from_millis(700), "{:?}", now() - start);
    }
    assert!(all.thread.join().unwrap().is_ok());
}

on_both! {
    paused_server_serves_waiting_clients_afterwards
    wait_for_an_invalid_request_is_an_error_immediately
    takeall_waits_for_one_key_after_the_other
    takeall_is_denied_when_its_timeout_is_over_and_leaves_when_its_client_does
    settle_lets_the_next_hold_go_at_once
    repeated_hold_is_answered_before_those_that_wait
    wait_leaky_queue_passes_one_each_interval
    kill_client_with_reservation_releases_it
    wait_many_clients_pass_in_order_of_arrival
    wait_that_would_be_late_is_denied_immediately
    command_that_lowers_usage_wakes_the_head
    kill_head_next_client_passes
    wait_in_transaction_or_script_is_a_take
    key_of_another_type_is_an_error_for_waiting_clients
}
