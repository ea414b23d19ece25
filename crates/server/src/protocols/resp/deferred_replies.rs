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
/// Keys, and bytes while they are sent, of decisions that go to the store as one pipeline with one deadline. More have a turn,
/// and a deadline, for each such part.
const MAX_PIPELINE: usize = 512;
const MAX_PIPELINE_BYTES: usize = 1 << 20;
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

/// Bytes that operations need while they are sent, besides those until the reply.
const fn sent_bytes((keys, bytes): (usize, usize)) -> usize {
    keys * SENT_OPERATION_BYTES + bytes * KEY_COPIES_WHEN_SENT
}

impl DeferredReply {
    /// Whether `next` consists of decisions that can be sent with these.
    fn precedes(&self, next: &Self) -> bool {
        let (StoreOperation::Decide(before), StoreOperation::Decide(after)) =
            (&self.operation, &next.operation)
        else {
            return false;
        };
        // Takes from leases ask a few times in turn, and then all at once: in smaller parts, fewer ask.
        let leases = |it: &PendingDecision| it.entry.policy.settings().lease > 1;
        let (some, more) = (self.operation.size(), next.operation.size());
        let size = (some.0 + more.0, some.1 + more.1);
        (self.offset, self.version, self.now) == (next.offset, next.version, next.now)
            && size.0 <= MAX_PIPELINE
            && sent_bytes(size) <= MAX_PIPELINE_BYTES
            && !before.iter().chain(after).any(leases)
    }

    fn extend(&mut self, next: Self) {
        if let (StoreOperation::Decide(all), StoreOperation::Decide(next)) =
            (&mut self.operation, next.operation)
        {
            all.extend(next);
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
        match self.replies.last_mut() {
            Some(last) if last.precedes(&reply) => last.extend(reply),
            _ => self.replies.push(reply),
        }
        let last = self.replies.last().map_or(0, |it| sent_bytes(it.operation.size()));
        self.largest = self.largest.max(last);
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

#[cfg(test)]
mod tests {
    use sluicegate_commands::DecisionFormat;
    use sluicegate_core::{Operation, PreparedPolicy};

    use super::*;
    use crate::protocols::resp::batch_entry::DecisionEntry;

    fn decisions(count: usize, key: usize, lease: u32) -> StoreOperation {
        let policy = PreparedPolicy::new(&"gcra:1/1s".parse().unwrap()).lease(lease).unwrap();
        let one = || {
            let (key, policy) = (vec![0; key].into(), policy.clone());
            let (operation, format) = (Operation::Take(1), DecisionFormat::Sluicegate);
            let entry = DecisionEntry { key, policy, operation, format, begins_array: 0 };
            PendingDecision { entry, id: Box::default() }
        };
        StoreOperation::Decide((0..count).map(|_| one()).collect())
    }

    /// Each pipeline has a deadline of its own, and they follow each other.
    #[test]
    fn push_decisions_of_one_read_are_one_pipeline_within_bounds() {
        let read = || StoreOperation::Read(Box::default(), |_, _, _| {});
        let wide = MAX_PIPELINE_BYTES / KEY_COPIES_WHEN_SENT / 200;
        for (pushed, expected) in [
            (
                vec![(decisions(128, 9, 0), 0), (decisions(128, 9, 0), 0), (decisions(9, 9, 0), 0)],
                vec![265],
            ),
            (vec![(decisions(400, 9, 0), 0), (decisions(113, 9, 0), 0)], vec![400, 113]),
            (vec![(decisions(100, wide, 0), 0), (decisions(100, wide, 0), 0)], vec![100, 100]),
            (vec![(decisions(1, 9, 0), 0), (decisions(1, 9, 0), 7)], vec![1, 1]),
            (vec![(decisions(1, 9, 0), 0), (read(), 0), (decisions(1, 9, 0), 0)], vec![1, 1, 1]),
            (vec![(decisions(128, 9, 64), 0), (decisions(128, 9, 64), 0)], vec![128, 128]),
        ] {
            let mut deferred = DeferredReplies::default();
            for (operation, offset) in pushed {
                let (version, now) = (Version::default(), Timestamp::EPOCH);
                deferred.push(DeferredReply { offset, version, now, operation });
            }
            let sizes: Vec<_> = deferred.replies.iter().map(|it| it.operation.size().0).collect();
            assert_eq!(sizes, expected);
            let largest = deferred.replies.iter().map(|it| sent_bytes(it.operation.size())).max();
            assert_eq!(Some(deferred.largest), largest);
        }
    }
}
