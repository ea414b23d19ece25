//! The health of the store.

use serde::Serialize;
use sluicegate_core::{NodeHealth, RoundTrips, StoreStatus};
use sluicegate_memory::WhenFull;

use super::sources::Sources;

/// The store, and its health.
#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(super) enum StoreFrame {
    /// In this process.
    Memory {
        keys: usize,
        bytes: usize,
        max_bytes: usize,
        table_full: u64,
        when_full: &'static str,
        snapshots: Option<Snapshots>,
    },
    /// In Redis or Valkey.
    Redis {
        on_error: &'static str,
        /// Why the store is unavailable, if it is.
        unavailable: Option<String>,
        /// Round trips since the previous frame; `None` if there were none.
        latency: Option<StoreLatency>,
        servers: Vec<NodeFrame>,
        /// Counters of the store client, by name.
        counts: Vec<(&'static str, u64)>,
    },
}

/// Upper bounds of the buckets of round trips to the store; `None` is the last bucket, which has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct StoreLatency {
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

impl StoreLatency {
    fn between(before: &RoundTrips, now: &RoundTrips) -> Option<Self> {
        let counts = now.buckets().zip(before.buckets());
        let counts: Vec<_> =
            counts.map(|((bound, now), (_, before))| (bound, now.saturating_sub(before))).collect();
        let total: u64 = counts.iter().map(|it| it.1).sum();
        let quantile = |part: u64| {
            let wanted = (total * part).div_ceil(100);
            let mut sum = 0;
            let found = counts.iter().find(|(_, count)| {
                sum += count;
                sum >= wanted
            });
            let bound = found.and_then(|(bound, _)| *bound)?;
            u64::try_from(bound.as_micros()).ok()
        };
        (total > 0).then(|| Self { p50_us: quantile(50), p99_us: quantile(99) })
    }
}

/// The state file.
#[derive(Debug, Serialize)]
pub(super) struct Snapshots {
    written: u64,
    failed: u64,
    failing: bool,
    at_us: Option<u64>,
    keys: u64,
}

/// A node of the store.
#[derive(Debug, Serialize)]
pub(super) struct NodeFrame {
    node: String,
    connected: bool,
    /// Whether its circuit breaker is open.
    breaker_open: bool,
}

/// The health of the store, by local counters. `before`: the round trips up to the previous
/// frame.
pub(super) fn store(sources: &Sources, before: &mut RoundTrips) -> StoreFrame {
    match sources.decider.store_status() {
        StoreStatus::Local(usage) => StoreFrame::Memory {
            keys: usage.keys,
            bytes: usage.bytes,
            max_bytes: usage.max_bytes,
            table_full: usage.table_full,
            when_full: match sources.when_full {
                WhenFull::Deny => "deny",
                WhenFull::Allow => "allow",
            },
            snapshots: sources.has_state_file.then(|| snapshots(sources)),
        },
        StoreStatus::Remote(status) => {
            let latency = StoreLatency::between(before, &status.round_trips);
            *before = status.round_trips;
            let server = |NodeHealth { endpoint: node, connected, breaker_open }| NodeFrame {
                node,
                connected,
                breaker_open,
            };
            StoreFrame::Redis {
                on_error: sources.decider.defaults.on_error.as_str(),
                unavailable: status.unavailable,
                latency,
                servers: status.nodes.into_iter().map(server).collect(),
                counts: status.counters.iter().collect(),
            }
        }
    }
}

fn snapshots(sources: &Sources) -> Snapshots {
    let status = *sources.snapshots.lock();
    Snapshots {
        written: status.written,
        failed: status.failed,
        failing: status.failing,
        at_us: status.at.map(|at| at.as_micros()),
        keys: status.keys,
    }
}
