//! Operations on holds by script and by function: the same answers and bytes as the core's.

use std::{ops::Range, time::Duration};

use sluicegate_conformance::{
    CoreSubject, History, Invocation, MAX_HOLDS_OF_SCRIPTS, Shape, Subject, check_full_ledger,
    check_hold_bounds, check_hold_streams, check_hold_traces, check_repeated_holds, compare,
    full_ledger, spread_ledger,
};
use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
use sluicegate_testing::{Engine, RawClient, Server, TEST_TIMEOUT, now, size};

use crate::{
    functions::{ENGINES, Functions},
    store::{Store, test_key},
};

/// So many histories.
const HISTORIES: u64 = 1_200;

/// Whether a limit of the entry has a period of the calendar.
fn has_calendar(entry: &Entry) -> bool {
    entry.policy().limits().iter().any(|limit| limit.calendar().is_some())
}

/// Compares answers and bytes with the core's.
fn agrees_with_the_core(
    server: &Server,
    subject: &mut impl Subject,
    seeds: Range<u64>,
    shape: Shape,
) {
    let mut store = Store::new(server.connect());
    for seed in seeds {
        let history = History::with_holds(seed, shape);
        let key = format!("holds:{seed}").into_bytes();
        let mut core = CoreSubject::default();
        for (index, step) in history.0.iter().enumerate() {
            let before = || {
                let steps: Vec<_> = history.0[..=index].iter().map(ToString::to_string).collect();
                format!("history {seed}, after\n{}", steps.join("\n"))
            };
            let (expected, found) = (core.apply(step.of(&key)), subject.apply(step.of(&key)));
            compare(&expected, &found).unwrap_or_else(|it| panic!("{it}: {}", before()));
            let stored = store.stored(&key).map(|bytes| Entry::decode(&bytes).expect("it is read"));
            // Only the core charges a hold that expired in a window of the calendar that was over long ago.
            if !core.entry(&key).is_some_and(has_calendar) {
                let (stored, kept) = (stored.map(|it| it.encode()), core.entry(&key));
                assert_eq!(stored, kept.map(Entry::encode), "{}", before());
            }
        }
    }
}

fn scripts_agree(engine: Engine, seeds: Range<u64>) {
    let server = Server::start(engine);
    let mut subject = Store::new(server.connect());
    check_hold_traces(&mut subject);
    agrees_with_the_core(&server, &mut subject, seeds, Shape::default());
}

#[test]
fn holds_scripts_and_core_agree_redis_7_0() {
    scripts_agree(Engine::Redis70, 0..HISTORIES);
}

#[test]
fn holds_scripts_and_core_agree_valkey_9_1() {
    scripts_agree(Engine::Valkey91, HISTORIES..2 * HISTORIES);
}

#[test]
fn holds_functions_and_core_agree() {
    for engine in ENGINES {
        let server = Server::start(engine);
        let mut subject = Functions::new(&server);
        check_hold_traces(&mut subject);
        let shape = Shape { zones: false, ..Shape::default() };
        agrees_with_the_core(&server, &mut subject, 0..HISTORIES / 2, shape);
    }
}

/// The hold ends in the third window from the one in which it is opened.
#[test]
fn script_hold_of_24_hours_before_a_day_of_23_decides_as_core() {
    // Half a second before 2026-03-08, when clocks in New York went forward.
    let opened = Timestamp::from_micros(1_772_945_999_500_000).unwrap();
    let day = Duration::from_hours(24);
    let policy = "fixed-window:5/day:tz=America/New_York".parse().unwrap();
    let server = Server::start(Engine::Valkey91);
    let (mut store, mut core) = (Store::new(server.connect()), CoreSubject::default());
    let key = b"short day";
    let hold = |id, cost, ttl| Operation::Hold { id, cost, ttl: Some(ttl) };
    for (now, operation) in [
        (opened, hold(&b"a"[..], 3, day)),
        (opened, hold(b"b", 3, day)),
        (opened + day / 2, hold(b"b", 1, day / 24)),
        (opened + day, hold(b"c", 3, day)),
    ] {
        let question = Invocation { key, policy: &policy, now, operation };
        let expected = core.apply(question);
        assert_eq!(store.apply(question), expected, "{operation:?}");
    }
}

