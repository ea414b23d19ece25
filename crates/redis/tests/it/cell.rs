//! Keys that redis-cell wrote: their debt carries over.

use proptest::{prelude::*, test_runner::TestRunner};
use sluicegate_commands::CommandError;
use sluicegate_conformance::{Invocation, Subject};
use sluicegate_core::{Decision, Entry, Limit, Operation, Policy, Timestamp, apply};
use sluicegate_testing::{Engine, Server};

use crate::store::{Store, test_key};

const NOW: u64 = 1_700_000_000_000_000;

/// The answer of the core for a key with a debt until `tat`, in nanoseconds.
fn expected(
    policy: &Policy,
    tat: u64,
    now: Timestamp,
    operation: Operation,
) -> (Option<Entry>, Decision) {
    let gcra = policy.limits().iter().find_map(|limit| match limit {
        Limit::Gcra(gcra) => Some(*gcra),
        _ => None,
    });
    let gcra = gcra.unwrap();
    let scale = u128::from(gcra.scale());
    let ahead = u128::from(tat).saturating_sub(u128::from(now.as_micros()) * 1000);
    let debt = (ahead * scale).div_ceil(1000).min(scale << 50);
    let mut entry = Entry::with_debt(&Limit::Gcra(gcra).into(), now, debt);
    let decision = apply(policy, &mut entry, now, operation).unwrap();
    (entry, decision)
}

#[test]
fn script_redis_cell_keys_are_taken_over_as_by_the_module() {
    let server = Server::start(Engine::Redis70);
    let mut store = Store::new(server.connect());
    let policies = prop::sample::select(vec![
        "gcra:30/1m:burst=16",
        "gcra:7/1s:burst=3:borrow",
        "leaky-queue:4294967295/1d",
        "fixed-window:9/1h,gcra:30/1m:burst=3",
        "sliding-log:9/1h,token-bucket:1000/1s,gcra:3/1h",
    ]);
    // Around the time of the question, and anything.
    let tats = prop_oneof![
        (0..200_000_000_000_u64).prop_map(|ahead| NOW * 1000 - 10_000_000_000 + ahead),
        (0..3_000_u64).prop_map(|ahead| NOW * 1000 - 1_500 + ahead),
        any::<u64>(),
        (0..64_u32).prop_map(|bits| u64::MAX >> bits),
    ];
    let operations = prop_oneof![
        (0..5_u32).prop_map(Operation::Take),
        (0..5_u32).prop_map(Operation::Peek),
        (0..5_u32).prop_map(Operation::Charge),
        (0..5_u32).prop_map(Operation::Refund),
        Just(Operation::Reset),
    ];
    let mut config = ProptestConfig::with_cases(1_500);
    config.failure_persistence = None;
    let mut runner = TestRunner::new(config);
    let store = std::cell::RefCell::new(&mut store);
    let cases = (policies, tats, operations);
    let run = runner.run(&cases, |(policy, tat, operation)| {
        let mut store = store.borrow_mut();
        let policy: Policy = policy.parse().unwrap();
        let now = Timestamp::from_micros(NOW).unwrap();
        let key = test_key(b"cell");
        let mut set = redis::cmd("SET");
        set.arg(&key).arg(tat.to_string()).query::<()>(&mut store.connection).unwrap();
        let (entry, decision) = expected(&policy, tat, now, operation);
        let found =
            store.apply(Invocation { key: b"cell", policy: &policy, now, operation }).unwrap();
        prop_assert_eq!(found, decision);
        let stored = store.stored(b"cell");
        match stored.as_deref() {
            Some(digits) if digits == tat.to_string().as_bytes() => {
                let still: i64 = redis::cmd("PTTL").arg(&key).query(&mut store.connection).unwrap();
                prop_assert!(
                    still != -1 || matches!(operation, Operation::Peek(_)),
                    "it is healed"
                );
                prop_assert!(!matches!(operation, Operation::Charge(1..) | Operation::Refund(1..)));
            }
            stored => {
                let entry = entry.filter(|entry| !entry.lifetime(now).is_zero());
                let stored = stored.map(|bytes| Entry::decode(bytes).unwrap());
                prop_assert_eq!(stored, entry);
            }
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn script_redis_cell_keys_are_an_error_under_other_limits() {
    let server = Server::start(Engine::Valkey91);
    let mut store = Store::new(server.connect());
    let now = Timestamp::from_micros(NOW).unwrap();
    let window: Policy = "fixed-window:9/1h".parse().unwrap();
    for (digits, error) in [
        ("1700000000000000000", CommandError::redis_cell(&test_key(b"k"))),
        ("18446744073709551615", CommandError::redis_cell(&test_key(b"k"))),
        (
            "18446744073709551616",
            CommandError::state(
                &test_key(b"k"),
                Entry::decode(b"18446744073709551616").unwrap_err(),
            ),
        ),
    ] {
        let mut set = redis::cmd("SET");
        set.arg(test_key(b"k")).arg(digits).query::<()>(&mut store.connection).unwrap();
        let found = store.apply(Invocation {
            key: b"k",
            policy: &window,
            now,
            operation: Operation::Take(1),
        });
        assert_eq!(found, Err(error.to_string()), "{digits}");
    }
    let mut info = redis::cmd("FCALL");
    let mut load = redis::cmd("FUNCTION");
    load.arg("LOAD").arg(sluicegate_redis::script::Library::text());
    load.query::<()>(&mut store.connection).unwrap();
    redis::cmd("SET").arg("k").arg("5").query::<()>(&mut store.connection).unwrap();
    let actual = info.arg("sg_info").arg(1).arg("k").query::<redis::Value>(&mut store.connection);
    assert_eq!(actual.unwrap_err().code(), Some("SGSTATE"));
}
