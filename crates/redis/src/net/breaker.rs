//! Circuit breaker of one node: open while the node fails, so that no request waits for it.
//!
//! It opens after `max_failures` consecutive failures, or immediately when a probe fails. Only a probe that
//! succeeds closes it (`keeper`).

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use sluicegate_core::reached;

/// Time between two probes of a node whose breaker is open: when a client that is denied in between tries again, the next one
/// may have found the store available.
pub const PROBE_EVERY: Duration = sluicegate_fallback::RETRY_AFTER;

/// Counts consecutive failures.
#[derive(Debug)]
pub(crate) struct Breaker {
    max_failures: u32,
    failures: AtomicU32,
    open: AtomicBool,
}

impl Breaker {
    pub(crate) const fn new(max_failures: u32) -> Self {
        Self { max_failures, failures: AtomicU32::new(0), open: AtomicBool::new(false) }
    }

    /// Whether the node receives probes only.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// Records a reply, an error reply included.
    pub(crate) fn succeeded(&self) {
        // All threads share the cache line, therefore it is written only if the value changes.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
    }

    /// Records a failure. Returns whether that opened the breaker.
    pub(crate) fn failed(&self) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures >= self.max_failures && self.open()
    }

    /// Opens the breaker. Returns whether it was closed.
    pub(crate) fn open(&self) -> bool {
        let opens = !self.open.swap(true, Ordering::Relaxed);
        reached!(BreakerOpens if opens);
        opens
    }

    /// Closes the breaker. Returns whether it was open.
    pub(crate) fn close(&self) -> bool {
        self.failures.store(0, Ordering::Relaxed);
        let closes = self.open.swap(false, Ordering::Relaxed);
        reached!(BreakerCloses if closes);
        closes
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
        assert!(!breaker.failed() && breaker.failed() && breaker.close());
        assert!(!breaker.failed(), "it counts from zero without a reply, too");
    }
}
