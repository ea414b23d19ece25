//! `SG.WAIT`. Order and lower bounds of time are certain; upper bounds never are.

use std::time::Duration;

use sluicegate_resp::Value;

use crate::harness::{Peer, Running, integers, now, simple};

/// Asks from a connection of its own, and is in line when this returns.
fn stand(server: &Running, line: &str, place: u64) -> Peer {
    let mut peer = server.connect();
    peer.ask(line);
    server.until_told("blocked_clients", place);
    peer
}

#[test]
fn a_queue_lets_one_go_each_interval() {
    let server = Running::new();
    let mut peer = server.connect();
    let start = now();
    for _ in 0..5 {
        peer.ask("SG.WAIT q leaky-queue:50/1s:capacity=10");
    }
    for index in 0..5 {
        let decision = integers(&peer.hear());
        assert_eq!((decision[0], decision[5]), (1, 0), "{decision:?}");
        assert!(start.elapsed() >= Duration::from_millis(20 * index), "{index}");
    }
    assert_eq!(server.told("blocked_clients"), 0);
}

#[test]
fn a_queue_departs_in_order_of_arrival() {
    let server = Running::new();
    let (sender, receiver) = std::sync::mpsc::channel();
    assert_eq!(server.connect().integers("SG.TAKE q leaky-queue:20/1s:capacity=60 COST 40")[0], 1);
    for index in 0..4 {
        let mut peer = stand(&server, "SG.WAIT q leaky-queue:20/1s:capacity=60", index + 1);
        let sender = sender.clone();
        std::thread::spawn(move || {
            assert_eq!(integers(&peer.hear())[0], 1);
            sender.send((now(), index)).unwrap();
        });
    }
    drop(sender);
    let mut departed: Vec<_> = receiver.iter().collect();
    departed.sort();
    assert_eq!(departed.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn a_queue_that_is_too_long_denies_at_once() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2")[0], 1);
    let denied = peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    assert_eq!(peer.integers("SG.WAIT q leaky-queue:1/1h:capacity=2 COST 3")[3], -1);
}

#[test]
fn a_departure_is_given_back_by_one_who_leaves() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=2")[0], 1);
    let waiter =
        stand(&server, "SG.WAIT q leaky-queue:1/1h:capacity=2 TIMEOUT 1125899906842624", 1);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 0, "it is full");
    drop(waiter);
    server.until_told("blocked_clients", 0);
    assert_eq!(peer.integers("SG.PEEK q leaky-queue:1/1h:capacity=2")[0], 1, "there is room again");
}

#[test]
fn waiters_stand_in_line() {
    let server = Running::new();
    let policy = "gcra:20/1s:burst=1";
    let mut peer = server.connect();
    // An hour of debt: time for all to arrive.
    assert_eq!(peer.integers(&format!("SG.CHARGE l {policy} COST 72000"))[0], 1);
    let (sender, receiver) = std::sync::mpsc::channel();
    for index in 0..4 {
        let mut peer =
            stand(&server, &format!("SG.WAIT l {policy} TIMEOUT 10000000000"), index + 1);
        let sender = sender.clone();
        std::thread::spawn(move || {
            let decision = integers(&peer.hear());
            assert_eq!(decision[0], 1, "{decision:?}");
            sender.send((now(), index)).unwrap();
        });
    }
    drop(sender);
    let start = now();
    assert_eq!(peer.say("SG.RESET l"), Value::Integer(1));
    let mut passed: Vec<_> = receiver.iter().collect();
    passed.sort();
    assert_eq!(passed.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(passed[3].0 - start >= Duration::from_millis(150), "one each 50 ms");
    assert_eq!(server.told("blocked_clients"), 0);
}

#[test]
fn a_turn_that_comes_too_late_is_denied_on_arrival() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h")[0], 1);
    let denied = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 1000000000");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_000_000_000, "{denied:?}");
    // Its own turn would come in 1 h, but one stands before it.
    let _ahead = stand(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
    let behind = peer.integers("SG.WAIT l gcra:1/1h TIMEOUT 4000000000");
    assert_eq!(behind[0], 0);
    assert_eq!(peer.integers("SG.WAIT l gcra:1/1h COST 2")[3], -1, "never");
    assert_eq!(server.told("blocked_clients"), 1);
}

#[test]
fn one_that_would_pass_out_of_turn_is_told_when_its_turn_comes() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE l gcra:3/3h COST 2")[0], 1);
    let _ahead = stand(&server, "SG.WAIT l gcra:3/3h COST 2 TIMEOUT 100000000000", 1);
    assert_eq!(peer.integers("SG.PEEK l gcra:3/3h")[0], 1, "one is free");
    let denied = peer.integers("SG.WAIT l gcra:3/3h TIMEOUT 0");
    assert_eq!(denied[0], 0);
    assert!(denied[3] > 3_600_000_000, "{denied:?}");
    assert_eq!(peer.integers("SG.TAKE l gcra:3/3h")[0], 1, "who does not wait may pass the line");
}

