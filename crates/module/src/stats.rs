//! Counters of the module.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Decision;

/// A count that only grows. One thread writes it at a time.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

pub(crate) static ALLOWED: Counter = Counter::new();
pub(crate) static DENIED: Counter = Counter::new();
pub(crate) static ERRORS: Counter = Counter::new();
/// Policies that were parsed.
pub(crate) static PARSED: Counter = Counter::new();
pub(crate) static PANICS: Counter = Counter::new();

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn add(&self) {
        // Not atomic as a whole, because the server runs one command at a time.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[inline]
pub(crate) fn decided(decision: &Decision) {
    if decision.allowed() { ALLOWED.add() } else { DENIED.add() }
}
