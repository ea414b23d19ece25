//! The parts of the server that commands use.

use std::{net::SocketAddr, sync::Arc};

use sluicegate_memory::WhenFull;

use crate::{
    TimeoutConfig,
    budgets::buffers::BufferBudget,
    decide::Decider,
    net::{clients::Clients, incidents::Incidents, secret::Secret},
    stats::{KeyFilter, KeyPage, ServerStats},
    store::snapshots::SnapshotLog,
    telemetry::Telemetry,
};

/// The parts of the server that commands use.
pub(crate) struct RespContext {
    pub(crate) decider: Arc<Decider>,
    pub(crate) clients: Arc<Clients>,
    /// Incidents with hostile clients.
    pub(crate) incidents: Incidents,
    /// Bytes that may be buffered for all clients together.
    pub(crate) buffers: Arc<BufferBudget>,
    pub(crate) stats: Arc<ServerStats>,
    pub(crate) snapshots: Arc<SnapshotLog>,
    /// Records spans, if it is to.
    pub(crate) telemetry: Option<Telemetry>,
    pub(crate) list_keys: ListKeys,
    pub(crate) timeouts: TimeoutConfig,
    pub(crate) when_full: WhenFull,
    /// Whether there is a state file.
    pub(crate) has_state_file: bool,
    /// Whether commands may set the time.
    pub(crate) test_clock: bool,
    /// Address of the RESP listener.
    pub(crate) address: SocketAddr,
    /// The secret that clients must give.
    pub(crate) password: Option<Secret>,
}

/// Lists sampled keys by cursor, count and filter. An error is a whole error reply.
pub(crate) type ListKeys =
    Box<dyn Fn(u64, usize, KeyFilter<'_>) -> Result<KeyPage, String> + Send + Sync>;

impl RespContext {
    /// Whether `password` is the one. The time that it takes does not depend on how much is right.
    pub(super) fn is_password(&self, password: &[u8]) -> bool {
        self.password.as_ref().is_none_or(|expected| expected.matches(password))
    }
}
