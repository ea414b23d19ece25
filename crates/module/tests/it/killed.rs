//! Servers that are killed, or told to stop, while they are asked: what was answered is remembered.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::Value;
use sluicegate_testing::{Engine, Server, size, until};

use crate::{
    on_both,
    server::{module, serve},
};

const LIMIT: u64 = 20_000;

/// With an append-only file that is synced always, a killed process forgets nothing that it has answered:
/// over all its lives no more than the limit is admitted. With `everysec` the server may hold back what it
/// writes while it syncs, for two seconds at most: each kill admits at most a burst more.
fn a_killed_server_admits_no_more(engine: Engine) {
    for fsync in ["always", "everysec"] {
        let more = ["--appendonly", "yes", "--appendfsync", fsync];
        let mut server = Server::with(engine, &[&["--loadmodule", module()], &more[..]].concat());
        let admitted = Arc::new(AtomicU64::new(0));
        let kills = size("SLUICEGATE_REDIS_KILLS", 3);
        for round in 0..=kills {
            let before = admitted.load(Ordering::Relaxed);
            let takers: Vec<_> = (0..4)
                .map(|_| {
                    let (mut peer, admitted) = (server.peer(), Arc::clone(&admitted));
                    std::thread::spawn(move || {
                        let line = format!("SG.TAKE k gcra:{LIMIT}/300d");
                        while let Ok(Value::Array(told)) = peer.say(&line) {
                            if told[0] == Value::Int(0) {
                                return;
                            }
                            admitted.fetch_add(1, Ordering::Relaxed);
                        }
                    })
                })
                .collect();
            if round < kills {
                let some = before + LIMIT / (2 * (kills + 1));
                until("some are admitted", || admitted.load(Ordering::Relaxed) >= some);
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
        // What was taken when it was killed, and not answered, is lost: one each connection.
        assert!(admitted <= bound && admitted + 4 * kills >= LIMIT, "{admitted}");
    }
}

/// Those who wait when the server stops lose their connections, and it does not wait for them.
fn who_waits_does_not_keep_the_server(engine: Engine) {
    let server = serve(engine);
    let mut peer = server.peer();
    peer.integers("SG.TAKE w gcra:1/1h");
    let lines = [
        "SG.WAIT w gcra:1/1h TIMEOUT 10000000000",
        "SG.WAIT q leaky-queue:1/1h:capacity=9 TIMEOUT 10000000000",
    ];
    peer.integers("SG.TAKE q leaky-queue:1/1h:capacity=9");
    let waiters: Vec<_> = (0..4)
        .map(|place| {
            let mut peer = server.peer();
            let line = lines[place % 2];
            let thread = std::thread::spawn(move || peer.say(line));
            let count = u64::try_from(place).unwrap() + 1;
            server.peer().until(|it| it.told("sluicegate", "sluicegate_waiting") == count);
            thread
        })
        .collect();
    assert!(peer.say("SHUTDOWN NOSAVE").is_err());
    for waiter in waiters {
        assert!(waiter.join().unwrap().is_err());
    }
    let log = server.log();
    assert!(log.contains("ready to exit, bye bye") && !log.contains("BUG REPORT"), "{log}");
}

on_both! { a_killed_server_admits_no_more who_waits_does_not_keep_the_server }
