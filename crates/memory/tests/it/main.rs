//! The store against the conformance kit, a plain map, many threads and floods of keys.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use sluicegate_core::{Policy, Timestamp};
use sluicegate_memory::{MemoryStore, NumberedPolicy};

mod bounds;
mod clocked;
mod conformance;
mod forgetting;
mod full_table;
mod holds;
mod hostile;
mod idle;
mod multi_key;
mod numbers;
#[cfg(target_os = "linux")]
mod resident;
mod restart;
mod snapshot;
mod threads;

/// A number from the environment, for the full sizes.
fn size(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn policy(text: &str) -> Policy {
    text.parse().unwrap()
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_700_000_000_000_000 + micros).unwrap()
}

/// Whether one unit was to be had.
fn take(store: &MemoryStore, key: &[u8], prepared: &NumberedPolicy, now: u64) -> bool {
    let operation = sluicegate_core::Operation::Take(1);
    store.apply_numbered(key, prepared, at(now), operation).unwrap().allowed()
}
