//! Operations on the store that wait until everything that was read has been parsed.

use sluicegate_commands::{EntryReply, RepeatedKeys};
use sluicegate_core::{KeyedOperation, StoreError, Timestamp};
use sluicegate_resp::Version;

use super::batch_entry::PendingDecision;
use crate::{budgets::buffers::BufferBudget, decide::Decider};

/// Keys of one command that are counted without a look at the clock.
const GROUP: usize = 16;
/// Keys in deferred operations from which on these are applied before more is read.
const MAX_KEYS: usize = 1024;
/// The same while memory is scarce.
const MAX_KEYS_WHEN_SCARCE: usize = 128;
/// Approximate bytes of an operation besides its key: until the reply, and while it is sent, when its key exists three
/// times more, in a command and in a pipeline of them.
const OPERATION_BYTES: usize = 192;
const SENT_OPERATION_BYTES: usize = 768;
const KEY_COPIES_WHEN_SENT: usize = 3;

/// An operation on the store, with its reply.
#[derive(Debug)]
pub(super) enum StoreOperation {
    /// Independent decisions.
    Decide(Vec<PendingDecision>),
    /// Counts the keys that have state, and replies.
    Count(PendingCount),
    /// Takes from several keys, or holds, and replies with all decisions.
    All(PendingAll),
    /// Reads the state of the key, and replies.
    Read(Box<[u8]>, EntryReply),
}

/// Keys to be counted that have state.
#[derive(Debug)]
pub(super) struct PendingCount {
    keys: Vec<Box<[u8]>>,
    /// Whether they are reset.
    resets: bool,
    /// The first of them that are counted, and how many of these have state.
    counted: usize,
    pub(super) count: i64,
}

impl PendingCount {
    pub(super) fn new(keys: &[&[u8]], resets: bool) -> Self {
        let keys = keys.iter().map(|&key| key.into()).collect();
        Self { keys, resets, counted: 0, count: 0 }
    }

    /// Whether a group of keys has been counted, after which others may go first. To yield takes longer than to look at a
    /// key.
    pub(super) const fn ends_group(&self) -> bool {
        self.counted.is_multiple_of(GROUP)
    }

    /// Counts one key. `false`: all are counted.
    pub(super) async fn count_next(
        &mut self,
        decider: &Decider,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        if self.counted == 0 {
            // All before any is reset. An empty key may have been stored by an earlier version.
            let mut keys = self.keys.iter().filter(|key| !key.is_empty());
            keys.try_for_each(|key| decider.check_key(key))?;
        }
        let Some(key) = self.keys.get(self.counted) else { return Ok(false) };
        let has_state = match self.resets {
            true => decider.reset(key, now).await?,
            false => decider.read(key, now, |_, _| ()).await?.is_some(),
        };
        (self.counted, self.count) = (self.counted + 1, self.count + i64::from(has_state));
        debug_assert!(self.count.unsigned_abs() <= self.counted as u64, "a key counts twice");
        Ok(true)
    }
}

/// Operations on several keys, all or none.
#[derive(Debug)]
pub(super) struct PendingAll {
    pub(super) operations: Vec<PendingDecision>,
    pub(super) repeated: RepeatedKeys,
}

impl PendingAll {
    /// The operations, for the store.
    pub(super) fn keyed(&self) -> Vec<KeyedOperation<'_>> {
        self.operations.iter().map(PendingDecision::keyed).collect()
    }
}

/// Operations that were deferred.
#[derive(Debug, Default)]
pub(super) struct DeferredReplies {
    pub(super) replies: Vec<DeferredReply>,
    keys: usize,
    /// Bytes of all operations, and those that the largest needs besides while it is sent.
    bytes: usize,
    largest: usize,
}

/// A reply to be made.
#[derive(Debug)]
pub(super) struct DeferredReply {
    /// Where the reply belongs among those that are known.
    pub(super) offset: usize,
    pub(super) version: Version,
    /// Time of the operation.
    pub(super) now: Timestamp,
    pub(super) operation: StoreOperation,
}

impl StoreOperation {
    /// The number of keys, and the sum of their bytes.
    pub(super) fn size(&self) -> (usize, usize) {
        match self {
            Self::Decide(pending) | Self::All(PendingAll { operations: pending, .. }) => {
                let bytes = pending.iter().map(|it| it.entry.key.len() + it.id.len());
                (pending.len(), bytes.sum())
            }
            Self::Count(PendingCount { keys, .. }) => {
                (keys.len(), keys.iter().map(|it| it.len()).sum())
            }
            Self::Read(key, _) => (1, key.len()),
        }
    }
}

impl DeferredReplies {
    /// Defers an operation.
    pub(super) fn push(&mut self, reply: DeferredReply) {
        debug_assert!(
            self.replies.last().is_none_or(|last| last.offset <= reply.offset),
            "a reply belongs before that of an earlier command"
        );
        let (keys, bytes) = reply.operation.size();
        self.keys += keys;
        self.bytes += keys * OPERATION_BYTES + bytes;
        self.largest = self.largest.max(keys * SENT_OPERATION_BYTES + bytes * KEY_COPIES_WHEN_SENT);
        self.replies.push(reply);
    }

    /// Whether there are enough operations to apply them.
    pub(super) fn is_full(&self, buffers: &BufferBudget) -> bool {
        self.keys >= MAX_KEYS
            || self.keys >= MAX_KEYS_WHEN_SCARCE && buffers.used() > buffers.max / 2
    }

    /// Bytes until all replies are there.
    pub(super) fn size(&self) -> usize {
        #[cfg(debug_assertions)]
        {
            let sizes = self.replies.iter().map(|it| it.operation.size());
            let (keys, bytes) = sizes.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            assert_eq!(keys, self.keys, "the keys are those of all operations");
            assert_eq!(keys * OPERATION_BYTES + bytes, self.bytes, "bytes of all operations");
        }
        self.bytes + self.largest
    }
}
