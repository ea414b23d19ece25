//! A store as a file, whole or not at all.

use sluicegate_core::{Operation, Policy};
use sluicegate_memory::{MemoryStore, SnapshotError, WhenFull};

use super::{at, policy};

const POLICIES: [&str; 6] = [
    "gcra:3/1m",
    "gcra:7/1m:borrow",
    "sliding-log:5/1h",
    "fixed-window:4/day",
    "gcra:3/1m:burst=9,gcra:100/1d",
    "token-bucket:2/1s:burst=4000:refill=interval",
];

fn filled(keys: u32) -> (MemoryStore, Vec<Policy>) {
    let store = MemoryStore::new();
    let policies: Vec<_> = POLICIES.iter().map(|text| policy(text)).collect();
    for key in 0..keys {
        let policy = &policies[key as usize % policies.len()];
        for _ in 0..2 {
            let charged =
                store.apply(&key.to_le_bytes(), policy, at(0), Operation::Charge(1 + key % 3));
            assert!(charged.is_ok());
        }
    }
    (store, policies)
}

fn load(bytes: &[u8]) -> Result<MemoryStore, SnapshotError> {
    MemoryStore::load(bytes, at(0), MemoryStore::DEFAULT_MAX_BYTES, WhenFull::Deny)
}

#[test]
fn what_is_saved_is_loaded() {
    let keys = 20_000;
    let (store, policies) = filled(keys);
    let mut bytes = Vec::new();
    assert_eq!(store.save(&mut bytes, at(0)).unwrap(), u64::from(keys));
    let loaded = load(&bytes).unwrap();
    assert_eq!(loaded.len(), store.len());
    for key in 0..keys {
        let policy = &policies[key as usize % policies.len()];
        let ask = |store: &MemoryStore| {
            store.apply(&key.to_le_bytes(), policy, at(9), Operation::Take(1))
        };
        assert_eq!(ask(&loaded), ask(&store));
    }
}

#[test]
fn what_has_recovered_is_not_saved() {
    let (store, _) = filled(600);
    let mut bytes = Vec::new();
    let later = at(40 * 86_400_000_000);
    assert_eq!(store.save(&mut bytes, later).unwrap(), 0);
    assert!(load(&bytes).unwrap().is_empty());
}

#[test]
fn a_damaged_file_is_told_and_never_half_read() {
    let (store, _) = filled(60);
    let mut bytes = Vec::new();
    store.save(&mut bytes, at(0)).unwrap();
    for cut in 0..bytes.len() {
        assert!(load(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    for index in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[index] ^= 1;
        assert!(load(&changed).is_err(), "changed at {index}");
    }
    bytes.push(0);
    assert!(load(&bytes).is_err());
}
