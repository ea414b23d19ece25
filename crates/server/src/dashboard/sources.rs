//! The state of the server that the dashboard reads.

use std::sync::Arc;

use sluicegate_memory::WhenFull;

use crate::{
    decide::Decider,
    key_display::KeyDisplay,
    net::clients::Clients,
    stats::{LatencyHistogram, SampledKeys, ServerStats},
    store::snapshots::SnapshotLog,
};

/// The state of the server that the dashboard reads.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) decider: Arc<Decider>,
    pub(crate) clients: Arc<Clients>,
    pub(crate) stats: Arc<ServerStats>,
    pub(crate) snapshots: Arc<SnapshotLog>,
    pub(crate) display: Arc<KeyDisplay>,
    /// The sampled keys.
    pub(crate) sampled: SampledKeys,
    /// Whether viewers may reset and block keys.
    pub(crate) has_actions: bool,
    /// The decision on new keys while the table is full.
    pub(crate) when_full: WhenFull,
    /// Whether there is a state file.
    pub(crate) has_state_file: bool,
}

impl Sources {
    /// The latency histogram of all workers.
    pub(super) fn latency(&self) -> LatencyHistogram {
        let mut latency = LatencyHistogram::default();
        self.stats.all().for_each(|stats| stats.sampler.add_latency(&mut latency));
        latency
    }
}
