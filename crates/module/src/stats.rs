//! What the module has done, as `INFO sluicegate` tells it.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Decision;

/// A number that only grows. One thread writes it at a time.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

pub(crate) static ALLOWED: Counter = Counter::new();
pub(crate) static DENIED: Counter = Counter::new();
pub(crate) static ERRORS: Counter = Counter::new();
/// Policies that had to be parsed.
pub(crate) static PARSED: Counter = Counter::new();
pub(crate) static PANICS: Counter = Counter::new();

impl Counter {
    const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    #[inline]
    pub(crate) fn add(&self) {
        // Not one step: the server runs one command at a time.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[inline]
pub(crate) fn decided(decision: &Decision) {
    if decision.allowed() { ALLOWED.add() } else { DENIED.add() }
}

/// All of them, by name.
pub(crate) fn all() -> [(&'static std::ffi::CStr, u64); 8] {
    let (allowed, denied) = (ALLOWED.get(), DENIED.get());
    [
        (c"decisions", allowed + denied),
        (c"allowed", allowed),
        (c"denied", denied),
        (c"errors", ERRORS.get()),
        (c"policies_parsed", PARSED.get()),
        (c"waiting", crate::wait::waiting() as u64),
        (c"panics", PANICS.get()),
        // 1 while there is neither an append-only file nor a replica.
        (c"replication_idle", crate::audience::is_nobody().into()),
    ]
}
