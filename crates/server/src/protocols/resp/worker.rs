//! The state that connections of RESP share, on the server and on one worker.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    sync::Arc,
};

use sluicegate_memory::WhenFull;

use super::{batch_entry::RepeatCache, deferred_replies::DeferredReplies, pool::BufferPool};
use crate::{
    TimeoutConfig,
    budgets::{buffers::BufferBudget, turn::Turns},
    decide::Decider,
    net::{clients::Clients, incidents::Incidents, secret::Secret, worker::Port},
    policies::policy_cache::PolicyCache,
    stats::{KeyFilter, KeyPage, ServerStats, Stats},
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

/// State that the connections of one worker share.
pub(super) struct RespWorker {
    pub(super) shared: Arc<RespContext>,
    pub(super) port: Port,
    /// The policies that commands name, parsed.
    pub(super) policies: RefCell<PolicyCache>,
    /// The last command.
    pub(super) repeats: RefCell<RepeatCache>,
    /// Deferred operations of the batch that is being read.
    pub(super) deferred: RefCell<DeferredReplies>,
    /// Read and reply buffers that the connections share.
    pub(super) buffers: BufferPool,
    /// Work since the clock was last read. A decision is 1.
    pub(super) work: Cell<u32>,
    /// Decisions of the batch that is being read.
    pub(super) gathered: Cell<usize>,
}

impl RespWorker {
    pub(super) fn new(shared: Arc<RespContext>, port: Port) -> Self {
        Self {
            shared,
            port,
            policies: RefCell::default(),
            repeats: RefCell::default(),
            deferred: RefCell::default(),
            buffers: BufferPool::default(),
            work: Cell::new(0),
            gathered: Cell::new(0),
        }
    }

    /// The counters of this worker for RESP.
    #[inline]
    pub(super) fn stats(&self) -> &Stats {
        &self.port.stats
    }

    /// How long clients occupy this worker.
    #[inline]
    pub(super) fn turns(&self) -> &Turns {
        &self.port.worker.turns
    }

    /// Whether the server is to stop.
    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.port.worker.stopping.get()
    }
}
