//! Counters since the start of the server.
//!
//! Each worker counts for itself, once for each protocol, in memory that no other worker writes; readers
//! add it all up.

mod cause;
mod counter;
mod heavy_hitters;
mod key_sampler;
mod quotas;
mod sampled_keys;

use std::sync::Arc;

use sluicegate_core::{Decision, Source, Timestamp};

pub(crate) use self::{
    cause::{Cause, DenialFacts, DeniedBy, Denier},
    counter::Counter,
    heavy_hitters::{FadedTime, HeavyHitter, HeavyHitters, MAX_SAMPLED_KEY, UNIT},
    key_sampler::{KeySampler, KeySamples, LatencyHistogram},
    quotas::QuotaStats,
    sampled_keys::{Busiest, KeyFilter, KeyPage, SAMPLING_LINGER, SampledKeys, Scale},
};

/// The counters of one protocol on one worker. Each only grows.
///
/// A cache line is 64 bytes; they are fetched in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Stats {
    /// Decisions that were sent to clients, by their source.
    decisions: [Outcomes; 4],
    /// Commands of RESP, requests of HTTP, and calls of the rate limit service.
    pub(crate) requests: Counter,
    /// How long they took.
    pub(crate) latency: RequestLatency,
    pub(crate) errors: Counter,
    /// Clients that were served.
    pub(crate) connections: Counter,
    /// Clients closed because they did not read their replies.
    pub(crate) slow: Counter,
    /// Clients closed because they sent no request.
    pub(crate) idle: Counter,
    /// Wrong passwords and tokens.
    pub(crate) login_failures: Counter,
    /// Clients whose TLS handshake failed.
    pub(crate) tls_failures: Counter,
    /// Calls of each command, in the order of the table of commands.
    calls: CommandCalls,
    /// The keys that are requested, while the dashboard has viewers.
    pub(crate) sampler: KeySampler,
}

/// The counters of all workers, and of accepting clients.
#[derive(Debug)]
pub(crate) struct ServerStats {
    protocols: Vec<ProtocolStats>,
    pub(crate) accepting: AcceptCounters,
}

/// The counters of one protocol, of each worker.
#[derive(Debug)]
struct ProtocolStats {
    name: &'static str,
    workers: Box<[Arc<Stats>]>,
}

impl ServerStats {
    pub(crate) fn new(protocols: impl Iterator<Item = &'static str>, workers: usize) -> Self {
        let of_protocol = |name| {
            let workers = (0..workers).map(|_| Arc::default()).collect();
            ProtocolStats { name, workers }
        };
        Self {
            protocols: protocols.map(of_protocol).collect(),
            accepting: AcceptCounters::default(),
        }
    }

    /// The counters of a protocol, by its index in the order of registration, on a worker.
    pub(crate) fn stats(&self, protocol: usize, worker: usize) -> &Arc<Stats> {
        &self.protocols[protocol].workers[worker]
    }

    /// The number of workers.
    pub(crate) fn workers(&self) -> usize {
        self.protocols.first().map_or(0, |it| it.workers.len())
    }

    /// The names of the protocols, in the order of their registration.
    pub(crate) fn protocols(&self) -> impl Iterator<Item = &'static str> {
        self.protocols.iter().map(|it| it.name)
    }

    /// The counters of each protocol on each worker.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Stats> {
        self.protocols.iter().flat_map(|it| &it.workers).map(|stats| &**stats)
    }

    /// The counters of the protocol `name` on a worker.
    pub(crate) fn find(&self, name: &str, worker: usize) -> Option<&Stats> {
        let found = self.protocols.iter().find(|it| it.name == name)?;
        found.workers.get(worker).map(|stats| &**stats)
    }

    /// The sum of `count` over all workers and protocols.
    pub(crate) fn sum(&self, count: impl Fn(&Stats) -> u64) -> u64 {
        self.all().map(count).sum()
    }

    /// The sum of `count` over all workers, for one protocol.
    pub(crate) fn sum_of_protocol(&self, name: &str, count: impl Fn(&Stats) -> u64) -> u64 {
        let found = self.protocols.iter().filter(|it| it.name == name);
        found.flat_map(|it| &it.workers).map(|stats| count(stats)).sum()
    }

    /// The sum of `count` over all protocols, for one worker.
    pub(crate) fn sum_of_worker(&self, worker: usize, count: impl Fn(&Stats) -> u64) -> u64 {
        self.protocols.iter().filter_map(|it| it.workers.get(worker)).map(|it| count(it)).sum()
    }
}

