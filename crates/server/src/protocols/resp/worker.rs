//! State that the RESP connections of one worker share.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use super::{
    context::RespContext, deferred_replies::DeferredReplies, pool::BufferPool, repeat::RepeatCache,
};
use crate::{
    budgets::turn::Turns, net::worker::Port, policies::policy_cache::PolicyCache, stats::Stats,
};

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