/// Operations that arrive several times, values at their bounds, and a full ledger.
fn keeps_sums_and_bounds(what: &str, server: &Server, subject: &mut impl Subject) {
    let (operations, copies) = check_repeated_holds(subject, 0..100);
    println!(
        "figure: {what}: {operations} operations on holds that arrive {copies} times: equal sums"
    );
    check_hold_bounds(subject);
    let policy = &"token-bucket:1000000/1h".parse().unwrap();
    let now = Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    let mut set = redis::cmd("SET");
    set.arg(test_key(b"full")).arg(full_ledger(policy, MAX_HOLDS_OF_SCRIPTS, 1, now));
    set.query::<()>(&mut server.connect()).unwrap();
    check_full_ledger(subject, b"full", policy, now, MAX_HOLDS_OF_SCRIPTS);
}

#[test]
fn holds_scripts_that_arrive_several_times_charge_once() {
    for engine in Engine::NEWER {
        let server = Server::start(engine);
        let what = format!("scripts, {}", engine.name());
        keeps_sums_and_bounds(&what, &server, &mut Store::new(server.connect()));
    }
}

#[test]
fn holds_functions_that_arrive_several_times_charge_once() {
    let server = Server::start(Engine::Redis70);
    keeps_sums_and_bounds("functions", &server, &mut Functions::new(&server));
}

/// The work is in proportion to the holds and events. With one pass over the events for each expiry it takes minutes, in which
/// the server decides nothing else.
#[test]
fn script_full_ledger_under_a_log_decides_as_core_in_time() {
    let server = Server::start(Engine::Redis70);
    let connection = server.connect();
    // A decision that takes too long is an error.
    connection.set_read_timeout(Some(TEST_TIMEOUT / 2)).unwrap();
    let mut store = Store::new(connection);
    let begin = Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    let (second, hour) = (Duration::from_secs(1), Duration::from_hours(1));
    for (text, spacing, cost) in [
        ("sliding-log:150000/1s", Duration::ZERO, 100_000),
        // Each expiry drops the event of an earlier one, by its age.
        ("sliding-log:131100/1h", second, 131_000),
        ("sliding-log:9000/1h", second, 9_000),
        ("sliding-log:9000/1h:keep=2h,sliding-log:8000/30m", second, 7_000),
        // Each expiry drops an event, because the later ones sum to the limit.
        ("sliding-log:1000/366d", second, 999),
        ("sliding-log:1000/20h:keep=24h:keep-max=5000", second, 999),
        ("sliding-log:1000/20h:count=all", second, 999),
    ] {
        let policy = &text.parse::<Policy>().unwrap();
        let bytes = spread_ledger(policy, 65_536, 2, begin, spacing);
        let key = text.as_bytes();
        let mut set = redis::cmd("SET");
        set.arg(test_key(key)).arg(&bytes).exec(&mut server.connect()).unwrap();
        let (mut core, mut longest) = (Some(Entry::decode(&bytes).unwrap()), Duration::ZERO);
        for after in [Duration::ZERO, 12 * hour, 30 * hour] {
            for operation in [Operation::Peek(cost), Operation::Take(cost), Operation::Refund(1)] {
                let time = begin + after;
                let expected =
                    apply(policy, &mut core, time, operation).map_err(|it| it.to_string());
                let started = now();
                let question = Invocation { key, policy, now: time, operation };
                let found = store.apply(question);
                longest = longest.max(started.elapsed());
                assert_eq!(found, expected, "{text}: {operation:?} after {after:?}");
            }
        }
        let stored = store.stored(key).map(|bytes| Entry::decode(&bytes).unwrap().encode());
        assert_eq!(stored, core.as_ref().map(Entry::encode), "{text}");
        println!("figure: {text}, 65536 holds {spacing:?} apart: at most {longest:?} per decision");
    }
}

#[test]
fn holds_of_streams_with_kills_and_duplicates_charge_what_was_used_and_lost() {
    let streams = size("SLUICEGATE_STREAMS", 3_000);
    let count = usize::try_from(streams).unwrap();
    let server = Server::start(Engine::Valkey91);
    let counts = check_hold_streams(&mut Store::new(server.connect()), count);
    println!(
        "figure: scripts: {streams} streams charge what was used and lost, to the unit: {counts:?}"
    );
    let server = Server::start(Engine::Redis70);
    assert_eq!(check_hold_streams(&mut Functions::new(&server), count), counts, "functions");
}

