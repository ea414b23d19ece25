//! Entries whose last hold has ended: a few stay for the next holds of their keys, and no reader sees them.

use std::{io::Cursor, time::Duration};

use sluicegate_core::{Operation, Policy};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{at, policy};

const HOLD: Operation<'_> = Operation::Hold { id: b"a", cost: 1, ttl: None };
const SETTLE: Operation<'_> = Operation::Settle { id: b"a", used: None };

#[test]
fn settle_last_hold_of_many_keys_keeps_few() {
    let (store, limit) = (MemoryStore::new(), policy("concurrency:1/30s"));
    let apply = |key: u32, op| store.apply(&key.to_le_bytes(), &limit, at(0), op).unwrap();
    for key in 0..1_000 {
        assert!(apply(key, HOLD).allowed() && apply(key, SETTLE).allowed());
    }
    let few = store.usage();
    for key in 0..100_000 {
        assert!(apply(key, HOLD).allowed() && apply(key, SETTLE).allowed(), "{key}");
    }
    assert_eq!(store.usage(), few, "as many stay as there are segments");
    assert!(few.keys <= 256, "{few:?}");
    // All at once, and then none.
    for key in 0..20_000 {
        assert!(apply(key, HOLD).allowed());
    }
    let all = store.usage();
    assert!((20_000..=20_000 + few.keys).contains(&all.keys), "{all:?}");
    for key in 0..20_000 {
        assert!(!apply(key, Operation::Hold { id: b"b", cost: 1, ttl: None }).allowed());
        assert!(apply(key, SETTLE).allowed() && !apply(key, SETTLE).allowed());
    }
    let after = store.usage();
    assert!(after.keys <= 256 && after.bytes < 2 * few.bytes, "{few:?} {after:?}");
}

#[test]
fn idle_key_is_as_an_unused_one() {
    let limit = policy("concurrency:2/30s");
    let (rate, both) = (policy("gcra:3/1h"), policy("concurrency:2/30s,sliding-log:3/1h"));
    let ttl = Some(Duration::from_secs(9));
    for step in 0..5 {
        let [store, unused] = [MemoryStore::new(), MemoryStore::new()];
        assert!(store.apply(b"k", &limit, at(0), HOLD).unwrap().allowed());
        assert!(store.apply(b"k", &limit, at(1), SETTLE).unwrap().allowed());
        assert_eq!(store.with_entry(b"k", |_| ()), None);
        if step == 0 {
            assert!(!store.reset(b"k", at(1)), "it had recovered");
        }
        for store in [&store, &unused] {
            let taken = match step {
                0 | 1 => store.apply(b"k", &rate, at(2), Operation::Take(1)),
                2 => store.apply(b"k", &limit, at(2), Operation::Peek(1)),
                3 => store.apply(b"k", &both, at(2), Operation::Reset),
                _ => Ok(store.apply(b"k", &both, at(2), HOLD).unwrap()),
            };
            assert!(taken.unwrap().allowed());
        }
        let saved = [&store, &unused].map(|store| {
            let hold = Operation::Hold { id: b"c", cost: 1, ttl };
            let decisions =
                [&limit, &rate, &both].map(|it| store.apply(b"k", it, at(3), hold).unwrap());
            (decisions, store.with_entry(b"k", |entry| entry.encode()))
        });
        assert_eq!(saved[0], saved[1], "step {step}");
    }
}

/// What the last hold leaves is not stored beside the usage of a later request, where a reader expects open holds.
#[test]
fn save_after_usage_of_idle_key_is_readable() {
    let hold = Operation::Hold { id: b"a", cost: 5, ttl: Some(Duration::from_secs(30)) };
    let settle = Operation::Settle { id: b"a", used: Some(0) };
    for text in [
        "gcra:100/1m",
        "sliding-log:100/1m",
        "sliding-log:100/1m:count=all",
        "sliding-counter:100/1m",
        "sliding-counter:100/1m:count=all",
        "token-bucket:100/1m:refill=interval",
        "fixed-window:2000/1m",
        "fixed-window:100/day:count=all",
    ] {
        let limit = policy(text);
        let more = Operation::Hold { id: b"b", cost: 3_000, ttl: Some(Duration::from_secs(9)) };
        let changes: [fn(&MemoryStore, &Policy, Operation<'_>) -> bool; 3] = [
            |store, limit, _| {
                store.apply(b"k", limit, at(2), Operation::Take(1)).unwrap().allowed()
            },
            |store, limit, _| {
                store.apply(b"k", limit, at(2), Operation::Charge(1)).unwrap().allowed()
            },
            // Denied, and recorded where denials count.
            |store, limit, more| !store.apply(b"k", limit, at(2), more).unwrap().allowed(),
        ];
        for (index, change) in changes.iter().enumerate() {
            let [store, unused] = [MemoryStore::new(), MemoryStore::new()];
            assert!(store.apply(b"k", &limit, at(0), hold).unwrap().allowed());
            assert!(store.apply(b"k", &limit, at(1), settle).unwrap().allowed());
            let saved = [&store, &unused].map(|store| {
                assert!(change(store, &limit, more), "{text} {index}");
                let mut bytes = Vec::new();
                store.save(&mut bytes, at(3)).unwrap();
                let loaded = MemoryStore::load(
                    Cursor::new(bytes),
                    at(3),
                    MemoryStore::DEFAULT_MAX_BYTES,
                    WhenFull::Deny,
                );
                let loaded = loaded.unwrap_or_else(|error| panic!("{text} {index}: {error}"));
                loaded.with_entry(b"k", |entry| entry.encode())
            });
            assert_eq!(saved[0], saved[1], "{text} {index}");
        }
    }
}
