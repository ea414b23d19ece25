//! A flood of keys stays within the bound, and gets nobody past a limit. Each test prints its
//! figures; `cargo xtask soak` runs the full sizes.

use sluicegate_core::{Operation, apply};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{at, policy, size, take};

#[test]
fn store_key_flood_stays_within_bound_and_limits() {
    let flood = size("SLUICEGATE_FLOOD", 2_000_000);
    let bound = usize::try_from(size("SLUICEGATE_FLOOD_BYTES", 16 << 20)).unwrap();
    let store = MemoryStore::bounded(bound, WhenFull::Deny);
    let rule = store.prepare(&policy("gcra:5/1d"), at(0));
    let watched = |key: u64| [b"watched".as_slice(), &key.to_le_bytes()].concat();
    let mut passed = vec![0; 1_000];
    for key in 0..flood {
        take(&store, &key.to_le_bytes(), &rule, key);
        if key % 100 == 0 {
            let one = usize::try_from(key / 100 % 1_000).unwrap();
            passed[one] += u32::from(take(&store, &watched(one as u64), &rule, key));
        }
    }
    let usage = store.usage();
    println!(
        "figure: a flood of {flood} keys into {} MB: {} MB taken, {} keys turned away, {} of 1000 watched keys had all that they may, none more",
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
            let rule = store.prepare(&policy(text), at(0));
            let mut key = 0_u64;
            while store.usage().table_full < 50_000 {
                take(&store, &key.to_le_bytes(), &rule, 0);
                key += 1;
            }
            let turned = store.usage().table_full;
            let mut passed = 0;
            for new in 0..1_000_u64 {
                passed +=
                    u64::from(take(&store, &[b"new", &new.to_le_bytes()[..]].concat(), &rule, 0));
            }
            let turned = store.usage().table_full - turned;
            println!(
                "figure: {text}, full, {when_full:?}: {passed} of 1000 passed, {turned} turned away"
            );
            assert!(turned > 800);
            assert_eq!(passed >= turned, passes);
            // Those that are known are still limited.
            assert!(!take(&store, &0_u64.to_le_bytes(), &rule, 0));
            // A day later there is room again, by the time that each part was looked at.
            assert!((0..128).any(|_| take(&store, b"later", &rule, 86_400_000_001)));
        }
    }
}

#[test]
fn take_simple_policy_uses_a_slot_only() {
    let bytes = |text: &str| {
        let store = MemoryStore::new();
        let rule = store.prepare(&policy(text), at(0));
        for key in 0..100_000_u64 {
            assert!(take(&store, &key.to_le_bytes(), &rule, key));
            // In place, too.
            assert!(take(&store, &key.to_le_bytes(), &rule, key));
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
    let rule = store.prepare(&log, at(0));
    let mut entry = None;
    for event in 0..100_001 {
        let found = store.apply_numbered(b"a", &rule, at(event), Operation::Take(1));
        let expected = apply(&log, &mut entry, at(event), Operation::Take(1));
        assert_eq!(found, expected);
    }
    let bytes = store.usage().bytes;
    assert!(bytes > 100_000 * 16, "{bytes}");
    // Logs that do not fit are turned away, and the bound holds.
    for key in 0..4_u8 {
        for event in 0..100_000 {
            take(&store, &[key], &rule, 200_000 + event);
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
        // Each is asked once, some seconds after the one before.
        let now = at(number * 2_000_000);
        assert!(
            store.apply(&number.to_le_bytes(), &policy, now, Operation::Take(1)).unwrap().allowed()
        );
    }
    let usage = store.usage();
    println!("figure: {invented} policies, each asked once: {usage:?}");
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