#[test]
fn what_gives_back_wakes_the_line() {
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
        let mut waiter = stand(&server, "SG.WAIT l gcra:1/1h TIMEOUT 10000000000", 1);
        if waker.contains("1000000/1s") {
            // Under another rule what is in use drains sooner: one unit each µs.
            peer.say(waker);
            peer.say("SG.TAKE l gcra:1000000/1s COST 0");
            peer.say("SG.REFUND l gcra:1000000/1s COST 9");
        } else {
            assert!(!matches!(peer.say(waker), Value::Error(_)), "{waker}");
        }
        assert_eq!(integers(&waiter.hear())[0], 1, "{waker}");
    }
}

#[test]
fn one_who_leaves_makes_way() {
    let server = Running::new();
    let mut peer = server.connect();
    assert_eq!(peer.integers("SG.TAKE l gcra:2/2h COST 1")[0], 1);
    let ahead = stand(&server, "SG.WAIT l gcra:2/2h COST 2 TIMEOUT 100000000000", 1);
    let mut behind = stand(&server, "SG.WAIT l gcra:2/2h TIMEOUT 100000000000", 2);
    drop(ahead);
    assert_eq!(integers(&behind.hear())[0], 1);
    server.until_told("blocked_clients", 0);
}

#[test]
fn a_denied_wait_is_recorded_once() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "sliding-log:2/1h:count=all:keep-max=100:keep=1h";
    assert_eq!(peer.integers(&format!("SG.TAKE l {policy} COST 2"))[0], 1);
    assert_eq!(peer.integers(&format!("SG.WAIT l {policy} TIMEOUT 1000"))[0], 0);
    let mut waiter = stand(&server, &format!("SG.WAIT l {policy} TIMEOUT 7200000000"), 1);
    let used = |peer: &mut Peer| {
        let told = format!("{:?}", peer.say("SG.INFO l"));
        let Some((_, rest)) = told.split_once("[117, 115, 101, 100]), Integer(") else {
            panic!("{told}")
        };
        rest.split_once(')').unwrap().0.parse::<u64>().unwrap()
    };
    assert_eq!(used(&mut peer), 3, "one denial");
    assert_eq!(peer.say("SG.RESET l"), Value::Integer(1));
    assert_eq!(integers(&waiter.hear())[0], 1);
    assert_eq!(used(&mut peer), 1, "the one that passed, and not its waiting");
}

#[test]
fn what_is_asked_behind_a_wait_is_answered_behind_it() {
    let server = Running::new();
    let mut peer = server.connect();
    peer.ask("SG.WAIT l gcra:1/50ms");
    peer.ask("SG.WAIT l gcra:1/50ms");
    peer.ask("PING");
    peer.ask("SG.WAIT l gcra:1/1h COST 0");
    peer.ask("ECHO last");
    assert_eq!(integers(&peer.hear())[0], 1);
    assert_eq!(integers(&peer.hear())[0], 1);
    assert_eq!(peer.hear(), simple("PONG"));
    assert_eq!(integers(&peer.hear())[0], 1);
    assert_eq!(peer.hear(), crate::harness::bulk("last"));
}

#[test]
fn a_mixed_policy_waits_for_both() {
    let server = Running::new();
    let mut peer = server.connect();
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
