//! Effects are replicated and stored: a primary, its replica and both kinds of files agree after any calls. A call
//! without a change writes nothing.

use std::fmt::Write as _;

use redis::Value;
use sluicegate_testing::{Engine, RawClient, Server, TempDir, size};

use crate::{
    on_both,
    server::{module, serve},
};

/// Random calls.
fn calls() -> u64 {
    size("SLUICEGATE_CALLS", 20_000)
}

const POLICIES: [&str; 11] = [
    "gcra:30/1m:burst=16",
    "gcra:7/1s",
    "token-bucket:10/1h:burst=40:borrow",
    "leaky-queue:100/1m:capacity=20",
    "token-bucket:5/1m:refill=interval",
    "fixed-window:100/1h:count=all",
    "fixed-window:10/day",
    "sliding-log:200/1m",
    "sliding-log:30/1m:count=all:keep=1h",
    "sliding-counter:50/1h",
    "gcra:30/1m,sliding-log:100/1h",
];

/// Numbers from a seed (SplitMix64).
pub(crate) struct SeededRng(pub(crate) u64);

impl SeededRng {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).unwrap()]
    }
}

/// Policies of holds.
const HELD: [&str; 5] = [
    "concurrency:5/3s",
    "gcra:30/1m:burst=16",
    "concurrency:9/1m,sliding-log:30/1m",
    "fixed-window:100/1h:count=all",
    "token-bucket:5/1m:refill=interval,concurrency:9/1s",
];

/// A random operation on holds of few keys at `at`. Some keys are used under several policies.
fn call_hold(draw: &mut SeededRng, at: u64) -> String {
    let number = draw.below(12);
    let turn = if number > 8 { draw.below(5) } else { number };
    let policy = HELD[usize::try_from(turn).unwrap() % HELD.len()];
    let (id, cost) = (draw.below(6), draw.pick(&[0, 1, 1, 1, 2, 3, 17]));
    let ttl = draw.pick(&[1_000, 50_000, 400_000, 1_000_000]);
    let one = format!("h{number} {policy} request:{id}");
    match draw.below(12) {
        0..=4 => format!("SG.HOLD {one} COST {cost} TTL {ttl} AT {at}"),
        5 => format!("SG.SETTLE {one} AT {at}"),
        6 | 7 => format!("SG.SETTLE {one} USED {cost} AT {at}"),
        8 => format!("SG.RENEW {one} TTL {ttl} AT {at}"),
        9 => format!("SG.PEEK h{number} {policy} COST {cost} AT {at}"),
        10 => format!(
            "SG.TAKEALL 2 h{number} {policy} {cost} t sliding-log:90/1m 1 ID r{id} TTL {ttl} AT {at}"
        ),
        _ => format!("SG.TAKEALL 2 t1 gcra:90/1m {cost} t2 sliding-log:90/1m 1 AT {at}"),
    }
}

/// A random call at `at`.
fn call(draw: &mut SeededRng, at: u64) -> String {
    if draw.below(4) == 0 {
        return call_hold(draw, at);
    }
    // Most keys keep their policy; some change it.
    let number = draw.below(40);
    let mut index = usize::try_from(number).unwrap() % POLICIES.len();
    if number > 32 && draw.below(10) == 0 {
        index = usize::try_from(draw.below(POLICIES.len() as u64)).unwrap();
    }
    let policy = POLICIES[index];
    let cost = draw.pick(&[0, 1, 1, 1, 1, 1, 1, 1, 2, 3, 17, 1000]);
    let key = format!("k{number}");
    match draw.below(40) {
        0 => format!("SG.RESET {key} AT {at}"),
        1 | 2 => format!("SG.PEEK {key} {policy} COST {cost} AT {at}"),
        3 => format!("SG.CHARGE {key} {policy} COST {cost} AT {at}"),
        4 | 5 => format!("SG.REFUND {key} {policy} COST {cost} AT {at}"),
        6 => format!("SG.RESERVE {key} gcra:30/1m:burst=16 COST {cost} AT {at}"),
        7 => format!("SG.INFO {key} AT {at}"),
        8 => format!("SG.MTAKE 3 {key} {policy} 1 m1 gcra:9/1h 1 m2 sliding-log:9/1h 2 AT {at}"),
        9 => format!("SG.WAIT w{number} gcra:100/1h COST {cost} TIMEOUT 0"),
        10 => format!("CL.THROTTLE c{number} 15 30 86400 {cost}"),
        _ => format!("SG.TAKE {key} {policy} COST {cost} AT {at}"),
    }
}

