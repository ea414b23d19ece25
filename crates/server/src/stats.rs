//! What the server has counted since it started.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::Decision;

/// Counters. Each only grows.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) allowed: Counter,
    pub(crate) denied: Counter,
    pub(crate) commands: Counter,
    pub(crate) errors: Counter,
    pub(crate) connections: Counter,
    pub(crate) refused: Counter,
    /// Calls of each command, in the order of the table of commands.
    calls: Calls,
}

/// More than there are commands.
pub(crate) const MAX_COMMANDS: usize = 48;

#[derive(Debug)]
struct Calls([Counter; MAX_COMMANDS]);

impl Default for Calls {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Stats {
    /// Counts a decision that was told to a client.
    pub(crate) fn decided(&self, decision: &Decision) {
        if decision.allowed() { self.allowed.add() } else { self.denied.add() }
    }

    /// Counts a call of the command that stands at `index` of the table.
    pub(crate) fn called(&self, index: usize) {
        self.commands.add();
        if let Some(calls) = self.calls.0.get(index) {
            calls.add();
        }
    }

    /// How often the command that stands at `index` of the table was called.
    pub(crate) fn calls(&self, index: usize) -> u64 {
        self.calls.0.get(index).map_or(0, Counter::count)
    }
}

/// A count.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
