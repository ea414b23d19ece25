//! The memory bound of a store, and its counters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The decision on a new key while the table is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny it: new keys cannot pass during a flood of keys.
    #[default]
    Deny,
    /// Allow it, uncounted: new keys are not limited during a flood of keys.
    Allow,
}

/// Counters of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Stored keys, including recovered ones that have not been reclaimed yet.
    pub keys: usize,
    /// Bytes in use.
    pub bytes: usize,
    /// Upper bound on `bytes`.
    pub max_bytes: usize,
    /// Requests on new keys while the table was full: denied, or allowed uncounted.
    pub table_full: u64,
    /// Keys of the state file that were dropped at the start because they did not fit into `max_bytes`.
    pub keys_dropped: usize,
}

/// The bytes in use and their bound, and counters.
#[derive(Debug)]
pub(crate) struct Budget {
    max: usize,
    bytes: AtomicUsize,
    keys: AtomicUsize,
    table_full: AtomicU64,
}

impl Budget {
    pub(crate) const fn new(max: usize) -> Self {
        Self {
            max,
            bytes: AtomicUsize::new(0),
            keys: AtomicUsize::new(0),
            table_full: AtomicU64::new(0),
        }
    }

    /// Whether `bytes` more would fit.
    pub(crate) fn fits(&self, bytes: usize) -> bool {
        self.bytes.load(Ordering::Relaxed) + bytes <= self.max
    }

    /// Counts a change of the bytes in use.
    pub(crate) fn resize(&self, before: usize, after: usize) {
        // Wrapping: a decrease is added as its complement.
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn count_keys(&self, before: usize, after: usize) {
        self.keys.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }

    pub(crate) fn count_table_full(&self) {
        self.table_full.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            max_bytes: self.max,
            table_full: self.table_full.load(Ordering::Relaxed),
            keys_dropped: 0,
        }
    }
}
