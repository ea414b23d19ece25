//! Circuit breaker of one node: open while the node fails, so that no request waits for it.
//!
//! It opens after so many failures in a row, or at once when a probe fails; only a probe that succeeds
//! closes it (`keeper`).

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Counts failures in a row.
#[derive(Debug)]
pub(crate) struct Breaker {
    most: u32,
    failures: AtomicU32,
    open: AtomicBool,
}

impl Breaker {
    pub(crate) const fn new(most: u32) -> Self {
        Self { most, failures: AtomicU32::new(0), open: AtomicBool::new(false) }
    }

    /// Whether the node is not asked.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// An answer came, whatever it said.
    pub(crate) fn succeeded(&self) {
        // The line is shared by all threads, so it is written only if it says something else.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// No answer came. Whether that opened it.
    pub(crate) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= self.most && self.open()
    }

    /// Opens it. Whether it was closed.
    pub(crate) fn open(&self) -> bool {
        !self.open.swap(true, Ordering::Relaxed)
    }

    /// Closes it. Whether it was open.
    pub(crate) fn close(&self) -> bool {
        self.failures.store(0, Ordering::Relaxed);
        self.open.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn breaker_consecutive_failures_open_it_once() {
        let breaker = Breaker::new(3);
        assert!(!breaker.failed() && !breaker.failed());
        breaker.succeeded();
        assert!(!breaker.failed() && !breaker.failed() && !breaker.is_open());
        assert!(breaker.failed() && breaker.is_open());
        assert!(!breaker.failed() && !breaker.open(), "it opens once");
        breaker.succeeded();
        assert!(breaker.is_open(), "only a probe closes it");
        assert!(breaker.close() && !breaker.close() && !breaker.is_open());
        assert!(!breaker.failed(), "it counts from zero");
    }
}
