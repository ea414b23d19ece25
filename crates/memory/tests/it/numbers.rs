//! A restart of a full store with more policies than numbers: the states of some policies are in slots, those of the
//! others in overflow entries.

use sluicegate_core::{Entry, Policy};
use sluicegate_memory::{MemoryStore, WhenFull};

use super::{
    policy,
    restart::{has, reloaded},
    size, take,
};

/// Number of policies that have a number.
const NUMBERS: u64 = 32_766;
const HOUR: u64 = 3_600_000_000;

/// A policy for each number, whose keys recover after about the given number of hours.
fn windows(hours: u64, index: u64) -> Policy {
    policy(&format!("fixed-window:1/{}us", hours * HOUR + index))
}

/// Admits new keys under policies from `first` on, one key each, until the table denies 100; returns their number.
fn fill(store: &MemoryStore, keys: &mut Vec<u64>, first: u64, now: u64) -> usize {
    let before = keys.len();
    for index in first.. {
        let key = NUMBERS * 100 + index;
        let prepared = store.prepare(&windows(12, index), super::at(now));
        if take(store, &key.to_le_bytes(), &prepared, now) {
            keys.push(key);
        } else if store.usage().table_full >= 100 {
            break;
        }
    }
    keys.len() - before
}

fn entry(store: &MemoryStore, key: u64) -> Option<Entry> {
    store.with_entry(&key.to_le_bytes(), Entry::clone)
}

/// As many keys under each numbered policy as given, then one under each of more policies.
#[test]
fn load_full_table_keeps_policy_numbers() {
    let keys_per_policy = size("SLUICEGATE_KEYS_PER_POLICY", 2);
    let bound = usize::try_from(size("SLUICEGATE_NUMBERS_BYTES", 15 << 20)).unwrap();
    for reused in [false, true] {
        let store = MemoryStore::bounded(bound, WhenFull::Deny);
        let mut now = 0;
        if reused {
            // Policies whose keys have recovered leave their numbers to those that follow.
            for index in 0..NUMBERS {
                let prepared = store.prepare(&windows(1, index), super::at(now));
                assert!(take(&store, &index.to_le_bytes(), &prepared, now));
            }
            now = 2 * HOUR;
        }
        let mut keys = Vec::new();
        for index in 0..NUMBERS {
            let prepared = store.prepare(&windows(6, index), super::at(now));
            for turn in 1..=keys_per_policy {
                let key = turn * NUMBERS + index;
                assert!(take(&store, &key.to_le_bytes(), &prepared, now));
                keys.push(key);
            }
        }
        let beside = fill(&store, &mut keys, 0, now);
        assert!(beside > 1000, "{beside}");
        assert!(keys.iter().all(|key| has(&store, *key)));
        let mut loaded = reloaded(&store, now + 1, bound, WhenFull::Deny);
        for round in 2..4 {
            let usage = loaded.usage();
            let equal =
                keys.iter().filter(|key| entry(&loaded, **key) == entry(&store, **key)).count();
            println!(
                "figure: {NUMBERS} policies with numbers{}, {} keys and {beside} more beside the table: of {} KiB \
                 {} KiB after a restart, {equal} equal",
                if reused { " used before" } else { "" },
                keys.len() - beside,
                store.usage().bytes >> 10,
                usage.bytes >> 10,
            );
            assert_eq!(equal, keys.len());
            assert!(usage.bytes <= store.usage().bytes, "{usage:?}");
            loaded = reloaded(&loaded, now + round, bound, WhenFull::Deny);
        }
    }
}
