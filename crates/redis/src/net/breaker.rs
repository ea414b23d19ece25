//! A server that fails again and again is left alone until it answers a probe.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    time::Duration,
};

use sluicegate_core::Timestamp;

/// How often a server that is left alone is probed, while questions come.
pub const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Counts failures in a row.
#[derive(Debug)]
pub(crate) struct Breaker {
    most: u32,
    failures: AtomicU32,
    open: AtomicBool,
    /// When to probe next, in microseconds.
    probe_at: AtomicU64,
}

/// What to do with a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Ask.
    Pass,
    /// Do not ask.
    Stop,
    /// Do not ask, but probe.
    Probe,
}

impl Breaker {
    pub(crate) const fn new(most: u32) -> Self {
        Self {
            most,
            failures: AtomicU32::new(0),
            open: AtomicBool::new(false),
            probe_at: AtomicU64::new(0),
        }
    }

    pub(crate) fn gate(&self, now: Timestamp) -> Gate {
        if !self.open.load(Ordering::Relaxed) {
            return Gate::Pass;
        }
        let at = self.probe_at.load(Ordering::Relaxed);
        if now.as_micros() < at {
            return Gate::Stop;
        }
        let next = (now + PROBE_EVERY).as_micros();
        // One of those who come at the same time probes.
        let won = self.probe_at.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
        if won.is_ok() { Gate::Probe } else { Gate::Stop }
    }

    /// Whether it is left alone.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed)
    }

    /// An answer came, whatever it said.
    pub(crate) fn succeeded(&self) {
        // The line is shared by all threads, so it is written only if it says something else.
        if self.failures.load(Ordering::Relaxed) != 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        if self.open.load(Ordering::Relaxed) {
            self.open.store(false, Ordering::Relaxed);
        }
    }

    /// None came. Whether that was one too many.
    pub(crate) fn failed(&self, now: Timestamp) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if failures < self.most || self.open.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.probe_at.store((now + PROBE_EVERY).as_micros(), Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_opens_after_so_many_failures_in_a_row_and_closes_after_an_answer() {
        let breaker = Breaker::new(3);
        let now = Timestamp::EPOCH;
        assert!(!breaker.failed(now) && !breaker.failed(now));
        breaker.succeeded();
        assert!(!breaker.failed(now) && !breaker.failed(now));
        assert_eq!(breaker.gate(now), Gate::Pass);
        assert!(breaker.failed(now));
        assert!(!breaker.failed(now), "it opens once");
        assert_eq!(breaker.gate(now), Gate::Stop);
        breaker.succeeded();
        assert_eq!(breaker.gate(now), Gate::Pass);
    }

    #[test]
    fn one_of_all_probes_at_a_time() {
        let breaker = Breaker::new(1);
        assert!(breaker.failed(Timestamp::EPOCH));
        let almost = Timestamp::EPOCH + (PROBE_EVERY - Duration::from_micros(1));
        assert_eq!(breaker.gate(almost), Gate::Stop);
        let then = Timestamp::EPOCH + PROBE_EVERY;
        assert_eq!(breaker.gate(then), Gate::Probe);
        assert_eq!(breaker.gate(then), Gate::Stop);
        assert_eq!(breaker.gate(then + PROBE_EVERY), Gate::Probe);
    }
}
