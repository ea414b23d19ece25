//! Servers that are killed or stopped under load keep all decisions that they have replied.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::Value;
use sluicegate_testing::{Engine, Server, eventually_true, size};

use crate::{
    on_both,
    server::{module, serve},
};

const LIMIT: u64 = 20_000;

/// With an append-only file that is always synced, a killed process loses no decision that it has replied: all its runs
/// together admit at most the limit. With `everysec` the server may delay writes for up to two seconds while it syncs:
/// each kill admits at most one more burst.
fn kill_server_with_synced_file_admits_no_more(engine: Engine) {
    for fsync in ["always", "everysec"] {
        let more = ["--appendonly", "yes", "--appendfsync", fsync];
        let mut server = Server::with(engine, &[&["--loadmodule", module()], &more[..]].concat());
        let admitted = Arc::new(AtomicU64::new(0));
        let kills = size("SLUICEGATE_REDIS_KILLS", 3);
        for round in 0..=kills {
            let before = admitted.load(Ordering::Relaxed);
            let takers: Vec<_> = (0..4)
                .map(|_| {
                    let (mut peer, admitted) = (server.raw_client(), Arc::clone(&admitted));
                    std::thread::spawn(move || {
                        let line = format!("SG.TAKE k gcra:{LIMIT}/300d");
                        while let Ok(Value::Array(actual)) = peer.call(&line) {
                            if actual[0] == Value::Int(0) {
                                return;
                            }
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            if round < kills {
                let some = before + LIMIT / (2 * (kills + 1));
                eventually_true("some are admitted", || admitted.load(Ordering::Relaxed) >= some);
                server.kill();
                takers.into_iter().for_each(|it| it.join().unwrap());
                server.restart();
            } else {
                takers.into_iter().for_each(|it| it.join().unwrap());
            }
        }
        let admitted = admitted.load(Ordering::Relaxed);
        println!(
            "figure: {engine:?}, appendfsync {fsync}, {kills} kills under load: {admitted} of {LIMIT} admitted"
        );
        let bound = if fsync == "always" { LIMIT } else { LIMIT * (1 + kills) };
        // A take without a reply may be lost: one per connection.
        assert!(admitted <= bound && admitted + 4 * kills >= LIMIT, "{admitted}");
    }
}

/// Waiting clients lose their connections when the server stops, which does not wait for them.
fn stop_with_waiting_clients_ends_immediately(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.raw_client();
    peer.integers("SG.TAKE w gcra:1/1h");
    let lines = [
        "SG.WAIT w gcra:1/1h TIMEOUT 10000000000",
        "SG.WAIT q leaky-queue:1/1h:capacity=9 TIMEOUT 10000000000",
    ];
    peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=9");
    let waiters: Vec<_> = (0..4)
        .map(|place| {
            let mut peer = server.raw_client();
            let line = lines[place % 2];
            let thread = std::thread::spawn(move || peer.call(line));
            let count = u64::try_from(place).unwrap() + 1;
            server
                .raw_client()
                .eventually_true(|it| it.info_value("sluicegate", "sluicegate_waiting") == count);
            thread
        })
        .collect();
    assert!(peer.call("SHUTDOWN NOSAVE").is_err());
    for waiter in waiters {
        assert!(waiter.join().unwrap().is_err());
    }
    let log = server.log();
    assert!(log.contains("ready to exit, bye bye") && !log.contains("BUG REPORT"), "{log}");
}

on_both! { kill_server_with_synced_file_admits_no_more stop_with_waiting_clients_ends_immediately }
