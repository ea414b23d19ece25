//! Holds under faults: replies that are lost with their connection, a server that is killed, and a full ledger.

use std::time::Duration;

use sluicegate_conformance::{MAX_HOLDS_OF_SCRIPTS, check_full_ledger, full_ledger};
use sluicegate_core::Policy;
use sluicegate_resp::encode_command;
use sluicegate_testing::{Engine, Server};

use crate::{
    conformance::OverTheWire,
    harness::{Random, RawClient, Running, integers, size},
    store::on,
};

/// Sends a command on a connection of its own, which is closed before the reply is read, or before the command is whole.
fn lose(server: &Running, line: &str, is_whole: bool) {
    let mut peer = server.connect();
    let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let mut bytes = Vec::new();
    encode_command(&arguments, &mut bytes);
    if is_whole {
        peer.send(bytes);
        // It has been applied when its reply has arrived.
        assert!(peer.stream.peek(&mut [0]).unwrap() > 0);
    } else {
        peer.send(&bytes[..bytes.len() / 2]);
    }
}

/// A client that lost up to two replies sends the command again on a new connection, until it has one.
fn call_again(server: &Running, random: &mut Random, line: &str, lost: &mut usize) -> Vec<i64> {
    for _ in 0..random.below(3) {
        lose(server, line, random.below(3) > 0);
        *lost += 1;
    }
    let found = server.connect().call(line);
    match &found {
        sluicegate_resp::Value::Array(each) if each.len() > 7 || line.starts_with("SG.TAKEALL") => {
            integers(&each[0])
        }
        _ => integers(&found),
    }
}

fn in_use(peer: &mut RawClient, key: &str, policy: &str) -> i64 {
    let actual = peer.integers(&format!("SG.PEEK {key} {policy} COST 0"));
    actual[1] - actual[2]
}

#[test]
fn hold_sent_again_after_a_cut_connection_counts_once() {
    let server = Running::new();
    let (rate, both) =
        ("fixed-window:1000000/365d", "concurrency:65536/1h,fixed-window:1000000/365d");
    let mut random = Random(7);
    let (mut lost, mut expected, streams) = (0, [0_i64; 2], size("SLUICEGATE_RESENT_STREAMS", 150));
    for stream in 0..streams {
        let (key, policy) = [("rate", rate), ("both", both)][stream % 2];
        let (id, cost, used) = (format!("s{stream}"), 1 + random.below(50), random.below(80));
        let hold = format!("SG.HOLD {key} {policy} {id} COST {cost} TTL 3000000000");
        let mut call = |line: &str| call_again(&server, &mut random, line, &mut lost)[0] == 1;
        assert!(call(&hold), "{hold}");
        assert!(call(&format!("SG.RENEW {key} {policy} {id} TTL 3600000000")));
        // Every fifth is never settled.
        if stream % 5 > 0 {
            // The reply may be that the hold is not open, because of the first copy.
            call(&format!("SG.SETTLE {key} {policy} {id} USED {used}"));
        }
        expected[stream % 2] += i64::try_from(if stream % 5 > 0 { used } else { cost }).unwrap();
    }
    let mut peer = server.connect();
    let found = [in_use(&mut peer, "rate", rate), in_use(&mut peer, "both", rate)];
    println!(
        "figure: {streams} streams over RESP, {lost} replies lost with their connections: {found:?} units in use"
    );
    assert_eq!(found, expected);
    assert!(lost > streams);
}

#[test]
fn take_all_sent_again_after_a_cut_connection_holds_once() {
    let server = Running::new();
    let [requests, tokens] = ["concurrency:60/1h", "fixed-window:1000000/365d"];
    let mut random = Random(11);
    let (mut lost, mut used) = (0, 0);
    for stream in 0..50 {
        let line = format!(
            "SG.TAKEALL 2 {{a}}:requests {requests} 1 {{a}}:tokens {tokens} 4000 ID s{stream} TTL 3000000000"
        );
        assert_eq!(call_again(&server, &mut random, &line, &mut lost)[0], 1);
        let mut peer = server.connect();
        assert_eq!(in_use(&mut peer, "{a}:requests", requests), 1);
        assert_eq!(in_use(&mut peer, "{a}:tokens", tokens), used + 4000);
        for (key, policy) in [("requests", requests), ("tokens", tokens)] {
            let line = format!("SG.SETTLE {{a}}:{key} {policy} s{stream} USED 2310");
            call_again(&server, &mut random, &line, &mut lost);
        }
        used += 2310;
    }
    let mut peer = server.connect();
    assert_eq!(in_use(&mut peer, "{a}:requests", requests), 0);
    assert_eq!(in_use(&mut peer, "{a}:tokens", tokens), used);
    println!(
        "figure: 50 holds of two keys, {lost} replies lost with their connections: {used} tokens charged"
    );
}

