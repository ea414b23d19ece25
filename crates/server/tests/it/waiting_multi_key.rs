//! `SG.TAKEALL` that waits: what it changes for requests that wait for one of its keys. The races are tested in virtual time
//! (`sluicegate_core::wait`).

use sluicegate_resp::Value;

use crate::{
    harness::{Running, integers},
    waiting::wait_in_queue,
};

/// The denial moves the key to a policy under which its window is over.
#[test]
fn takeall_denied_after_a_wait_wakes_the_head_of_a_key() {
    let server = Running::new();
    let mut peer = server.connect();
    let policy = "fixed-window:1/1h";
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.TAKE {key} {policy}"))[0], 1);
    }
    let head = &mut wait_in_queue(&server, &format!("SG.WAIT x {policy} TIMEOUT 10000000000"), 1);
    let takes = format!("SG.TAKEALL 2 x fixed-window:1/1ms 1 y {policy} 1 TIMEOUT 10000");
    let Value::Array(reply) = peer.call(&takes) else { panic!("no array") };
    assert_eq!(integers(&reply[0])[0], 0);
    assert_eq!(integers(&head.read_reply())[0], 1);
}

/// The first take of a key counts.
#[test]
fn takeall_with_a_key_twice_has_a_decision_for_each_take() {
    let server = Running::new();
    let mut peer = server.connect();
    let mut call = |options: &str| {
        let line = format!("SG.TAKEALL 3 a gcra:5/1h 1 a gcra:5/1h 3 b gcra:1/1h 1{options}");
        let Value::Array(parts) = peer.call(&line) else { panic!("no array") };
        let binding_key = integers(&parts[0])[7];
        let decisions = parts[1..].iter().map(|it| [integers(it)[0], integers(it)[2]]);
        (binding_key, decisions.collect::<Vec<_>>())
    };
    assert_eq!(call(""), (2, vec![[1, 4], [1, 4], [1, 0]]));
    for options in ["", " TIMEOUT 1", " ID h TTL 1000", " ID h TTL 1000 TIMEOUT 1"] {
        assert_eq!(call(options), (2, vec![[1, 4], [1, 4], [0, 0]]), "{options}");
    }
}
