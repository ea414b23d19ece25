//! Several keys at once.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_conformance::{
    Invocation, MultiKeySubject, Shape, check_multi_key, check_multi_key_holds,
};
use sluicegate_core::{Answer, KeyedOperation, Operation, PreparedPolicy, Request, RequestError};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{at, conformance::InMemory, policy};

impl MultiKeySubject for InMemory {
    /// A take comes after a peek that must decide alike.
    fn apply_all(&mut self, invocations: &[Invocation<'_>]) -> Result<Answer, String> {
        let now = invocations.first().expect("at least one key").now;
        let policies: Vec<_> =
            invocations.iter().map(|it| PreparedPolicy::new(it.policy)).collect();
        let decide = |operation: fn(Operation<'_>) -> Operation<'_>| {
            let operations = invocations.iter().zip(&policies);
            let operations: Vec<_> = operations
                .map(|(it, policy)| KeyedOperation {
                    key: it.key,
                    policy,
                    operation: operation(it.operation),
                })
                .collect();
            let request = Request::all(&operations).map_err(|it| it.to_string())?;
            self.0.apply_all(request, now).map_err(|it| it.to_string())
        };
        let is_take = matches!(invocations, [Invocation { operation: Operation::Take(_), .. }, ..]);
        let peek = is_take.then(|| decide(|take| Operation::Peek(take.cost()))).transpose()?;
        let answer = decide(|operation| operation)?;
        assert!(peek.is_none_or(|peek| peek.allowed() == answer.allowed()));
        Ok(answer)
    }
}

#[test]
fn store_random_histories_decide_as_core() {
    let keeping = || InMemory(MemoryStore::new().without_forgetting());
    check_multi_key(&mut keeping(), 1, 1_500, Shape::default());
    let steady = Shape { changes: false, steps_back: false, ..Shape::default() };
    check_multi_key(&mut InMemory(MemoryStore::new()), 50_000, 1_500, steady);
    check_multi_key_holds(&mut keeping(), 70_000, 500, Shape::default());
}

/// Threads that want the same keys in every order, while others take from single ones: none waits for
/// ever, and no key lets more pass than it may.
#[test]
fn take_multi_key_many_threads_admit_the_limit_and_end() {
    const KEYS: usize = 6;
    const UNITS: u64 = 3_000;
    for text in ["gcra:3000/1d", "fixed-window:3000/1d"] {
        let store = MemoryStore::new();
        let prepared = PreparedPolicy::new(&policy(text));
        let numbered = store.prepare(prepared.policy(), at(0));
        let passed: [AtomicU64; KEYS] = Default::default();
        std::thread::scope(|scope| {
            for thread in 0..6_usize {
                let (store, numbered, prepared, passed) = (&store, &numbered, &prepared, &passed);
                scope.spawn(move || {
                    for round in 0..3_000 {
                        let first = (thread * 5 + round) % KEYS;
                        if thread == 0 {
                            let key = [u8::try_from(first).unwrap()];
                            let take = |key: &[u8]| {
                                store
                                    .apply_numbered(key, numbered, at(7), Operation::Take(1))
                                    .unwrap()
                            };
                            let allowed = take(&key).allowed();
                            passed[first].fetch_add(allowed.into(), Ordering::Relaxed);
                            // New keys beside them, so that segments split at the same time.
                            for other in 0..40_u32 {
                                let key = [&[9][..], &other.to_le_bytes(), &round.to_le_bytes()];
                                let _ = take(&key.concat());
                            }
                            continue;
                        }
                        let step = 1 + thread % 5;
                        let which = [first, (first + step) % KEYS, (first + 2 * step) % KEYS];
                        let keys = which.map(|key| [u8::try_from(key).unwrap()]);
                        let takes = keys.each_ref().map(|key| KeyedOperation {
                            key,
                            policy: prepared,
                            operation: Operation::Take(1),
                        });
                        let taken = store.apply_all(Request::all(&takes).unwrap(), at(7)).unwrap();
                        if taken.allowed() {
                            let mut taken = which.to_vec();
                            taken.sort_unstable();
                            taken.dedup();
                            for key in taken {
                                passed[key].fetch_add(1, Ordering::Relaxed);
                            }
                        }
                    }
                });
            }
        });
        let mut left = Vec::new();
        for (key, passed) in (0..).zip(&passed) {
            let passed = passed.load(Ordering::Relaxed);
            let peek = store.apply_numbered(&[key], &numbered, at(7), Operation::Peek(1));
            let remaining = peek.unwrap().remaining;
            left.push(remaining);
            assert_eq!(passed + u64::from(remaining), UNITS, "{text}: key {key}");
        }
        println!("figure: {text}: left of six keys of {UNITS} after six threads: {left:?}");
    }
}

#[test]
fn take_multi_key_duplicate_key_counts_once() {
    let store = MemoryStore::new();
    let policy: PreparedPolicy = "gcra:1/1h:burst=3".parse().unwrap();
    let take = |key| KeyedOperation { key, policy: &policy, operation: Operation::Take(2) };
    let takes = [take(b"a"), take(b"a"), take(b"b")];
    let taken = store.apply_all(Request::all(&takes).unwrap(), at(0)).unwrap();
    assert!(taken.allowed());
    assert_eq!((taken.remaining, taken.each().len()), (1, 2));
    assert_eq!(Request::all(&[]).unwrap_err(), RequestError::MissingKey);
}

/// If there is no space for one key, nothing is taken from the others; or, with the fallback `allow`, the others are
/// decided without it.
#[test]
fn take_multi_key_full_store_denies_or_allows_all() {
    for (when_full, passes) in [(WhenFull::Deny, false), (WhenFull::Allow, true)] {
        let store = MemoryStore::bounded(0, when_full);
        let prepared: PreparedPolicy = "fixed-window:1000000/1d".parse().unwrap();
        let numbered = store.prepare(prepared.policy(), at(0));
        let apply =
            |key: &[u8], operation| store.apply_numbered(key, &numbered, at(0), operation).unwrap();
        let _ = apply(b"known", Operation::Take(1));
        let mut key = 0_u64;
        while store.usage().table_full < 10_000 {
            let _ = apply(&key.to_le_bytes(), Operation::Take(1));
            key += 1;
        }
        let (mut allowed, mut denied_takes) = (0_u32, 0);
        for new in 0..200_u64 {
            let new = [b"new", &new.to_le_bytes()[..]].concat();
            let before = store.usage().table_full;
            let takes = [b"known".as_slice(), &new];
            let takes = takes.map(|key| KeyedOperation {
                key,
                policy: &prepared,
                operation: Operation::Take(1),
            });
            let taken = store.apply_all(Request::all(&takes).unwrap(), at(0)).unwrap();
            allowed += u32::from(taken.allowed());
            if store.usage().table_full > before {
                denied_takes += 1;
                assert_eq!(taken.allowed(), passes);
                assert!(passes || taken.key == 1);
            }
        }
        let used = 1_000_000 - apply(b"known", Operation::Peek(0)).remaining;
        println!("figure: full, {when_full:?}: {denied_takes} of 200 denied, {allowed} allowed");
        assert!(denied_takes > 100);
        assert_eq!(used, 1 + allowed);
    }
}

/// Copies of one log fit, and those of two do not.
#[test]
fn take_multi_key_copies_more_logs_than_fit_is_denied() {
    let store = MemoryStore::bounded(16 << 20, WhenFull::Deny);
    let log: PreparedPolicy = "sliding-log:100000/1h".parse().unwrap();
    let numbered = store.prepare(log.policy(), at(0));
    let keys = [b"a", b"b"];
    for key in keys {
        for event in 0..64_000 {
            let take = store.apply_numbered(key, &numbered, at(event), Operation::Take(1));
            assert!(take.unwrap().allowed());
        }
    }
    let logs: Vec<_> = (1..=8).map(|it| format!("sliding-log:{}/1h", 100_000 + it)).collect();
    let logs: PreparedPolicy = logs.join(",").parse().unwrap();
    let take = |policies: [&PreparedPolicy; 2]| {
        let takes = keys.iter().zip(policies);
        let takes: Vec<_> = takes
            .map(|(key, policy)| KeyedOperation {
                key: *key,
                policy,
                operation: Operation::Take(1),
            })
            .collect();
        let taken = store.apply_all(Request::all(&takes).unwrap(), at(64_000)).unwrap();
        taken.allowed()
    };
    assert!(!take([&logs, &logs]));
    assert!(take([&logs, &log]));
    assert!(store.usage().bytes <= store.usage().max_bytes, "{:?}", store.usage());
}

/// Space for a new key may be made from the slot of another key of the same request that has recovered.
#[test]
fn take_multi_key_beside_recovered_keys_charges_every_key() {
    let store = MemoryStore::new();
    let policy = PreparedPolicy::new(&policy("fixed-window:9/1s"));
    let mut now = 0;
    // The keys of a round are one new key behind seven of the round before, which have recovered.
    let mut keys: Vec<[u8; 4]> = (0..8_u32).map(u32::to_le_bytes).collect();
    for round in 8..200_000_u32 {
        now += 2_000_000;
        keys.remove(0);
        keys.push(round.to_le_bytes());
        let takes: Vec<_> = keys
            .iter()
            .map(|key| KeyedOperation { key, policy: &policy, operation: Operation::Take(1) })
            .collect();
        let taken = store.apply_all(Request::all(&takes).unwrap(), at(now)).unwrap();
        assert!(taken.allowed());
        for key in &keys {
            let used = store.apply(key, policy.policy(), at(now), Operation::Peek(1)).unwrap();
            assert_eq!(used.remaining, 8, "round {round}, key {key:?}");
        }
    }
}