#[test]
fn hold_of_a_full_ledger_is_an_error() {
    let store = Server::start(Engine::Redis70);
    let server = on(&store, |config, _| config.test_clock = true);
    let policy: &Policy = &"token-bucket:1000000/1h".parse().unwrap();
    let now = sluicegate_core::Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    let mut set = redis::cmd("SET");
    set.arg("sg:test:full").arg(full_ledger(policy, MAX_HOLDS_OF_SCRIPTS, 1, now));
    set.query::<()>(&mut store.connect()).unwrap();
    check_full_ledger(
        &mut OverTheWire(server.connect()),
        b"full",
        policy,
        now,
        MAX_HOLDS_OF_SCRIPTS,
    );
}

/// A server that is killed has the holds of its last snapshot, to the id: those that were open are settled once, those that
/// were settled are not open.
#[cfg(target_os = "linux")]
#[test]
fn kill_and_restart_keeps_open_holds() {
    let name = "holds::kill_and_restart_keeps_open_holds";
    let Some(mut process) = crate::child_process::process(name, 1024, |config, folder| {
        config.memory.state_file = Some(folder.join("state"));
        config.memory.snapshot_every = Duration::from_millis(5);
    }) else {
        return;
    };
    let policies = [
        "concurrency:40/1h",
        "fixed-window:1000/365d",
        "concurrency:40/1h,fixed-window:1000/365d",
        "sliding-log:1000/365d",
    ];
    let (keys, kills) = (40, size("SLUICEGATE_KILLS_OF_HOLDS", 3));
    let of = |key: usize| policies[key % policies.len()];
    // The charged units and the open holds of each key.
    let mut charged = vec![0; keys];
    let mut open: Vec<Vec<(String, i64)>> = vec![Vec::new(); keys];
    let mut random = Random(3);
    let (mut settled, mut number) = (0, 0);
    for kill in 0..=kills {
        let mut peer = process.server.connect();
        for key in 0..keys {
            let policy = of(key);
            // `concurrency` has no charges.
            let (only, rate) = match policy.split_once(',') {
                Some((_, rate)) => (false, rate),
                None => (policy.starts_with("concurrency"), policy),
            };
            let held: i64 = open[key].iter().map(|(_, units)| units).sum();
            let found = in_use(&mut peer, &format!("k{key}"), rate);
            assert_eq!(found, held + charged[key], "{kill}: {policy}");
            // Each is still open, so that to hold it again changes nothing.
            for (id, _) in &open[key] {
                let again = format!("SG.HOLD k{key} {policy} {id} COST 40 TTL 3600000000");
                assert_eq!(peer.integers(&again)[0], 1, "{kill}: {again}");
            }
            for _ in 0..random.below(4) {
                let (id, units) =
                    (format!("hold-{number}"), 1 + i64::try_from(random.below(3)).unwrap());
                number += 1;
                let hold = format!("SG.HOLD k{key} {policy} {id} COST {units} TTL 3600000000");
                assert_eq!(peer.integers(&hold)[0], 1, "{hold}");
                open[key].push((id, units));
            }
            while open[key].len() > 3 {
                let at = usize::try_from(random.below(4)).unwrap();
                let (id, _) = open[key].remove(at);
                let settle = format!("SG.SETTLE k{key} {policy} {id} USED 2");
                assert_eq!(peer.integers(&settle)[0], 1, "{kill}: {settle}");
                assert_eq!(peer.integers(&settle)[3], -1, "{kill}: {settle}");
                charged[key] += if only { 0 } else { 2 };
                settled += 1;
            }
        }
        let written = process.server.info_value("snapshots");
        process.server.until_more_than("snapshots", written + 1);
        process.kill();
        process.start_again();
    }
    let mut peer = process.server.connect();
    let still: usize = open.iter().map(Vec::len).sum();
    for (key, holds) in open.iter().enumerate() {
        for (id, _) in holds {
            let settle = format!("SG.SETTLE k{key} {} {id} USED 0", of(key));
            assert_eq!(peer.integers(&settle)[0], 1, "{settle}");
        }
        let rate = of(key).split_once(',').map_or(of(key), |(_, rate)| rate);
        assert_eq!(in_use(&mut peer, &format!("k{key}"), rate), charged[key]);
    }
    println!(
        "figure: killed {} times with open holds: {number} opened, {settled} settled, {still} still open at the end, 0 lost and 0 twice",
        kills + 1
    );
}
