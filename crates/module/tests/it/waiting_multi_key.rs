//! `SG.TAKEALL` that waits: what it changes for requests that wait for one of its keys. The races are tested in virtual time
//! (`sluicegate_core::wait`).

use sluicegate_testing::{Engine, integers};

use crate::{
    on_both,
    server::serve,
    waiting::{until_waiting, wait_in_queue},
};

/// The denial moves the key to a policy under which its window is over.
fn takeall_denied_after_a_wait_wakes_the_head_of_a_key(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    let policy = "fixed-window:1/1h";
    for key in ["x", "y"] {
        assert_eq!(peer.integers(&format!("SG.TAKE {key} {policy}"))[0], 1);
    }
    let head = wait_in_queue(&server, &format!("SG.WAIT x {policy} TIMEOUT 10000000000"), 1);
    let takes = format!("SG.TAKEALL 2 x fixed-window:1/1ms 1 y {policy} 1 TIMEOUT 10000");
    let Ok(redis::Value::Array(reply)) = peer.call(&takes) else { panic!("no array") };
    assert_eq!(integers(&reply[0])[0], 0);
    until_waiting(&mut peer, 0);
    assert_eq!(head.read_reply()[0], 1);
}

/// The first take of a key counts.
fn takeall_with_a_key_twice_has_a_decision_for_each_take(engine: Engine) {
    let server = serve(engine);
    let (mut peer, mut other) = (server.raw_client(), server.raw_client());
    let decided = |reply: redis::Value| {
        let redis::Value::Array(parts) = reply else { panic!("no array") };
        let decisions = parts[1..].iter().map(|it| [integers(it)[0], integers(it)[2]]);
        (integers(&parts[0])[7], decisions.collect::<Vec<_>>())
    };
    let line = "SG.TAKEALL 3 a gcra:5/1h 1 a gcra:5/1h 3 b gcra:1/1h 1";
    assert_eq!(decided(peer.call(line).unwrap()), (2, vec![[1, 4], [1, 4], [1, 0]]));
    for options in ["", " TIMEOUT 1", " ID h TTL 1000", " ID h TTL 1000 TIMEOUT 1"] {
        let reply = peer.call(&format!("{line}{options}")).unwrap();
        assert_eq!(decided(reply), (2, vec![[1, 4], [1, 4], [0, 0]]), "{options}");
    }
    // It waits, and is answered when a key has units again.
    let waiter = wait_in_queue(&server, &format!("{line} TIMEOUT 10000000000"), 1);
    assert_eq!(other.integers("SG.REFUND b gcra:1/1h")[0], 1);
    let reply = waiter.thread.join().unwrap().unwrap();
    assert_eq!(decided(reply), (2, vec![[1, 3], [1, 3], [1, 0]]));
}

on_both! {
    takeall_denied_after_a_wait_wakes_the_head_of_a_key
    takeall_with_a_key_twice_has_a_decision_for_each_take
}
