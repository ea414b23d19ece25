//! The kit that every store passes, over scripts, on each server.

use sluicegate_conformance::{
    CoreSubject, Invocation, Shape, Subject, check_histories, check_keys, check_traces, compare,
};
use sluicegate_core::{Entry, Operation, Policy, Timestamp, apply};
use sluicegate_testing::{Engine, Server, size};

use crate::store::{Compared, Store};

fn passes_the_kit(engine: Engine) {
    let server = Server::start(engine);
    check_traces(&mut Compared::new(server.connect(), false));
    check_keys(&mut Store::new(server.connect()));

    let histories = size("SLUICEGATE_SCRIPT_HISTORIES", 300);
    let shapes = [
        (Shape::default(), false),
        // The script reads the state that the core wrote.
        (Shape::default(), true),
        (Shape { changes: false, ..Shape::default() }, false),
        (Shape { changes: false, zones: false, reserve: false, ..Shape::default() }, true),
    ];
    for (number, (shape, replaces)) in (0..).zip(shapes) {
        let mut subject = Compared::new(server.connect(), replaces);
        check_histories(&mut subject, 100_000 * (number + 1), histories, shape);
    }
}

#[test]
fn script_redis_7_0_decides_as_core() {
    passes_the_kit(Engine::Redis70);
}

#[test]
fn script_valkey_9_1_decides_as_core() {
    passes_the_kit(Engine::Valkey91);
}

#[test]
fn script_redis_6_2_decides_as_core() {
    passes_the_kit(Engine::Redis62);
}

/// Logs that stay full: their events are cut off and appended to as bytes, and written again only when an offset
/// outgrows its field.
#[test]
fn script_long_logs_decide_as_core() {
    let server = Server::start(Engine::Redis70);
    for (text, step, heavy) in [
        ("sliding-log:300/1s", 2_003, false),
        ("sliding-log:299/1s", 2_003, true),
        ("sliding-log:301/1s", 2_000, false),
        ("sliding-log:300/1s:count=all", 2_003, false),
        ("sliding-log:300/1s:keep=3s:keep-max=500", 3_001, true),
        ("sliding-log:200/1s,sliding-log:700/7s", 6_007, false),
    ] {
        let policy: Policy = text.parse().unwrap();
        let mut core = CoreSubject::default();
        let mut subject = Compared::new(server.connect(), false);
        let mut now = 1_700_000_000_000_000;
        for turn in 0..9_000_u64 {
            // A round step has events that are just as old as the period.
            now += step + if step % 1_000 == 0 { 0 } else { turn % 13 };
            let cost = if heavy && turn % 5 == 0 { 3 } else { 1 };
            let operation = match turn % 97 {
                0 => Operation::Charge(cost),
                1 => Operation::Refund(2),
                2 => Operation::Peek(5),
                3 => Operation::Take(250),
                _ => Operation::Take(cost),
            };
            let now = Timestamp::from_micros(now).unwrap();
            let question = Invocation { key: text.as_bytes(), policy: &policy, now, operation };
            let (expected, found) = (core.apply(question), subject.apply(question));
            compare(&expected, &found).unwrap_or_else(|it| panic!("{text}, turn {turn}: {it}"));
        }
    }
}

/// Events that had expired when the newest one came do not come back with a clock that steps.
#[test]
fn script_log_events_that_are_gone_stay_gone() {
    let server = Server::start(Engine::Redis70);
    let mut store = Store::new(server.connect());
    let policy: Policy = "sliding-log:5/1m".parse().unwrap();
    let at = |second: u64| Timestamp::from_micros((1_700_000_000 + second) * 1_000_000).unwrap();
    let mut entry = None;
    for second in [0, 10, 55] {
        let _ = apply(&policy, &mut entry, at(second), Operation::Take(1)).unwrap();
    }
    // Two more at the end, and none dropped in front: as the module writes it.
    let mut bytes = entry.unwrap().encode();
    let count = 13;
    bytes[count] += 2;
    for offset in [65_000_000_u64, 69_000_000] {
        bytes.extend_from_slice(&offset.to_le_bytes()[..4]);
    }
    let mut old = Entry::decode(&bytes).ok();
    assert_eq!(old.as_ref().unwrap().usage(at(69)).next().unwrap().1.used, 4);
    for now in [20, 62, 69] {
        let mut set = redis::cmd("SET");
        let key = crate::store::test_key(b"gone");
        set.arg(key).arg(&bytes).query::<()>(&mut store.connection).unwrap();
        for operation in [Operation::Peek(1), Operation::Take(9), Operation::Take(1)] {
            let mut entry = old.clone();
            let expected = apply(&policy, &mut entry, at(now), operation).unwrap();
            let found = store
                .apply(Invocation { key: b"gone", policy: &policy, now: at(now), operation })
                .unwrap();
            assert_eq!(found.to_integers(), expected.to_integers(), "{now} s {operation:?}");
            if operation == Operation::Take(9) {
                old = entry;
            }
        }
        old = Entry::decode(&bytes).ok();
    }
}

/// If the new policy has more logs than the old one, the additional ones begin with the events of the log with the
/// longest period: among equals, of the first that was written.
#[test]
fn script_logs_of_equal_periods_first_is_carried_over() {
    let server = Server::start(Engine::Redis70);
    for (name, before) in [
        ("first", "sliding-log:2/1m:count=all,sliding-log:9/1m"),
        ("last", "sliding-log:9/1m,sliding-log:2/1m:count=all"),
        ("longer", "sliding-log:9/1m,sliding-log:2/2m:count=all"),
    ] {
        let mut subject = Compared::new(server.connect(), false);
        let mut core = CoreSubject::default();
        let after = format!("{before},sliding-log:5/1m,sliding-log:7/3m");
        let mut apply = |text: &str, second: u64, operation| {
            let policy: Policy = text.parse().unwrap();
            let now = Timestamp::from_micros((1_700_000_000 + second) * 1_000_000).unwrap();
            let question = Invocation { key: name.as_bytes(), policy: &policy, now, operation };
            let (expected, found) = (core.apply(question), subject.apply(question));
            compare(&expected, &found).unwrap_or_else(|it| panic!("{name}, {second} s: {it}"));
            found.unwrap().to_integers()
        };
        // Two pass; the log that counts all sees the later ones, the other one does not.
        for second in 0..6 {
            apply(before, second * 5, Operation::Take(1));
        }
        let carried = apply(&after, 40, Operation::Take(5));
        println!("{name}: {carried:?}");
        for second in 41..100 {
            apply(&after, second, Operation::Peek(4));
        }
    }
}