/// The index of the counters of `source`.
const fn index_of(source: Source) -> usize {
    match source {
        Source::Cache => 1,
        Source::Lease => 2,
        Source::Fallback => 3,
        // The store, and sources that are added later.
        _ => 0,
    }
}

/// Decisions by outcome.
#[derive(Debug, Default)]
pub(crate) struct Outcomes {
    pub(crate) allowed: Counter,
    pub(crate) denied: Counter,
}

/// Counters of clients that no worker serves.
#[derive(Debug, Default)]
pub(crate) struct AcceptCounters {
    /// Clients rejected at `--max-clients`.
    pub(crate) rejected: Counter,
    /// Clients that the system failed to accept.
    pub(crate) errors: Counter,
}

/// Upper bound on the number of commands.
pub(crate) const MAX_COMMANDS: usize = 48;

#[derive(Debug)]
struct CommandCalls([Counter; MAX_COMMANDS]);

impl Default for CommandCalls {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl Stats {
    /// Counts a decision that was sent to a client.
    #[inline]
    pub(crate) fn decided(&self, source: Source, decision: &Decision) {
        let outcomes = &self.decisions[index_of(source)];
        if decision.allowed() { outcomes.allowed.add() } else { outcomes.denied.add() }
    }

    /// Counts a decision that is sent to a client, and samples its key.
    #[inline]
    pub(crate) fn record(&self, key: &[u8], source: Source, decision: &Decision, cause: Cause<'_>) {
        self.decided(source, decision);
        self.sampler.note(key, decision, cause);
    }

    /// Counts `requests` that were answered together, with `decisions`, and took from `start` to `end`.
    #[inline]
    pub(crate) fn answered(
        &self,
        requests: u64,
        decisions: usize,
        start: Timestamp,
        end: Timestamp,
    ) {
        let micros = end.as_micros().saturating_sub(start.as_micros());
        self.latency.record(requests, micros);
        self.sampler.answered(decisions, micros);
    }

    /// The decisions of `source`.
    pub(crate) const fn outcomes(&self, source: Source) -> &Outcomes {
        &self.decisions[index_of(source)]
    }

    pub(crate) fn allowed(&self) -> u64 {
        self.decisions.iter().map(|outcomes| outcomes.allowed.count()).sum()
    }

    pub(crate) fn denied(&self) -> u64 {
        self.decisions.iter().map(|outcomes| outcomes.denied.count()).sum()
    }

    /// Decisions that were sent to clients.
    pub(crate) fn decisions(&self) -> u64 {
        self.allowed() + self.denied()
    }

    /// Counts a call of the command at `index` of the table.
    #[inline]
    pub(crate) fn called(&self, index: usize) {
        self.requests.add();
        if let Some(calls) = self.calls.0.get(index) {
            calls.add();
        }
    }

    /// Calls of the command at `index` of the table.
    pub(crate) fn calls(&self, index: usize) -> u64 {
        self.calls.0.get(index).map_or(0, Counter::count)
    }
}

/// Upper bounds of the buckets of [`RequestLatency`], in microseconds; the last bucket has none.
pub(crate) const BOUNDS: [u64; 16] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000, 5_000_000, 30_000_000,
];

/// Counts of requests by latency.
#[derive(Debug, Default)]
pub(crate) struct RequestLatency {
    pub(crate) counts: [Counter; BOUNDS.len() + 1],
    /// The sum of all latencies, in microseconds.
    pub(crate) micros: Counter,
}

impl RequestLatency {
    /// Records the latency of a batch, in microseconds, for each of its requests.
    #[inline]
    fn record(&self, requests: u64, micros: u64) {
        // Most latencies are short and end the search early.
        let bucket = BOUNDS.iter().position(|&bound| micros <= bound).unwrap_or(BOUNDS.len());
        self.counts[bucket].add_many(requests);
        self.micros.add_many(micros.saturating_mul(requests));
    }
}
