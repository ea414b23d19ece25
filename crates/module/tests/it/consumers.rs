//! A consumer of replication that starts during takes gets all changes.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use redis::Value;
use sluicegate_testing::{Engine, RawClient, Server, SetOnDrop, eventually_true};

use crate::{
    on_both,
    server::{module, serve},
};

const POLICIES: [&str; 4] = [
    "gcra:1000000/300d",
    "sliding-log:9000/300d",
    "fixed-window:1000000/300d",
    "token-bucket:1000000/300d:refill=interval",
];

fn is_replication_idle(peer: &mut RawClient) -> bool {
    peer.info_value("sluicegate", "sluicegate_replication_idle") == 1
}

fn digest(peer: &mut RawClient) -> String {
    peer.text("DEBUG DIGEST")
}

/// Takes from keys of every kind until `body` has ended, and at least for a while before and after that.
fn during_requests(server: &Server, body: impl FnOnce()) {
    let (done, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let ended = SetOnDrop(&done);
        for first in 0..2 {
            let mut peer = server.raw_client();
            let (done, requests) = (&done, &requests);
            scope.spawn(move || {
                for turn in first.. {
                    let policy = POLICIES[turn % POLICIES.len()];
                    peer.integers(&format!("SG.TAKE k{} {policy}", turn % 300));
                    if turn % 97 == 0 {
                        peer.call(&format!("SG.RESET k{}", turn % 300)).unwrap();
                    }
                    if requests.fetch_add(1, Ordering::Relaxed) > 2000
                        && done.load(Ordering::Relaxed)
                    {
                        break;
                    }
                }
            });
        }
        eventually_true("500 takes", || requests.load(Ordering::Relaxed) >= 500);
        body();
        requests.store(0, Ordering::Relaxed);
        drop(ended);
    });
}

fn link_is_up(replica: &Server) {
    replica
        .raw_client()
        .eventually_true(|it| it.text("INFO replication").contains("master_link_status:up"));
}

fn agree(primary: &Server, replica: &Server) {
    let mut peer = primary.raw_client();
    // Some load first.
    peer.call("SET last x").unwrap();
    assert_eq!(peer.call("WAIT 1 30000"), Ok(Value::Int(1)));
    let (expected, found) = (digest(&mut peer), digest(&mut replica.raw_client()));
    assert_ne!(expected, "0".repeat(40));
    assert_eq!(found, expected);
}

fn late_replica_gets_all_changes(engine: Engine) {
    let primary = serve(engine);
    let mut peer = primary.raw_client();
    peer.eventually_true(is_replication_idle);
    let before = peer.info_value("persistence", "rdb_changes_since_last_save");
    assert_eq!(peer.integers("SG.TAKE k gcra:9/1d")[0], 1);
    assert_eq!(
        peer.info_value("persistence", "rdb_changes_since_last_save"),
        before + 1,
        "it counts"
    );
    let replica = Server::with(engine, &[]);
    let follow = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    during_requests(&primary, || {
        replica.raw_client().call(&follow).unwrap();
        link_is_up(&replica);
        assert!(!is_replication_idle(&mut peer));
    });
    agree(&primary, &replica);
    // A replica that reconnects continues with the backlog, which must not have a gap.
    during_requests(&primary, || {
        peer.call("CLIENT KILL TYPE replica").unwrap();
        assert!(!is_replication_idle(&mut peer));
    });
    link_is_up(&replica);
    agree(&primary, &replica);
}

fn late_append_only_file_gets_all_changes(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    peer.eventually_true(is_replication_idle);
    during_requests(&server, || {
        peer.call("CONFIG SET appendonly yes").unwrap();
        assert!(!is_replication_idle(&mut peer));
        peer.eventually_true(|it| {
            it.info_value("persistence", "aof_rewrite_in_progress") == 0
                && it.info_value("persistence", "aof_rewrite_scheduled") == 0
        });
    });
    let expected = digest(&mut peer);
    peer.call("DEBUG LOADAOF").unwrap();
    assert_eq!(digest(&mut peer), expected);
    peer.call("CONFIG SET appendonly no").unwrap();
    peer.eventually_true(is_replication_idle);
}

/// A former replica has a backlog, with which another replica of the same primary may continue.
fn promoted_replica_replicates(engine: Engine) {
    let primary = serve(engine);
    let replica_of = format!("127.0.0.1 {}", primary.port());
    let heir = Server::with(engine, &["--loadmodule", module(), "--replicaof", &replica_of]);
    let other = Server::with(engine, &["--replicaof", &replica_of]);
    link_is_up(&heir);
    link_is_up(&other);
    during_requests(&primary, || {});
    heir.raw_client().call("REPLICAOF NO ONE").unwrap();
    let follow = format!("REPLICAOF 127.0.0.1 {}", heir.port());
    during_requests(&heir, || {
        assert!(!is_replication_idle(&mut heir.raw_client()));
        other.raw_client().call(&follow).unwrap();
        link_is_up(&other);
    });
    agree(&heir, &other);
}

on_both! {
    late_replica_gets_all_changes
    late_append_only_file_gets_all_changes
    promoted_replica_replicates
}