fn digest(peer: &mut RawClient) -> String {
    peer.text("DEBUG DIGEST")
}

/// Sends `count` random calls: most alone, some in a transaction, some in a script.
fn call_at_random(peer: &mut RawClient, count: u64) {
    let mut draw = SeededRng(7);
    let mut at = 1_700_000_000_000_000;
    for _ in 0..count {
        // Sometimes the clock steps back.
        at =
            if draw.below(50) == 0 { at - draw.below(3_000_000) } else { at + draw.below(600_000) };
        let line = call(&mut draw, at);
        match draw.below(12) {
            0 => {
                peer.call("MULTI").unwrap();
                peer.call(&line).unwrap();
                peer.call(&call(&mut draw, at)).unwrap();
                assert!(matches!(peer.call("EXEC"), Ok(Value::Array(_))), "{line}");
            }
            1 => {
                let words: Vec<_> = line.split(' ').map(str::as_bytes).collect();
                let mut script = "return redis.call(".to_owned();
                for (index, word) in words.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(script, "{comma}'{}'", word.escape_ascii()).unwrap();
                }
                script.push(')');
                peer.call_bytes(&[b"EVAL", script.as_bytes(), b"0"]).unwrap_or_else(|error| {
                    panic!("{line}: {error}");
                });
            }
            _ => {
                let _ = peer.call(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }
    assert_eq!(peer.info_value("sluicegate", "sluicegate_panics"), 0);
}

fn random_calls_primary_replica_and_files_agree(engine: Engine) {
    let loads = ["--loadmodule", module(), "test-clock", "yes"];
    let primary = Server::with(engine, &[&loads[..], &["--appendonly", "yes"]].concat());
    let replica_of = format!("127.0.0.1 {}", primary.port());
    // The replica needs no module, because it gets commands of the server.
    let replica = Server::with(engine, &["--replicaof", &replica_of]);
    let (mut peer, mut copy) = (primary.raw_client(), replica.raw_client());
    copy.eventually_true(|it| it.text("INFO replication").contains("master_link_status:up"));

    call_at_random(&mut peer, calls());
    assert_eq!(peer.call("WAIT 1 30000"), Ok(Value::Int(1)));
    let expected = digest(&mut peer);
    assert_ne!(expected, "0".repeat(40));
    assert_eq!(digest(&mut copy), expected, "the replica");
    peer.call("DEBUG LOADAOF").unwrap();
    assert_eq!(digest(&mut peer), expected, "after the append-only file was read");
    peer.call("DEBUG RELOAD").unwrap();
    assert_eq!(digest(&mut peer), expected, "after the snapshot was read");
}

/// Options for an append-only file that has each command before its reply. By default, the server writes later while an
/// earlier write is being synced.
const UNDELAYED_FILE: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "no"];

fn call_without_change_replicates_nothing(engine: Engine) {
    let loads = ["--loadmodule", module(), "test-clock", "yes"];
    let server = Server::with(engine, &[&loads[..], &UNDELAYED_FILE].concat());
    let mut peer = server.raw_client();
    let policies = ["gcra:3/1h", "sliding-log:3/1h", "fixed-window:3/1h", "gcra:3/1h,gcra:9/1d"];
    for (number, policy) in policies.iter().enumerate() {
        assert_eq!(peer.integers(&format!("SG.TAKE k{number} {policy} COST 3"))[0], 1);
    }
    assert_eq!(peer.integers("CL.THROTTLE c 0 1 3600"), [0, 1, 0, -1, 3600]);
    let written = peer.info_value("persistence", "aof_current_size");
    let dirty = peer.info_value("persistence", "rdb_changes_since_last_save");
    for _ in 0..50 {
        for (number, policy) in policies.iter().enumerate() {
            assert_eq!(peer.integers(&format!("SG.TAKE k{number} {policy}"))[0], 0);
            peer.integers(&format!("SG.PEEK k{number} {policy}"));
            peer.integers(&format!("SG.TAKE new{number} {policy} COST 0"));
            peer.integers(&format!("SG.PEEK new{number} {policy}"));
            peer.integers(&format!("SG.REFUND new{number} {policy}"));
            assert_eq!(peer.call(&format!("SG.RESET new{number}")), Ok(Value::Int(0)));
            peer.call(&format!("SG.INFO k{number}")).unwrap();
        }
        assert_eq!(peer.integers("CL.THROTTLE c 0 1 3600")[0], 1);
        assert_eq!(peer.integers("CL.THROTTLE new 0 1 3600 0")[0], 0);
    }
    assert_eq!(peer.info_value("persistence", "aof_current_size"), written);
    assert_eq!(peer.info_value("persistence", "rdb_changes_since_last_save"), dirty);
    assert_eq!(peer.call("DBSIZE"), Ok(Value::Int(5)));
}

/// The change of a long log is written, not the whole log: some hundred bytes per take.
fn long_log_take_replicates_few_bytes(engine: Engine) {
    let loads = ["--loadmodule", module(), "test-clock", "yes"];
    let server = Server::with(engine, &[&loads[..], &UNDELAYED_FILE].concat());
    let mut peer = server.raw_client();
    let mut at = 1_700_000_000_000_000_u64;
    let mut take = |peer: &mut RawClient, step| {
        at += step;
        peer.integers(&format!("SG.TAKE l sliding-log:2000/1m AT {at}"))
    };
    for remaining in (0..2000).rev() {
        assert_eq!(take(&mut peer, 1)[2], remaining);
    }
    assert_eq!(take(&mut peer, 1)[0], 0, "it is full");
    let before = peer.info_value("persistence", "aof_current_size");
    // Each of these expires the oldest event.
    assert_eq!(take(&mut peer, 60_000_000)[0], 1);
    for _ in 0..2000 {
        assert_eq!(take(&mut peer, 30_001)[0], 1);
    }
    let each = (peer.info_value("persistence", "aof_current_size") - before) / 2000;
    println!("{engine:?}: {each} bytes of the append-only file a take in a log of 2000");
    assert!(each < 300, "{each}");
}

/// A spent key stays spent, however the server ends.
fn spent_key_after_restart_stays_spent(engine: Engine) {
    let loads = ["--loadmodule", module()];
    let policies = ["gcra:1000/300d", "sliding-log:1000/300d", "fixed-window:1000/300d"];
    let fsync = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut folder = TempDir::new();
    let mut allowed = [0_i64; 3];
    for round in 0..4 {
        let server = Server::within(engine, folder, &[&loads[..], &fsync].concat(), &[]).unwrap();
        let mut peer = server.raw_client();
        for (policy, allowed) in policies.iter().zip(&mut allowed) {
            for _ in 0..300 {
                *allowed += peer.integers(&format!("SG.TAKE {policy} {policy}"))[0];
            }
        }
        let expected = if round < 3 { 300 * (round + 1) } else { 1000 };
        assert_eq!(allowed, [expected; 3], "round {round}");
        folder = server.into_folder();
    }
}

/// A promoted replica has the usage, and decides under the same policies.
fn failover_keeps_usage(engine: Engine) {
    let primary = serve(engine);
    let replica_of = format!("127.0.0.1 {}", primary.port());
    let replica = Server::with(engine, &["--loadmodule", module(), "--replicaof", &replica_of]);
    let (mut peer, mut copy) = (primary.raw_client(), replica.raw_client());
    copy.eventually_true(|it| it.text("INFO replication").contains("master_link_status:up"));
    let take = |peer: &mut RawClient| peer.integers("SG.TAKE f gcra:1000/300d")[0];
    assert_eq!((0..600).map(|_| take(&mut peer)).sum::<i64>(), 600);
    assert_eq!(peer.call("WAIT 1 30000"), Ok(Value::Int(1)));
    assert!(copy.error("SG.TAKE f gcra:1000/300d").starts_with("READONLY"));
    assert_eq!(copy.integers("SG.PEEK f gcra:1000/300d")[2], 400, "a replica may look");
    drop(primary);
    copy.call("REPLICAOF NO ONE").unwrap();
    assert_eq!((0..600).map(|_| take(&mut copy)).sum::<i64>(), 400);
}

on_both! {
    random_calls_primary_replica_and_files_agree
    call_without_change_replicates_nothing
    long_log_take_replicates_few_bytes
    spent_key_after_restart_stays_spent
    failover_keeps_usage
}
