//! Operations on holds by script: the same answers and bytes as the core's.

use std::time::Duration;

use sluicegate_conformance::{Answer, History, Invocation, Shape, Step, Subject, compare};
use sluicegate_core::{Entry, HoldOperation, Policy, Timestamp, apply, apply_hold};
use sluicegate_redis::script::{Plan, Reply};
use sluicegate_testing::{Engine, Server};

use crate::{
    functions::{ENGINES, Functions},
    store::{Store, read, test_key},
};

/// So many histories.
const HISTORIES: u64 = 1_200;
const IDS: [&[u8]; 5] = [b"a", b"stream:2", b"\x01\x00\x00", b"a\x80", &[b'z'; 64]];

/// What applies operations, on holds too.
trait HoldSubject: Subject {
    fn apply_hold(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: HoldOperation<'_>,
    ) -> Answer;
}

impl HoldSubject for Functions {
    fn apply_hold(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: HoldOperation<'_>,
    ) -> Answer {
        Self::apply_hold(self, key, policy, now, operation)
    }
}

impl HoldSubject for Store {
    fn apply_hold(
        &mut self,
        key: &[u8],
        policy: &Policy,
        now: Timestamp,
        operation: HoldOperation<'_>,
    ) -> Answer {
        let ttl = policy.check_hold(&operation).map_err(|error| error.to_string())?;
        let plan = Plan::new(policy);
        let mut calendars = Vec::new();
        for _ in 0..3 {
            let arguments = plan.hold_arguments(operation, ttl, now, Some(now), &calendars);
            let reply = Self::run(&mut self.connection, &plan, &test_key(key), &arguments)?;
            match read(&reply)? {
                Reply::Decision(decision) => return Ok(decision),
                Reply::Calendars { calendars: asked, .. } => calendars.extend(asked),
            }
        }
        Err("calendars are asked for three times".to_owned())
    }
}

/// The policy of a step, with or without `concurrency`.
fn policy(step: &Step, random: u64) -> Policy {
    let concurrency = ["concurrency:3/1s", "concurrency:65536/2h", "concurrency:1/7ms"];
    let concurrency = concurrency[(random >> 20) as usize % 3];
    let text = match random % 6 {
        0 => concurrency.to_owned(),
        1 => format!("{},{concurrency}", step.policy),
        2 => format!("{concurrency},{}", step.policy),
        _ => step.policy.to_string(),
    };
    text.parse().unwrap_or_else(|_| step.policy.clone())
}

fn mixed(seed: u64, index: usize) -> u64 {
    let mut mixed = (seed << 16 | index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn cost_of(step: &Step) -> u32 {
    use sluicegate_core::Operation::{Charge, Peek, Refund, Reserve, Reset, Take};
    match step.operation {
        Take(cost) | Peek(cost) | Charge(cost) | Refund(cost) | Reserve { cost, .. } => cost,
        Reset => 1,
    }
}

fn agrees_with_the_core(
    server: &Server,
    subject: &mut impl HoldSubject,
    seeds: std::ops::Range<u64>,
    shape: Shape,
) {
    let mut store = Store::new(server.connect());
    for seed in seeds {
        let history = History::random(seed, shape);
        let key = format!("holds:{seed}").into_bytes();
        let mut entry: Option<Entry> = None;
        let mut log = Vec::new();
        for (index, step) in history.0.iter().enumerate() {
            let random = mixed(seed, index);
            let policy = policy(step, random);
            let id = IDS[(random >> 8) as usize % IDS.len()];
            let cost = cost_of(step);
            let ttl = [1_000, 7_000, 250_000, 1_000_000, 60_000_000, 3_600_000_000, 86_400_000_000];
            let ttl = Duration::from_micros(ttl[(random >> 12) as usize % ttl.len()]);
            let ttl = Some(ttl).filter(|_| !(random >> 28).is_multiple_of(4));
            let now = step.now;
            let hold = match (random >> 32) % 10 {
                0..=3 => Some(HoldOperation::Hold { id, cost, ttl }),
                4 | 5 => Some(HoldOperation::Settle {
                    id,
                    used: Some(cost).filter(|_| random >> 63 == 0),
                }),
                6 => Some(HoldOperation::Renew { id, ttl }),
                _ => None,
            };
            let (expected, found) = match hold {
                Some(hold) => {
                    log.push(format!("{now} {hold:?} under {policy}"));
                    let expected = apply_hold(&policy, &mut entry, now, hold);
                    (
                        expected.map_err(|it| it.to_string()),
                        subject.apply_hold(&key, &policy, now, hold),
                    )
                }
                None => {
                    let operation = step.operation;
                    log.push(format!("{now} {operation:?} under {policy}"));
                    let expected = apply(&policy, &mut entry, now, operation);
                    let invocation = Invocation { key: &key, policy: &policy, now, operation };
                    (expected.map_err(|it| it.to_string()), subject.apply(invocation))
                }
            };
            log.push(format!("  {:?}", expected.as_ref().map(|it| it.to_integers())));
            compare(&expected, &found)
                .unwrap_or_else(|it| panic!("{seed}: {it}, after\n{}", log.join("\n")));
            let stored = store.stored(&key).map(|bytes| Entry::decode(&bytes).expect("it is read"));
            let (stored, kept) = (stored.map(|it| it.encode()), entry.as_ref().map(Entry::encode));
            // A hold that expired in a window of the calendar which was over long ago is charged by the core alone.
            let has_calendar = |entry: &Entry| {
                entry.policy().limits().iter().any(|limit| limit.calendar_unit().is_some())
            };
            if entry.as_ref().is_some_and(has_calendar) {
                continue;
            }
            assert_eq!(stored, kept, "{seed}, after\n{}", log.join("\n"));
        }
    }
}

fn scripts_agree(engine: Engine, seeds: std::ops::Range<u64>) {
    let server = Server::start(engine);
    let mut subject = Store::new(server.connect());
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
        let shape = Shape { zones: false, ..Shape::default() };
        agrees_with_the_core(&server, &mut subject, 0..HISTORIES / 2, shape);
    }
}
