//! What the server has counted since it started.
//!
//! Each worker counts for itself, in memory that no other worker writes; `INFO` adds it all up.

use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_core::{Decision, Source};

use crate::{dashboard::Watch, face::Face};

/// The counters of one worker. Each only grows.
///
/// A cache line is 64 bytes; they are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Stats {
    /// Decisions that were told to clients, by face and by who made them.
    decisions: [[Outcomes; 4]; 3],
    /// Requests of HTTP, whatever is asked.
    pub(crate) requests: Counter,
    pub(crate) commands: Counter,
    /// How long requests of HTTP took.
    pub(crate) latency: Latency,
    pub(crate) errors: Counter,
    /// Clients that were served.
    pub(crate) connections: Counter,
    /// Clients closed for not taking their replies.
    pub(crate) slow: Counter,
    /// Clients closed for asking nothing.
    pub(crate) idle: Counter,
    /// Wrong passwords.
    pub(crate) login_failures: Counter,
    /// Clients with whom no TLS could be agreed on.
    pub(crate) tls_failures: Counter,
    /// Calls of each command, in the order of the table of commands.
    calls: Calls,
    /// Calls of the rate limit service, and how long they took.
    pub(crate) questions: Counter,
    pub(crate) question_latency: Latency,
    /// Durations of commands over RESP.
    pub(crate) command_latency: Latency,
    /// What is noted while somebody looks at the dashboard.
    pub(crate) watch: Watch,
}

/// Where decisions of `source` are counted: the store's first, wherever that is.
const fn place(source: Source) -> usize {
    match source {
        Source::Cache => 1,
        Source::Lease => 2,
        Source::Fallback => 3,
        // The store, and what may be added.
        _ => 0,
    }
}

/// Decisions by what they said.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) allowed: Counter,
    pub(crate) denied: Counter,
}

/// What is counted of clients before a worker has them, by the one who accepts.
#[derive(Debug, Default)]
pub(crate) struct Accepting {
    /// Clients turned away, since there were too many.
    pub(crate) refused: Counter,
    /// Clients that the system could not accept.
    pub(crate) errors: Counter,
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
    #[inline]
    pub(crate) fn decided(&self, face: Face, source: Source, decision: &Decision) {
        let outcomes = &self.decisions[face.index()][place(source)];
        if decision.allowed() { outcomes.allowed.add() } else { outcomes.denied.add() }
    }

    /// What was told to clients of `face` that `source` decided.
    pub(crate) const fn of(&self, face: Face, source: Source) -> &Outcomes {
        &self.decisions[face.index()][place(source)]
    }

    pub(crate) fn allowed(&self) -> u64 {
        self.decisions.as_flattened().iter().map(|outcomes| outcomes.allowed.count()).sum()
    }

    pub(crate) fn denied(&self) -> u64 {
        self.decisions.as_flattened().iter().map(|outcomes| outcomes.denied.count()).sum()
    }

    /// Decisions that were told to clients.
    pub(crate) fn decisions(&self) -> u64 {
        self.allowed() + self.denied()
    }

    /// Counts a call of the command that stands at `index` of the table.
    #[inline]
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

/// Up to how long requests take, in microseconds, as they are counted; longer ones for themselves.
pub(crate) const BOUNDS: [u64; 16] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000, 5_000_000, 30_000_000,
];

/// How long requests took.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    counts: [Counter; BOUNDS.len() + 1],
    micros: Counter,
}

impl Latency {
    /// A request took so many microseconds.
    #[inline]
    pub(crate) fn took(&self, micros: u64) {
        self.record(1, micros);
    }

    /// Counts requests of a batch, each of which took as long as the batch, in microseconds.
    #[inline]
    pub(crate) fn record(&self, requests: u64, micros: u64) {
        // Most are short: the first bounds decide.
        let place = BOUNDS.iter().position(|&bound| micros <= bound).unwrap_or(BOUNDS.len());
        self.counts[place].add_many(requests);
        self.micros.add_many(micros.saturating_mul(requests));
    }

    /// How many took up to the bound at `index` and longer than the one before.
    pub(crate) fn count(&self, index: usize) -> u64 {
        self.counts.get(index).map_or(0, Counter::count)
    }

    /// How long all took together.
    pub(crate) fn micros(&self) -> u64 {
        self.micros.count()
    }
}

/// A count that one thread writes and all may read.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    #[inline]
    pub(crate) fn add(&self) {
        self.add_many(1);
    }

    #[inline]
    pub(crate) fn add_many(&self, count: u64) {
        // One thread writes, so nothing is lost between the two; and no bus is locked for it.
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
