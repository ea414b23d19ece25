//! A flood of keys stays within the bound, and no client passes a limit by it. Each test prints its figures; `cargo
//! xtask soak` runs the full sizes.

use std::time::Duration;

use sluicegate_core::{Operation, apply};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{at, policy, size, take};

#[test]
fn store_key_flood_stays_within_bound_and_limits() {
    let flood = size("SLUICEGATE_FLOOD", 2_000_000);
    let bound = usize::try_from(size("SLUICEGATE_FLOOD_BYTES", 16 << 20)).unwrap();
    let store = MemoryStore::bounded(bound, WhenFull::Deny);
    let prepared = store.prepare(&policy("gcra:5/1d"), at(0));
    let watched = |key: u64| [b"watched".as_slice(), &key.to_le_bytes()].concat();
    let mut passed = vec![0; 1_000];
    for key in 0..flood {
        take(&store, &key.to_le_bytes(), &prepared, key);
        if key % 100 == 0 {
            let one = usize::try_from(key / 100 % 1_000).unwrap();
            passed[one] += u32::from(take(&store, &watched(one as u64), &prepared, key));
        }
    }
    let usage = store.usage();
    println!(
        "figure: a flood of {flood} keys into {} MB: {} MB taken, {} keys rejected, {} of 1000 watched keys got exactly their limit, none more",
        bound >> 20,
        usage.bytes >> 20,
        usage.table_full,
        passed.iter().filter(|&&count| count == 5).count(),
    );
    assert!(usage.bytes <= bound + bound / 10);
    assert!(usage.table_full > 0);
    assert!(passed.iter().all(|&count| count <= 5), "a watched key was let over its limit");
    assert!(passed.iter().filter(|&&count| count == 5).count() >= 990, "live keys were dropped");
}

#[test]
fn store_full_denies_or_allows_new_keys() {
    for (when_full, passes) in [(WhenFull::Deny, false), (WhenFull::Allow, true)] {
        for text in ["gcra:1/1d", "fixed-window:1/1d", "sliding-log:1/1d"] {
            let store = MemoryStore::bounded(0, when_full);
            let prepared = store.prepare(&policy(text), at(0));
            let mut key = 0_u64;
            while store.usage().table_full < 50_000 {
                take(&store, &key.to_le_bytes(), &prepared, 0);
                key += 1;
            }
            let rejected_keys = store.usage().table_full;
            let mut passed = 0;
            for new in 0..1_000_u64 {
                passed += u64::from(take(
                    &store,
                    &[b"new", &new.to_le_bytes()[..]].concat(),
                    &prepared,
                    0,
                ));
            }
            let rejected_keys = store.usage().table_full - rejected_keys;
            println!(
                "figure: {text}, full, {when_full:?}: {passed} of 1000 passed, {rejected_keys} rejected"
            );
            assert!(rejected_keys > 800);
            assert_eq!(passed >= rejected_keys, passes);
            // The keys in the table are still limited.
            assert!(!take(&store, &0_u64.to_le_bytes(), &prepared, 0));
            // A day later there is free space again, because every part was swept in between.
            assert!((0..128).any(|_| take(&store, b"later", &prepared, 86_400_000_001)));
        }
    }
}

/// A hold of a key without space is denied, or allowed and not stored; open holds are settled.
#[test]
fn hold_full_table_denies_or_allows_new_keys_and_settles_open_holds() {
    let ttl = Some(Duration::from_secs(86_400));
    for (when_full, passes) in [(WhenFull::Deny, false), (WhenFull::Allow, true)] {
        for text in ["concurrency:1/1d", "gcra:1/1d", "concurrency:1/1d,sliding-log:1/1d"] {
            let store = MemoryStore::bounded(0, when_full);
            let prepared = store.prepare(&policy(text), at(0));
            let apply = |key: &[u8], operation| {
                store.apply_numbered(key, &prepared, at(0), operation).unwrap()
            };
            let hold = Operation::Hold { id: b"a", cost: 1, ttl };
            let (settle, renew) =
                (Operation::Settle { id: b"a", used: Some(0) }, Operation::Renew { id: b"a", ttl });
            let (mut key, mut known) = (0_u64, Vec::new());
            while store.usage().table_full < 20_000 {
                let rejected_keys = store.usage().table_full;
                let allowed = apply(&key.to_le_bytes(), hold).allowed();
                if store.usage().table_full == rejected_keys {
                    assert!(allowed, "{text}");
                    known.push(key);
                } else {
                    assert_eq!(allowed, passes, "{text}, {when_full:?}");
                    assert!(
                        !apply(&key.to_le_bytes(), settle).allowed(),
                        "{text}: it is not known"
                    );
                }
                key += 1;
            }
            let bytes = store.usage().bytes;
            // Every opened hold exists: open once, renewed, settled once.
            for key in &known {
                let key = &key.to_le_bytes();
                assert!(apply(key, hold).allowed() && apply(key, renew).allowed(), "{text}");
                let other = Operation::Hold { id: b"b", cost: 1, ttl };
                assert!(!apply(key, other).allowed(), "{text}");
                assert!(apply(key, settle).allowed() && !apply(key, settle).allowed(), "{text}");
            }
            let (keys, rejected_keys) = (known.len(), store.usage().table_full);
            println!(
                "figure: {text}, full, {when_full:?}: {keys} keys with a hold in {} KiB, all settled; {rejected_keys} rejected",
                bytes >> 10
            );
            // The settled holds have freed space.
            assert!(known.iter().all(|key| apply(&key.to_le_bytes(), hold).allowed()), "{text}");
        }
    }
}

