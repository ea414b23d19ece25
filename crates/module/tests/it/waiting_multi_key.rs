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

on_both! { takeall_denied_after_a_wait_wakes_the_head_of_a_key }
