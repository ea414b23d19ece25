//! State of a client's connection.

use std::sync::atomic::Ordering;

use sluicegate_core::Timestamp;
use sluicegate_resp::{Limits, Version};

use super::{
    deferred_replies::{DeferredReply, StoreOperation},
    worker::{RespContext, RespWorker},
};
use crate::{budgets::turn::Turn, net::clients::Client};

/// Work after which the clock is read, because the turn may be over. A decision is 1.
pub(super) const WORK: u32 = 32;
/// Work that says that the turn is over. No real work adds up to it.
const ENDED: u32 = u32::MAX;

/// Limits on what clients send. An argument may be twice as long as a key, so that a key that is a
/// little too long gets an error of its own.
pub(super) const LIMITS: Limits =
    Limits { max_arguments: 1024, max_bulk: 131_072, max_inline: 65_536, authenticated: true };

/// State of a client's connection.
pub(super) struct Session<'a> {
    pub(super) shared: &'a RespContext,
    pub(super) worker: &'a RespWorker,
    pub(super) client: &'a Client,
    pub(super) version: Version,
    pub(super) authenticated: bool,
    /// Time of the batch.
    pub(super) now: Timestamp,
    pub(super) turn: Turn<'a>,
    /// Whether a password was wrong since a reply was last delayed for that.
    pub(super) login_failed: bool,
}

impl<'a> Session<'a> {
    pub(super) fn new(worker: &'a RespWorker, client: &'a Client) -> Self {
        let shared = &*worker.shared;
        Self {
            shared,
            worker,
            client,
            version: Version::Resp2,
            authenticated: shared.password.is_none(),
            now: client.since,
            turn: Turn::new(worker.turns()),
            login_failed: false,
        }
    }

    /// The same session for operations at the time `now`.
    pub(super) fn at(&self, now: Timestamp) -> Self {
        Session { now, turn: Turn::new(self.worker.turns()), ..*self }
    }

    /// Begins a batch: its operations are applied at this time.
    pub(super) fn begin_batch(&mut self) {
        self.now = self.shared.decider.now();
        self.turn.begin(self.now);
    }

    /// Whether the connection has done enough work for long enough to let others go first.
    #[inline]
    pub(super) fn is_turn_over(&self) -> bool {
        if self.worker.work.get() < WORK {
            return false;
        }
        self.worker.work.replace(0) == ENDED || self.turn.is_over(self.shared.decider.now())
    }

    /// Ends the turn with this batch, because a part of it is deferred: nothing else goes before that part.
    pub(super) fn end_turn(&self) {
        self.worker.work.set(ENDED);
    }

    /// Ends a batch: another connection may be served next, whose turn has not ended.
    pub(super) fn end_batch(&self) {
        if self.worker.work.get() == ENDED {
            self.worker.work.set(0);
        }
    }

    /// Counts work. A decision is 1.
    #[inline]
    pub(super) fn add_work(&self, work: u32) {
        self.worker.work.set(self.worker.work.get().saturating_add(work));
    }

    /// Counts a call of the command at `index` of the command table.
    #[inline]
    pub(super) fn count_call(&self, index: usize) {
        self.worker.stats().called(index);
        self.client.command.store(index, Ordering::Relaxed);
    }

    /// Defers `operation`, whose reply belongs at `offset`.
    pub(super) fn defer(&self, operation: StoreOperation, offset: usize) {
        let (version, now) = (self.version, self.now);
        let reply = DeferredReply { offset, version, now, operation };
        self.worker.deferred.borrow_mut().push(reply);
    }

    /// Limits on what the client sends.
    pub(super) const fn limits(&self) -> Limits {
        if self.authenticated { LIMITS } else { Limits::UNAUTHENTICATED }
    }
}
