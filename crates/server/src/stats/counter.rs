//! A counter that one thread writes.

use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes and all may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self) {
        self.add_many(1);
    }

    #[inline]
    pub(crate) fn add_many(&self, count: u64) {
        // One thread writes, so that no update is lost between load and store, and no locked instruction is needed.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
