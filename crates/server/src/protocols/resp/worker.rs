//! State that the RESP connections of one worker share.

use std::{
    cell::{Cell, RefCell},
    sync::Arc,
};

use tokio::sync::watch;

use super::{
    context::RespContext, deferred_replies::DeferredReplies, pool::BufferPool, repeat::RepeatCache,
};
use crate::{
    budgets::turn::Turns,
    net::{
        clients::Client,
        stream::{Socket, Stream},
        worker::Port,
    },
    policies::policy_cache::PolicyCache,
    stats::Stats,
};

/// State that the connections of one worker share.
#[derive(Debug)]
pub(super) struct RespWorker {
    pub(super) shared: Arc<RespContext>,
    port: Port,
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

    /// What this worker counts for RESP.
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

    /// The same, to wait for.
    pub(super) fn stopping(&self) -> watch::Receiver<bool> {
        self.port.worker.stop.subscribe()
    }

    /// The connection of a client, after the TLS handshake. `None`: that failed, or the server stops.
    pub(super) async fn open(
        &self,
        socket: Socket,
        client: &Client,
        stopping: &mut watch::Receiver<bool>,
    ) -> Option<Stream> {
        self.port.open(socket, client, stopping).await
    }
}