/// The ledger of one key is counted as it grows, and rejected if it does not fit.
#[test]
fn hold_ledger_that_grows_is_counted_and_bounded() {
    let (bound, ttl) = (2 << 20, Some(Duration::from_secs(86_400)));
    for text in ["concurrency:65536/1d", "gcra:1000000/1d"] {
        let store = MemoryStore::bounded(bound, WhenFull::Deny);
        let prepared = store.prepare(&policy(text), at(0));
        let apply = |key: u64, op: Operation<'_>| {
            store.apply_numbered(&key.to_le_bytes(), &prepared, at(0), op).unwrap()
        };
        let id = |number: u64| format!("{number:064}").into_bytes();
        let before = store.usage().bytes;
        let holds = 4_000;
        for number in 0..holds {
            let hold = Operation::Hold { id: &id(number), cost: 1, ttl };
            assert!(apply(0, hold).allowed());
        }
        let grown = store.usage().bytes - before;
        let each = grown / usize::try_from(holds).unwrap();
        assert!((12 + 64..12 + 64 + 40).contains(&each), "{each} bytes a hold");
        // Ledgers that do not fit are rejected, and the bound holds.
        let (mut keys, mut opened) = (1, vec![holds]);
        while store.usage().table_full == 0 {
            let full = (0..holds).find(|number| {
                !apply(keys, Operation::Hold { id: &id(*number), cost: 1, ttl }).allowed()
            });
            opened.push(full.unwrap_or(holds));
            keys += 1;
        }
        let usage = store.usage();
        println!(
            "figure: {text}: {each} bytes a hold with an id of 64 bytes; {} holds of {keys} keys in {} KiB of {}",
            opened.iter().sum::<u64>(),
            usage.bytes >> 10,
            bound >> 10
        );
        assert!(usage.bytes <= bound + bound / 4, "{usage:?}");
        // Each is settled, which gives the memory back.
        for (key, opened) in (0..).zip(opened) {
            for number in 0..opened {
                assert!(apply(key, Operation::Settle { id: &id(number), used: Some(0) }).allowed());
            }
        }
        assert!(store.usage().bytes < before + (64 << 10), "{:?}", store.usage());
    }
}

#[test]
fn take_simple_policy_uses_a_slot_only() {
    let bytes = |text: &str| {
        let store = MemoryStore::new();
        let prepared = store.prepare(&policy(text), at(0));
        for key in 0..100_000_u64 {
            assert!(take(&store, &key.to_le_bytes(), &prepared, key));
            // In place, too.
            assert!(take(&store, &key.to_le_bytes(), &prepared, key));
        }
        assert_eq!(store.len(), 100_000);
        store.usage().bytes / 100_000
    };
    for text in ["gcra:5/1d", "fixed-window:1023/1d", "fixed-window:1000000/1d:align=clock"] {
        let bytes = bytes(text);
        println!("figure: {bytes} bytes a key under {text}");
        assert!((16..40).contains(&bytes), "{bytes}");
    }
    assert!(bytes("sliding-log:5/1d") > 80);
}

#[test]
fn take_log_of_100000_events_is_counted() {
    let store = MemoryStore::bounded(4 << 20, WhenFull::Deny);
    let log = policy("sliding-log:100000/1d");
    let prepared = store.prepare(&log, at(0));
    let mut entry = None;
    for event in 0..100_001 {
        let found = store.apply_numbered(b"a", &prepared, at(event), Operation::Take(1));
        let expected = apply(&log, &mut entry, at(event), Operation::Take(1));
        assert_eq!(found, expected);
    }
    let bytes = store.usage().bytes;
    assert!(bytes > 100_000 * 16, "{bytes}");
    // Logs that do not fit are rejected, and the bound holds.
    for key in 0..4_u8 {
        for event in 0..100_000 {
            take(&store, &[key], &prepared, 200_000 + event);
        }
    }
    let usage = store.usage();
    println!("figure: logs of 100000 events: {bytes} B for the first; then {usage:?}");
    assert!(usage.bytes < (4 << 20) + (2 << 20), "{usage:?}");
    assert!(usage.table_full > 0);
}

#[test]
fn prepare_invented_policies_take_no_memory() {
    let store = MemoryStore::bounded(64 << 20, WhenFull::Deny);
    let invented = size("SLUICEGATE_POLICIES", 100_000);
    for number in 1..=invented {
        let policy = policy(&format!("gcra:{number}/1s:burst=1"));
        // Each key gets one request, some seconds after the key before.
        let now = at(number * 2_000_000);
        assert!(
            store.apply(&number.to_le_bytes(), &policy, now, Operation::Take(1)).unwrap().allowed()
        );
    }
    let usage = store.usage();
    println!("figure: {invented} policies, each used once: {usage:?}");
    assert!(usage.bytes < 32 << 20, "{usage:?}");
}

#[test]
fn take_policy_without_number_is_limited() {
    let store = MemoryStore::new();
    for number in 1..=40_000_u32 {
        let policy = policy(&format!("gcra:{number}/1d:burst=1"));
        let take = |key: &[u8]| store.apply(key, &policy, at(0), Operation::Take(1)).unwrap();
        assert!(take(&number.to_le_bytes()).allowed());
        assert!(!take(&number.to_le_bytes()).allowed());
    }
}
