//! The memory bound of a store, and its counters.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use sluicegate_core::TableUsage;

/// The least bound of a store.
pub(crate) const MIN_BYTES: usize = 2 << 20;

/// The decision on a new key while the table is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// Deny it: new keys cannot pass during a flood of keys.
    #[default]
    Deny,
    /// Allow it, uncounted: new keys are not limited during a flood of keys.
    Allow,
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
        // All threads share the line: it is not written in vain.
        if before == after {
            return;
        }
        // Wrapping: a decrease is added as its complement.
        let bytes = self.bytes.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        debug_assert!(bytes + after >= before, "more bytes are freed than were counted");
    }

    pub(crate) fn count_keys(&self, before: usize, after: usize) {
        let keys = self.keys.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
        debug_assert!(keys + after >= before, "more keys are removed than were counted");
    }

    pub(crate) fn count_table_full(&self) {
        self.table_full.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn usage(&self) -> TableUsage {
        TableUsage {
            keys: self.keys.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            max_bytes: self.max,
            table_full: self.table_full.load(Ordering::Relaxed),
        }
    }
}
