//! The kit that every store passes, over scripts, on each server.

use sluicegate_conformance::{
    CoreSubject, Question, Shape, Subject, check_histories, check_keys, check_traces, compare,
};
use sluicegate_core::{Operation, Policy, Timestamp};
use sluicegate_testing::{Engine, Server};

use crate::store::{Compared, Store};

/// So many histories of each shape.
const HISTORIES: u64 = 800;

fn passes_the_kit(engine: Engine) {
    let server = Server::start(engine);
    check_traces(&mut Compared::new(server.connect(), false));
    check_keys(&mut Store::new(server.connect()));

    let shapes = [
        (Shape::default(), false),
        // What the core wrote is understood.
        (Shape::default(), true),
        (Shape { changes: false, ..Shape::default() }, false),
        (Shape { changes: false, zones: false, reserve: false, ..Shape::default() }, true),
    ];
    for (number, (shape, replaces)) in (0..).zip(shapes) {
        let mut subject = Compared::new(server.connect(), replaces);
        check_histories(&mut subject, 100_000 * (number + 1), HISTORIES, shape);
    }
}

#[test]
fn redis_7_0() {
    passes_the_kit(Engine::Redis70);
}

#[test]
fn valkey_9_1() {
    passes_the_kit(Engine::Valkey91);
}

#[test]
fn redis_6_2() {
    passes_the_kit(Engine::Redis62);
}

/// Logs that are full for long: their events are cut off and appended to as bytes, and written anew
/// only when an offset outgrows its field.
#[test]
fn long_logs() {
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
            let question = Question { key: text.as_bytes(), policy: &policy, now, operation };
            let (expected, found) = (core.apply(question), subject.apply(question));
            compare(&expected, &found).unwrap_or_else(|it| panic!("{text}, turn {turn}: {it}"));
        }
    }
}
