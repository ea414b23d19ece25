//! `SG.WAIT`. Order and lower bounds of time are certain; upper bounds never are.

use std::time::Duration;

use redis::Value;
use sluicegate_testing::{Engine, Peer, Server, integers, now};

use crate::{on_both, server::serve};

/// Asks on a connection and a thread of its own; stands there when this returns.
struct Stander {
    thread: std::thread::JoinHandle<Result<Value, String>>,
    id: i64,
}

impl Stander {
    fn hear(self) -> Vec<i64> {
        integers(&self.thread.join().unwrap().unwrap())
    }
}

fn stand(server: &Server, line: &str, place: u64) -> Stander {
    let mut peer = server.peer();
    let Ok(Value::Int(id)) = peer.say("CLIENT ID") else { panic!("no id") };
    let line = line.to_owned();
    let thread = std::thread::spawn(move || peer.say(&line));
    until_waiting(&mut server.peer(), place);
    Stander { thread, id }
}

fn until_waiting(peer: &mut Peer, count: u64) {
    peer.until(|it| it.told("sluicegate", "sluicegate_waiting") == count);
}

fn leave(peer: &mut Peer, stander: Stander) {
    assert_eq!(peer.say(&format!("CLIENT KILL ID {}", stander.id)), Ok(Value::Int(1)));
    assert!(stander.thread.join().unwrap().is_err());
}

fn a_queue_lets_one_go_each_interval(engine: Engine) {
    let server = serve(engine);
    let policy = "leaky-queue:50/1s:capacity=10";
    let start = now();
    let mut standers = Vec::new();
    for _ in 0..5 {
        let mut peer = server.peer();
        let line = format!("SG.WAIT q {policy}");
        standers.push(std::thread::spawn(move || (peer.integers(&line), now())));
    }
    let mut answers: Vec<_> = standers.into_iter().map(|it| it.join().unwrap()).collect();
    answers.sort_by_key(|(_, at)| *at);
    for (index, (decision, at)) in (0..).zip(answers) {
        assert_eq!((decision[0], decision[5]), (1, 0), "{decision:?}");
        assert!(at - start >= Duration::from_millis(20 * index), "{index}");
    }
    until_waiting(&mut server.peer(), 0);
}

fn a_queue_that_is_too_long_denies_at_once(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    assert_eq!(peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2")[0], 1);
    let denied = peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    assert_eq!(peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2 COST 3")[3], -1);
}

fn a_departure_is_given_back_by_one_who_is_killed(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    assert_eq!(peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=2")[0], 1);
    let line = "SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1125899906842624";
    let waiter = stand(&server, line, 1);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 0, "it is full");
    leave(&mut peer, waiter);
    until_waiting(&mut peer, 0);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 1, "there is room again");
}

fn waiters_stand_in_line(engine: Engine) {
    let server = serve(engine);
    let policy = "gcra:20/1s:burst=1";
    let mut peer = server.peer();
    // An hour of debt: time for all to arrive.
    assert_eq!(peer.integers(&format!("SG.CHARGE l {policy} COST 72000"))[0], 1);
    let line = format!("SG.WAIT l {policy} TIMEOUT 10000000000");
    let standers: Vec<_> = (1..=4).map(|place| stand(&server, &line, place)).collect();
    let start = now();
    assert_eq!(peer.say("SG.RESET l"), Ok(Value::Int(1)));
    let mut last = start;
    for (index, stander) in (0..).zip(standers) {
        assert_eq!(stander.hear()[0], 1);
        let heard = now();
        assert!(heard >= last && heard - start >= Duration::from_millis(50 * index), "{index}");
        last = heard;
    }
    until_waiting(&mut peer, 0);
}

fn a_turn_that_comes_too_late_is_denied_on_arrival(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h")[0], 1);
    let denied = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 1000000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    // Its own turn would come in 1 h, but one stands before it.
    let ahead = stand(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 4000000000")[0], 0);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h COST 2")[3], -1, "never");
    assert_eq!(peer.told("sluicegate", "sluicegate_waiting"), 1);
    leave(&mut peer, ahead);
}

