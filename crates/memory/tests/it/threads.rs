//! Many threads: none lets more pass than the limit.

use std::{
    sync::atomic::{AtomicU8, AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Clock;
use sluicegate_memory::{MemoryStore, SystemClock};

use super::{at, policy, size, take};

#[test]
fn take_many_threads_never_exceed_the_burst() {
    for text in ["gcra:1000/1d", "fixed-window:1000/1d"] {
        let store = MemoryStore::new();
        let prepared = store.prepare(&policy(text), at(0));
        let passed = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        passed.fetch_add(
                            take(&store, b"hot", &prepared, 7).into(),
                            Ordering::Relaxed,
                        );
                    }
                });
            }
        });
        assert_eq!(passed.load(Ordering::Relaxed), 1_000);
    }
}

/// Keys on their way to other segments are neither lost nor doubled.
#[test]
fn store_growing_under_threads_loses_no_key() {
    let store = MemoryStore::new();
    let prepared = store.prepare(&policy("gcra:2/1d"), at(0));
    let passed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for key in 0..300_000_u32 {
                    passed.fetch_add(
                        take(&store, &key.to_le_bytes(), &prepared, 7).into(),
                        Ordering::Relaxed,
                    );
                }
            });
        }
    });
    println!("{:?}", store.usage());
    assert_eq!(passed.load(Ordering::Relaxed), 600_000);
}

/// In windows on the clock the states of many keys are equal, and slots pass from one key to another as the table
/// grows: still, each key is charged exactly its own units.
#[test]
fn take_moving_keys_with_equal_states_are_distinct() {
    const LIMIT: u8 = 3;
    let keys = size("SLUICEGATE_EQUAL_KEYS", 150_000);
    let store = MemoryStore::new();
    let prepared = store.prepare(&policy(&format!("fixed-window:{LIMIT}/366d:align=clock")), at(0));
    let admitted: Vec<AtomicU8> = (0..keys).map(|_| AtomicU8::new(0)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            let (store, prepared, admitted) = (&store, &prepared, &admitted);
            scope.spawn(move || {
                // Two go up and two come later, so that keys are put in beside those that are taken from.
                let order = (0..keys).chain(0..keys).skip(usize::try_from(thread * 512).unwrap());
                for key in order.step_by(1 + usize::from(thread == 3)).chain(0..keys) {
                    if take(store, &key.to_le_bytes(), prepared, 7) {
                        admitted[usize::try_from(key).unwrap()].fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let counts = admitted.iter().map(|count| count.load(Ordering::Relaxed));
    let wrong = counts.filter(|&count| count != LIMIT).count();
    println!(
        "figure: {keys} keys in one window on the clock, 4 threads: {} admissions, {wrong} keys not exact",
        keys * u64::from(LIMIT),
    );
    assert_eq!(wrong, 0);
}

/// By the real clock: the admitted units are the burst and the refill of the elapsed time.
#[test]
fn take_contended_key_rate_is_exact() {
    let (store, clock) = (MemoryStore::new(), SystemClock::new());
    let start = clock.now();
    let prepared = store.prepare(&policy("gcra:1000/1s:burst=100"), start);
    let whole = Duration::from_secs(size("SLUICEGATE_CONTENTION_SECONDS", 2));
    let (passed, first, last) = (AtomicU64::new(0), AtomicU64::new(u64::MAX), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while clock.now() < start + whole {
                    let operation = sluicegate_core::Operation::Take(1);
                    let now = clock.now();
                    let decision = store.apply_numbered(b"hot", &prepared, now, operation);
                    if decision.is_ok_and(|decision| decision.allowed()) {
                        passed.fetch_add(1, Ordering::Relaxed);
                        first.fetch_min(now.as_micros(), Ordering::Relaxed);
                        last.fetch_max(now.as_micros(), Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let elapsed = last.into_inner() - first.into_inner();
    let most = 100 + elapsed / 1_000;
    println!("figure: one key, 8 threads: {passed:?} admitted of {most} in {elapsed} us");
    // None is lost either, unless a pause between requests is long enough for the burst to be full again.
    assert!((most / 2..=most).contains(&passed.into_inner()));
}

/// A few keys are frequent and most are rare, as in production; each is compared with an oracle of three lines.
#[test]
fn take_many_keys_admit_exactly_their_limits() {
    let keys = size("SLUICEGATE_ZIPF_KEYS", 200_000);
    let store = MemoryStore::new();
    let prepared = store.prepare(&policy("gcra:10/1s:burst=20"), at(0));
    let (interval, tolerance) = (100_000, 20 * 100_000);
    let mut arrivals = vec![0_u64; usize::try_from(keys).unwrap()];
    let mut random = 7_u64;
    let (mut admitted, requests) = (0_u64, keys * 6);
    for request in 0..requests {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = zipf((random >> 11) as f64 / (1_u64 << 53) as f64, keys);
        // Twenty thousand requests a second.
        let now = request * 50;
        let arrival = &mut arrivals[usize::try_from(key).unwrap()];
        let next = now.max(*arrival) + interval;
        let passes = next <= now + tolerance;
        if passes {
            *arrival = next;
        }
        assert_eq!(take(&store, &key.to_le_bytes(), &prepared, now), passes, "{key} at {now}");
        admitted += u64::from(passes);
    }
    let usage = store.usage();
    println!(
        "figure: {keys} keys, Zipf 1.1: {admitted} of {requests} requests admitted, as by the oracle each; \
         {} keys held, {} MB",
        usage.keys,
        usage.bytes >> 20,
    );
}

/// The number of a key by its share `uniform` of all requests: Zipf's law with exponent 1.1, by the
/// inverse of its continuous form.
fn zipf(uniform: f64, keys: u64) -> u64 {
    let most = 1.0 - (keys as f64 + 1.0).powf(-0.1);
    let rank = (1.0 - uniform * most).powf(-10.0);
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 ..= keys")]
    let rank = rank as u64;
    (rank - 1).min(keys - 1)
}
