//! The content of a frame: counters, and samples of keys.
//!
//! Counts are totals since the start. The page computes rates from the difference of two frames and
//! their times, so that a skipped frame changes nothing.

use bytes::Bytes;
use serde::Serialize;
use sluicegate_core::{RoundTrips, Source, StoreStatus, Timestamp, as_micros};

use super::{
    hot::{Hot, hot},
    rules::{RulesFrame, RulesReader},
    sources::Sources,
    store::{StoreFrame, store},
};
use crate::{
    admin::ShownBlock,
    stats::{Counter, LatencyHistogram, Outcomes, ServerStats, Stats},
};

/// One frame.
#[derive(Debug, Serialize)]
struct Frame {
    /// Its number since the first viewer came.
    number: u64,
    at_us: u64,
    uptime_us: u64,
    version: &'static str,
    viewers: usize,
    allowed: u64,
    denied: u64,
    errors: u64,
    protocols: Vec<Decisions>,
    sources: [Decisions; 4],
    clients: usize,
    max_clients: usize,
    waiting: usize,
    latency: Option<LatencyFrame>,
    store: StoreFrame,
    /// The rules in force; `None` without rules files.
    rules: Option<RulesFrame>,
    hot: Hot,
    /// Whether viewers may reset and block keys.
    actions: bool,
    blocks: BlockedKeys,
}

/// Decisions of one protocol or source.
#[derive(Debug, Serialize)]
struct Decisions {
    name: &'static str,
    allowed: u64,
    denied: u64,
}

/// Latency since the previous frame, from reading a request to its reply being ready.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct LatencyFrame {
    pub(super) p50_us: u64,
    pub(super) p99_us: u64,
    p999_us: u64,
}

/// The keys that an operator has blocked.
#[derive(Debug, Serialize)]
struct BlockedKeys {
    count: usize,
    /// The first ones to expire.
    shown: Vec<ShownBlock>,
}

/// Maximum number of blocked keys in a frame.
const MAX_BLOCKS_SHOWN: usize = 20;

fn blocked_keys(sources: &Sources) -> BlockedKeys {
    if !sources.decider.blocks.is_used() {
        return BlockedKeys { count: 0, shown: Vec::new() };
    }
    let listed = sources.decider.blocks.list(sources.decider.now());
    let shown = listed.iter().take(MAX_BLOCKS_SHOWN);
    let shown = shown.map(|it| ShownBlock::new(&sources.display, it)).collect();
    BlockedKeys { count: listed.len(), shown }
}

/// Makes frames, one after the other.
pub(super) struct FrameReader {
    number: u64,
    start: Timestamp,
    at: Timestamp,
    /// The decisions of each counter at the previous frame.
    decisions: Vec<u64>,
    histogram: LatencyHistogram,
    round_trips: RoundTrips,
    rules: RulesReader,
}

impl FrameReader {
    pub(super) fn new(sources: &Sources) -> Self {
        let start = sources.decider.now();
        Self {
            number: 0,
            start,
            at: start,
            decisions: sources.stats.all().map(Stats::decisions).collect(),
            histogram: sources.latency(),
            round_trips: match sources.decider.store_status() {
                StoreStatus::Remote(status) => status.round_trips,
                StoreStatus::Local(_) => RoundTrips::default(),
            },
            rules: RulesReader::new(sources),
        }
    }

    /// The next frame, as a server-sent event.
    pub(super) fn event(&mut self, sources: &Sources, viewers: usize) -> Bytes {
        let frame = self.frame(sources, viewers);
        let mut event = b"data: ".to_vec();
        if let Err(error) = serde_json::to_writer(&mut event, &frame) {
            tracing::error!(%error, "a frame of the dashboard could not be written");
        }
        event.extend_from_slice(b"\n\n");
        event.into()
    }

    fn frame(&mut self, sources: &Sources, viewers: usize) -> Frame {
        let now = sources.decider.now();
        let micros = now.as_micros().saturating_sub(self.at.as_micros());
        (self.at, self.number) = (now, self.number + 1);
        let mut samples = Vec::with_capacity(self.decisions.len());
        for (stats, before) in sources.stats.all().zip(&mut self.decisions) {
            let decisions = stats.decisions();
            samples.push(stats.sampler.read(micros, decisions - *before));
            *before = decisions;
        }
        let histogram = sources.latency();
        let latency = LatencyFrame::of(&histogram.since(&self.histogram));
        self.histogram = histogram;
        let stats = &*sources.stats;
        let protocols = stats.protocols().map(|name| of_protocol(stats, name));
        Frame {
            number: self.number,
            at_us: now.as_micros(),
            uptime_us: as_micros(sources.decider.clock.uptime()),
            version: env!("CARGO_PKG_VERSION"),
            viewers,
            allowed: sources.stats.sum(Stats::allowed),
            denied: sources.stats.sum(Stats::denied),
            errors: sources.stats.sum(|stats| stats.errors.count()),
            protocols: protocols.collect(),
            sources: Source::ALL.map(|source| of_source(stats, source)),
            clients: sources.clients.len(),
            max_clients: sources.clients.max,
            waiting: sources.decider.queues.waiting(),
            latency,
            store: store(sources, &mut self.round_trips),
            rules: self.rules.rules(sources),
            hot: hot(sources, self.start, samples),
            actions: sources.has_actions,
            blocks: blocked_keys(sources),
        }
    }
}

fn of_protocol(stats: &ServerStats, name: &'static str) -> Decisions {
    let sum = |count: fn(&Stats) -> u64| stats.sum_of_protocol(name, count);
    Decisions { name, allowed: sum(Stats::allowed), denied: sum(Stats::denied) }
}

fn of_source(stats: &ServerStats, source: Source) -> Decisions {
    let sum = |count: fn(&Outcomes) -> &Counter| stats.sum(|it| count(it.outcomes(source)).count());
    Decisions {
        name: source.as_str(),
        allowed: sum(|it| &it.allowed),
        denied: sum(|it| &it.denied),
    }
}

impl LatencyFrame {
    pub(super) fn of(histogram: &LatencyHistogram) -> Option<Self> {
        Some(Self {
            p50_us: histogram.quantile(500)?,
            p99_us: histogram.quantile(990)?,
            p999_us: histogram.quantile(999)?,
        })
    }
}