fn whatever_gives_back_wakes_the_line(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
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
        peer.say("SG.RESET l").unwrap();
        assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
        let waiter = stand(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
        if waker.contains("1000000/1s") {
            // Under another rule what is in use drains sooner: one unit each µs.
            assert_eq!(peer.integers("SG.REFUND l gcra:1000000/1s COST 9")[0], 1);
        } else {
            assert!(peer.say(waker).is_ok(), "{waker}");
        }
        assert_eq!(waiter.hear()[0], 1, "{waker}");
        until_waiting(&mut peer, 0);
    }
}

fn one_who_is_killed_makes_way(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    assert_eq!(peer.integers("SG.TAKE l gcra:2/2h COST 1")[0], 1);
    let ahead = stand(&server, "SG.WAIT l gcra:2/2h COST 2 TIMEOUT 100000000000", 1);
    let behind = stand(&server, "SG.WAIT l gcra:2/2h TIMEOUT 100000000000", 2);
    leave(&mut peer, ahead);
    assert_eq!(behind.hear()[0], 1);
}

fn a_denied_wait_is_recorded_once(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    let policy = "sliding-log:2/1h:count=all:keep-max=100:keep=1h";
    let used = |peer: &mut Peer| 100 - peer.integers("SG.PEEK l sliding-log:100/1h")[2];
    assert_eq!(peer.integers(&format!("SG.TAKE l {policy} COST 2"))[0], 1);
    assert_eq!(peer.integers(&format!("SG.WAIT l {policy} TIMEOUT 1000"))[0], 0);
    let waiter = stand(&server, &format!("SG.WAIT l {policy} TIMEOUT 7200000000"), 1);
    assert_eq!(used(&mut peer), 3, "one denial");
    assert_eq!(peer.say("SG.RESET l"), Ok(Value::Int(1)));
    assert_eq!(waiter.hear()[0], 1);
    assert_eq!(used(&mut peer), 1, "the one that passed, and not its waiting");
}

fn a_mixed_policy_waits_for_both(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    let policy = "leaky-queue:50/1s:capacity=10,fixed-window:3/1h";
    let start = now();
    for index in 0..3 {
        assert_eq!(peer.integers(&format!("SG.WAIT m {policy}"))[0], 1);
        assert!(start.elapsed() >= Duration::from_millis(20 * index), "{index}");
    }
    let denied = peer.integers(&format!("SG.WAIT m {policy}"));
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
}

/// Where nobody may wait it is a take.
fn in_a_transaction_and_a_script_it_is_a_take(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    let line = "SG.WAIT t gcra:2/1h TIMEOUT 10000000000";
    for allowed in [1, 1, 0] {
        peer.say("MULTI").unwrap();
        peer.say(line).unwrap();
        let Ok(Value::Array(replies)) = peer.say("EXEC") else { panic!("no array") };
        assert_eq!(integers(&replies[0])[0], allowed);
    }
    let script = b"return redis.call('SG.WAIT', KEYS[1], 'gcra:2/1h', 'TIMEOUT', '10000000000')";
    let reply = peer.ask(&[b"EVAL", script, b"1", b"t"]).unwrap();
    assert_eq!(integers(&reply)[0], 0);
    assert_eq!(peer.told("sluicegate", "sluicegate_waiting"), 0);
}

/// The key of somebody who waits turns into a list.
fn what_goes_wrong_meanwhile_is_told(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    assert_eq!(peer.integers("SG.TAKE l gcra:1/1h")[0], 1);
    let waiter = stand(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    peer.say("MULTI").unwrap();
    peer.say("DEL l").unwrap();
    peer.say("RPUSH l 1").unwrap();
    peer.say("EXEC").unwrap();
    let error = waiter.thread.join().unwrap().unwrap_err();
    assert!(error.starts_with("WRONGTYPE key `"), "{error}");
}

on_both! {
    a_queue_lets_one_go_each_interval
    a_queue_that_is_too_long_denies_at_once
    a_departure_is_given_back_by_one_who_is_killed
    waiters_stand_in_line
    a_turn_that_comes_too_late_is_denied_on_arrival
    whatever_gives_back_wakes_the_line
    one_who_is_killed_makes_way
    a_denied_wait_is_recorded_once
    a_mixed_policy_waits_for_both
    in_a_transaction_and_a_script_it_is_a_take
    what_goes_wrong_meanwhile_is_told
}
