//! What one frame says: counters as they stand, and what was noted while somebody looked.
//!
//! Counts are totals since the start. Who shows a rate takes the difference between two frames by
//! their times, so that a frame that was skipped changes nothing.

use bytes::Bytes;
use serde::Serialize;
use sluicegate_core::{Source, Timestamp};
use sluicegate_redis::RoundTrips;

use super::{
    hot::{Hot, hot},
    rules::{self, Rules},
    store::{Store, store},
    watch::Took,
};
use crate::{face::Face, http::Shown, shared::Shared, stats::Counter, stats::Stats};

/// One frame.
#[derive(Debug, Serialize)]
struct Frame {
    /// Which one it is since somebody began to look.
    number: u64,
    at_us: u64,
    uptime_us: u64,
    version: &'static str,
    viewers: usize,
    allowed: u64,
    denied: u64,
    errors: u64,
    protocols: [Decisions; 3],
    sources: [Decisions; 4],
    clients: usize,
    max_clients: usize,
    waiting: usize,
    latency: Option<Latency>,
    store: Store,
    /// What is in force; nothing where there are no files of rules.
    rules: Option<Rules>,
    hot: Hot,
    /// Whether viewers may reset and block keys.
    actions: bool,
    blocks: BlockedKeys,
}

/// Decisions that were told to clients, by one word.
#[derive(Debug, Serialize)]
struct Decisions {
    name: &'static str,
    allowed: u64,
    denied: u64,
}

/// How long answers took since the frame before, from when a request was read to when its answer
/// was ready to be sent.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Latency {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    p999_us: u64,
}

/// The keys that an operator has blocked.
#[derive(Debug, Serialize)]
struct BlockedKeys {
    count: usize,
    /// Those that expire first.
    shown: Vec<Shown>,
}

/// Blocked keys that a frame shows.
const MAX_BLOCKS_SHOWN: usize = 20;

fn blocked_keys(shared: &Shared) -> BlockedKeys {
    if !shared.blocks.is_used() {
        return BlockedKeys { count: 0, shown: Vec::new() };
    }
    let listed = shared.blocks.list(shared.now());
    let shown = listed.iter().take(MAX_BLOCKS_SHOWN).map(|it| Shown::of(shared, it)).collect();
    BlockedKeys { count: listed.len(), shown }
}

/// Makes frames, one after the other.
pub(super) struct Reader {
    number: u64,
    at: Timestamp,
    /// What each worker had decided.
    decisions: Vec<u64>,
    took: Took,
    round_trips: RoundTrips,
    rules: rules::Reader,
}

impl Reader {
    pub(super) fn new(shared: &Shared) -> Self {
        Self {
            number: 0,
            at: shared.now(),
            decisions: shared.workers.iter().map(|stats| stats.decisions()).collect(),
            took: took(shared),
            round_trips: shared.home.round_trips(),
            rules: rules::Reader::new(shared),
        }
    }

    /// The next frame, as an event.
    pub(super) fn event(&mut self, shared: &Shared) -> Bytes {
        let frame = self.frame(shared);
        let mut event = b"data: ".to_vec();
        if let Err(error) = serde_json::to_writer(&mut event, &frame) {
            tracing::error!(%error, "a frame of the dashboard could not be written");
        }
        event.extend_from_slice(b"\n\n");
        event.into()
    }

    fn frame(&mut self, shared: &Shared) -> Frame {
        let now = shared.now();
        let micros = now.as_micros().saturating_sub(self.at.as_micros());
        (self.at, self.number) = (now, self.number + 1);
        let hub = &shared.dashboard;
        let mut sketches = Vec::with_capacity(shared.workers.len());
        for (stats, before) in shared.workers.iter().zip(&mut self.decisions) {
            let decisions = stats.decisions();
            sketches.push(stats.watch.read(micros, decisions - *before));
            *before = decisions;
        }
        let took = took(shared);
        let latency = Latency::of(&took.since(&self.took));
        self.took = took;
        Frame {
            number: self.number,
            at_us: now.as_micros(),
            uptime_us: u64::try_from(shared.clock.uptime().as_micros()).unwrap_or(u64::MAX),
            version: env!("CARGO_PKG_VERSION"),
            viewers: hub.viewers(),
            allowed: shared.sum(Stats::allowed),
            denied: shared.sum(Stats::denied),
            errors: shared.sum(|stats| stats.errors.count()),
            protocols: Face::ALL.map(|face| by(shared, face.name(), &[face], &SOURCES)),
            sources: SOURCES.map(|source| by(shared, source.word(), &Face::ALL, &[source])),
            clients: shared.clients.len(),
            max_clients: shared.config.max_clients,
            waiting: shared.lines.waiting(),
            latency,
            store: store(shared, &mut self.round_trips),
            rules: self.rules.rules(shared),
            hot: hot(shared, sketches),
            actions: shared.http_token.is_some(),
            blocks: blocked_keys(shared),
        }
    }
}

const SOURCES: [Source; 4] = [Source::Store, Source::Cache, Source::Lease, Source::Fallback];

fn by(shared: &Shared, name: &'static str, faces: &[Face], sources: &[Source]) -> Decisions {
    let pairs = || faces.iter().flat_map(|&face| sources.iter().map(move |&it| (face, it)));
    let sum = |count: fn(&crate::stats::Outcomes) -> &Counter| {
        let of = |stats: &Stats| pairs().map(|(face, it)| count(stats.of(face, it)).count()).sum();
        shared.sum(of)
    };
    Decisions { name, allowed: sum(|it| &it.allowed), denied: sum(|it| &it.denied) }
}

/// The latency histogram of all workers.
pub(super) fn took(shared: &Shared) -> Took {
    let mut took = Took::default();
    shared.workers.iter().for_each(|stats| stats.watch.took(&mut took));
    took
}

impl Latency {
    pub(super) fn of(took: &Took) -> Option<Self> {
        Some(Self {
            p50_us: took.quantile(500)?,
            p99_us: took.quantile(990)?,
            p999_us: took.quantile(999)?,
        })
    }
}
