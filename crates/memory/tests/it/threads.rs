//! Many threads: none lets more pass than the limit.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::{Clock, Timestamp};
use sluicegate_memory::{MemoryStore, SystemClock};

use super::{at, policy, take};

#[test]
fn many_threads_on_one_key_never_admit_more_than_the_burst() {
    for text in ["gcra:1000/1d", "fixed-window:1000/1d"] {
        let store = MemoryStore::new();
        let rule = store.rule(&policy(text), at(0));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        passed.fetch_add(take(&store, b"hot", &rule, 7).into(), Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(passed.load(Ordering::Relaxed), 1_000);
    }
}

/// Keys on their way to other segments are neither lost nor doubled.
#[test]
fn a_table_that_grows_under_threads_loses_no_key() {
    let store = MemoryStore::new();
    let rule = store.rule(&policy("gcra:2/1d"), at(0));
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..300_000_u32 {
                    passed.fetch_add(
                        take(&store, &key.to_le_bytes(), &rule, 7).into(),
                        Ordering::Relaxed,
                    );
                }
            });
        }
    });
    println!("{:?}", store.usage());
    assert_eq!(passed.load(Ordering::Relaxed), 600_000);
}

/// By the real clock: what passes is the burst and what comes in the time that it took.
#[test]
fn the_rate_is_exact_under_contention() {
    let (store, clock) = (MemoryStore::new(), SystemClock::new());
    let start = clock.now();
    let rule = store.rule(&policy("gcra:100000/1s:burst=100"), start);
    let (passed, last) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100_000 {
                    let operation = sluicegate_core::Operation::Take(1);
                    let now = clock.now();
                    let request =
                        sluicegate_memory::Request { key: b"hot", rule: &rule, operation };
                    if store.ask(request, now).is_ok_and(|decision| decision.allowed()) {
                        passed.fetch_add(1, Ordering::Relaxed);
                        last.fetch_max(now.as_micros(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let elapsed =
        Timestamp::from_micros(last.into_inner()).unwrap().as_micros() - start.as_micros();
    let most = 100 + elapsed / 10;
    println!("{passed:?} of at most {most} in {elapsed} us");
    assert!(passed.into_inner() <= most);
}
