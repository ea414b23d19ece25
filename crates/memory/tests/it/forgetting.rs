//! Keys that have recovered are dropped, in time, and no others.

use sluicegate_core::Operation;
use sluicegate_memory::MemoryStore;

use super::{at, policy, take};

#[test]
fn reset_returns_whether_state_existed() {
    let store = MemoryStore::new();
    for text in ["fixed-window:1/1s", "gcra:1/1s"] {
        let once = store.prepare(&policy(text), at(0));
        assert!(!store.reset(b"a", at(0)));
        assert!(take(&store, b"a", &once, 0));
        assert!(store.reset(b"a", at(999_999)));
        assert!(store.is_empty());
        assert!(take(&store, b"a", &once, 0));
        assert!(!store.reset(b"a", at(1_000_000)), "it had recovered");
        assert!(store.is_empty());
    }
}

#[test]
fn apply_without_effect_stores_no_key() {
    let store = MemoryStore::new();
    let once = policy("fixed-window:1/1s");
    for operation in
        [Operation::Peek(1), Operation::Take(0), Operation::Refund(3), Operation::Reset]
    {
        assert!(store.apply(b"a", &once, at(5), operation).unwrap().allowed());
    }
    let later = Operation::Reserve { cost: 1, max_wait: std::time::Duration::ZERO };
    assert!(store.apply(b"a", &once, at(5), later).is_err());
    assert!(store.is_empty());
    assert!(store.apply(b"a", &once, at(5), Operation::Take(1)).unwrap().allowed());
    assert!(store.apply(b"a", &once, at(5), later).is_err());
    assert!(!store.apply(b"a", &once, at(5), Operation::Take(1)).unwrap().allowed());
}

#[test]
fn with_entry_stored_key_reads_entry() {
    let store = MemoryStore::new();
    for text in ["gcra:3/1m", "sliding-counter:3/1m"] {
        let prepared = store.prepare(&policy(text), at(0));
        assert!(take(&store, text.as_bytes(), &prepared, 0));
        let actual = store.with_entry(text.as_bytes(), |entry| entry.policy().to_string());
        assert_eq!(actual.as_deref(), Some(text));
    }
    assert_eq!(store.with_entry(b"other", |_| ()), None);
}

#[test]
fn insert_stream_of_new_keys_reuses_recovered_slots() {
    for text in ["fixed-window:1/1s", "gcra:1/1s"] {
        let store = MemoryStore::new();
        let prepared = store.prepare(&policy(text), at(0));
        // A thousand new keys a second, each seen once.
        for key in 0..200_000_u32 {
            assert!(take(&store, &key.to_le_bytes(), &prepared, u64::from(key) * 1_000));
        }
        let usage = store.usage();
        // A table of its smallest size holds 65 536.
        assert!(usage.bytes < 8 << 20, "{usage:?}");
        assert!(usage.keys < 66_000, "{usage:?}");
    }
}

#[test]
fn without_forgetting_a_key_of_another_time_is_kept() {
    let store = MemoryStore::new().without_forgetting();
    for text in ["fixed-window:1/1s", "gcra:1/1s"] {
        let prepared = store.prepare(&policy(text), at(0));
        assert!(take(&store, text.as_bytes(), &prepared, 0));
        for key in 0..200_000_u32 {
            assert!(take(
                &store,
                &[text.as_bytes(), &key.to_le_bytes()].concat(),
                &prepared,
                1 << 40
            ));
        }
        assert!(!take(&store, text.as_bytes(), &prepared, 5));
    }
}

/// A log keeps events beyond its period for a later policy, whatever reads it in between.
#[test]
fn read_of_a_recovered_log_keeps_what_a_later_policy_counts() {
    const SECOND: u64 = 1_000_000;
    let [kept, longer] = ["sliding-log:10/1m:keep=1h", "sliding-log:10/1h"].map(policy);
    for operation in [Operation::Peek(1), Operation::Take(0), Operation::Refund(0)] {
        let store = MemoryStore::new();
        assert!(store.apply(b"a", &kept, at(0), Operation::Take(10)).unwrap().allowed());
        let read = store.apply(b"a", &kept, at(90 * SECOND), operation).unwrap();
        assert_eq!((read.remaining, read.reset_after.is_zero()), (10, true), "{operation:?}");
        let take = store.apply(b"a", &longer, at(91 * SECOND), Operation::Take(1)).unwrap();
        assert!(!take.allowed(), "{operation:?}");
    }
}
