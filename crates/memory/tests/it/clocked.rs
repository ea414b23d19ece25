//! The table with a clock, as a store.

use std::{sync::Arc, time::Duration};

use sluicegate_conformance::{
    Shape, StoreSubject, check_histories, check_hold_histories, check_hold_traces, check_keys,
    check_multi_key, check_multi_key_holds, check_traces,
};
use sluicegate_core::{
    Applied, KeyedOperation, ManualClock, Operation, PreparedPolicy, Request, Retry, Source, Store,
    StoreError, Timestamp,
};
use sluicegate_memory::{ClockedStore, MemoryStore, WhenFull};

use super::at;

fn store() -> ClockedStore<ManualClock> {
    ClockedStore::new(MemoryStore::new(), ManualClock::new(at(0)))
}

fn policy(text: &str) -> PreparedPolicy {
    text.parse().unwrap()
}

/// A store for conformance, whose clock each invocation sets.
fn subject() -> StoreSubject<ClockedStore<Arc<ManualClock>>> {
    let clock = Arc::new(ManualClock::default());
    let store = ClockedStore::new(MemoryStore::new().without_forgetting(), Arc::clone(&clock));
    StoreSubject::new(store, clock, |_| panic!("state in this process is not waited for"))
}

#[test]
fn clocked_store_passes_conformance() {
    check_traces(&mut subject());
    check_keys(&mut subject());
    check_histories(&mut subject(), 51_000, 500, Shape::default());
    check_multi_key(&mut subject(), 52_000, 500, Shape::default());
}

#[test]
fn clocked_store_holds_pass_conformance() {
    check_hold_traces(&mut subject());
    check_hold_histories(&mut subject(), 53_000, 500, Shape::default());
    check_multi_key_holds(&mut subject(), 54_000, 500, Shape::default());
}

/// The result of an operation, which must be there.
fn now<T>(applied: Applied<'_, T>) -> T {
    match applied {
        Applied::Now(result) => result,
        Applied::Later(_) => panic!("state in this process is not waited for"),
    }
}

#[test]
fn clocked_store_apply_uses_its_clock() {
    let (store, policy) = (store(), policy("gcra:1/1s:burst=1"));
    let take = || now(store.take(b"k", &policy, 1)).unwrap();
    assert_eq!((take().allowed(), take().source), (true, Source::Store));
    store.clock().advance(Duration::from_micros(999_999));
    assert_eq!(take().retry(), Some(Retry::After(Duration::from_micros(1))));
    store.clock().advance(Duration::from_micros(1));
    assert!(take().allowed());
}

#[test]
fn clocked_store_apply_many_answers_in_order_at_one_time() {
    let store = store();
    let (one, log) = (policy("gcra:1/1s:burst=20"), policy("sliding-log:20/1s"));
    let keys: Vec<_> = (0..40_u8).map(|key| [key % 3]).collect();
    let operations: Vec<_> = keys
        .iter()
        .map(|key| KeyedOperation {
            key,
            policy: if key[0] == 0 { &one } else { &log },
            operation: Operation::Take(2),
        })
        .collect();
    let answers = now(store.apply_many(&operations));
    let remaining: Vec<_> = answers.iter().map(|it| it.as_ref().unwrap().remaining).collect();
    let expected: Vec<_> = (0..40).map(|it| 18_u32.saturating_sub(it / 3 * 2)).collect();
    assert_eq!(remaining, expected);
    assert!(!answers[39].as_ref().unwrap().allowed());
    let reserve = Operation::Reserve { cost: 1, max_wait: Duration::ZERO };
    let wrong = [KeyedOperation { key: b"k", policy: &log, operation: reserve }];
    assert!(matches!(now(store.apply_many(&wrong))[0], Err(StoreError::Operation(_))));
}

#[test]
fn clocked_store_multi_key_peek_and_take_agree() {
    let (store, policy) = (store(), policy("gcra:5/1m"));
    for (operation, remaining) in
        [(Operation::Peek(3), Some(5)), (Operation::Take(3), Some(2)), (Operation::Take(3), None)]
    {
        let both = [b"a", b"b"].map(|key| KeyedOperation { key, policy: &policy, operation });
        let answer = now(store.apply(Request::all(&both).unwrap())).unwrap();
        assert_eq!(answer.allowed().then_some(answer.remaining), remaining, "{operation:?}");
    }
}

#[test]
fn clocked_store_read_and_reset_see_live_state_only() {
    let (store, policy) = (store(), policy("gcra:2/1s"));
    let read = || {
        let mut found: Option<(bool, Timestamp)> = None;
        now(store.read(b"k", &mut |entry, now| {
            assert!(found.replace((entry.is_some(), now)).is_none(), "read once");
        }))
        .unwrap();
        found.expect("it is read")
    };
    assert_eq!(read(), (false, at(0)));
    assert!(now(store.take(b"k", &policy, 2)).unwrap().allowed());
    assert_eq!(read(), (true, at(0)));
    assert!(now(store.reset(b"k")).unwrap());
    assert!(!now(store.reset(b"k")).unwrap());
    assert!(now(store.take(b"k", &policy, 2)).unwrap().allowed());
    store.clock().advance(Duration::from_secs(1));
    assert!(!read().0, "recovered state is not read");
    assert!(!now(store.reset(b"k")).unwrap());
}

#[test]
fn clocked_store_policy_of_another_store_is_looked_up() {
    let (first, second) = (store(), store());
    // Both policies have the first number, each in one store.
    let (daily, hourly) = (policy("gcra:10/1d"), policy("gcra:1000/1h"));
    assert!(now(first.take(b"k", &hourly, 1)).unwrap().allowed());
    assert_eq!(now(second.take(b"k", &daily, 4)).unwrap().remaining, 6);
    assert_eq!(now(second.take(b"k", &hourly, 1)).unwrap().remaining, 995);
}

#[test]
fn store_debug_shows_usage_and_no_hash_keys() {
    let keys = [0x0123_4567_89ab_cdef, 0x1234_5678_9abc_def0, 0x2345_6789_abcd_ef01, 42_424_242];
    let table = MemoryStore::with_hash_keys(keys, 4 << 20, WhenFull::Allow);
    let store = ClockedStore::new(table, ManualClock::new(at(0)));
    assert!(
        store.decide(b"k", &policy("fixed-window:9/1h"), Operation::Take(1)).unwrap().allowed()
    );
    let shown = format!("{store:?}");
    assert!(shown.len() < 300, "{shown}");
    assert!(shown.contains("keys: 1, ") && shown.contains("when_full: Allow"), "{shown}");
    for key in keys {
        assert!(!shown.contains(&key.to_string()), "{shown}");
    }
}