/// A replica, the append-only file and the snapshot equal the primary, after scripts and functions.
#[test]
fn holds_effects_are_replicated_and_stored() {
    for engine in Engine::NEWER {
        let primary = Server::with(engine, &["--appendonly", "yes"]);
        let replica_of = format!("127.0.0.1 {}", primary.port());
        let replica = Server::with(engine, &["--replicaof", &replica_of]);
        let (mut peer, mut copy) = (primary.raw_client(), replica.raw_client());
        copy.eventually_true(|it| it.text("INFO replication").contains("master_link_status:up"));
        let digest = |peer: &mut RawClient| peer.text("DEBUG DIGEST");
        let (mut scripts, mut functions) =
            (Store::new(primary.connect()), Functions::new(&primary));
        let mut steps = 0;
        for seed in 0..300 {
            let shape = Shape { zones: false, ..Shape::default() };
            let history = History::with_holds(900_000 + seed, shape);
            let key = format!("replicated:{seed}").into_bytes();
            for step in &history.0 {
                let _ = if seed % 2 == 0 {
                    scripts.apply(step.of(&key))
                } else {
                    functions.apply(step.of(&key))
                };
                steps += 1;
            }
        }
        // It waits for all writes up to those of its own connection.
        peer.call("SET last 1").unwrap();
        assert_eq!(peer.call("WAIT 1 30000"), Ok(redis::Value::Int(1)));
        let expected = digest(&mut peer);
        let keys = peer.call("DBSIZE").unwrap();
        assert!(matches!(keys, redis::Value::Int(20..)), "{keys:?}");
        assert_eq!(digest(&mut copy), expected, "the replica");
        peer.call("DEBUG LOADAOF").unwrap();
        assert_eq!(digest(&mut peer), expected, "after the append-only file was read");
        peer.call("DEBUG RELOAD").unwrap();
        assert_eq!(digest(&mut peer), expected, "after the snapshot was read");
        println!(
            "figure: {}: {steps} operations on holds by scripts and functions: equal on a replica and in files",
            engine.name()
        );
    }
}

/// Open holds go with the key: they are settled under its new name, and a copy has its own.
#[test]
fn holds_of_renamed_copied_and_restored_keys_are_settled() {
    let server = Server::start(Engine::Redis70);
    let (mut peer, mut scripts) = (server.raw_client(), Store::new(server.connect()));
    let policy = &"concurrency:9/1h,gcra:100/1h".parse::<Policy>().unwrap();
    let rate = &"gcra:100/1h".parse::<Policy>().unwrap();
    let now = Timestamp::from_micros(1_700_000_040_000_000).unwrap();
    let mut apply =
        |key: &[u8], operation| scripts.apply(Invocation { key, policy, now, operation }).unwrap();
    for (id, cost) in [(b"a", 2), (b"b", 3)] {
        assert!(apply(b"old", Operation::Hold { id, cost, ttl: None }).allowed());
    }
    let named = |name: &str| String::from_utf8(test_key(name.as_bytes())).unwrap();
    let old = named("old");
    let redis::Value::BulkString(dumped) = peer.call(&format!("DUMP {old}")).unwrap() else {
        panic!("no state")
    };
    peer.call_bytes(&[b"RESTORE", named("restored").as_bytes(), b"0", &dumped]).unwrap();
    assert_eq!(peer.call(&format!("COPY {old} {}", named("copied"))), Ok(redis::Value::Int(1)));
    peer.call(&format!("RENAME {old} {}", named("renamed"))).unwrap();
    for (used, key) in (1..).zip([b"renamed".as_slice(), b"copied", b"restored"]) {
        let settle = Operation::Settle { id: b"a", used: Some(used) };
        assert!(apply(key, settle).allowed() && !apply(key, settle).allowed());
        assert!(apply(key, Operation::Renew { id: b"b", ttl: None }).allowed());
        assert!(apply(key, Operation::Hold { id: b"b", cost: 9, ttl: None }).allowed());
    }
    assert!(!apply(b"old", Operation::Settle { id: b"b", used: None }).allowed());
    for (used, key) in (1..).zip([b"renamed".as_slice(), b"copied", b"restored"]) {
        let peek = Invocation { key, policy: rate, now, operation: Operation::Peek(0) };
        assert_eq!(scripts.apply(peek).unwrap().remaining, 100 - 3 - used);
    }
}
