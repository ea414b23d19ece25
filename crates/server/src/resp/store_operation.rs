//! Operations on the store other than the batches of decisions on state in this process.
//!
//! With state in this process, an operation is applied immediately, except decisions that take longer than a turn:
//! those that are left end the batch and are deferred. With any other store, an operation is deferred until
//! everything that was read has been parsed. Deferred operations are applied one after the other, and each reply is
//! inserted where it belongs among those of the batch.

use futures_util::FutureExt;
use sluicegate_commands::{DecisionFormat, EntryReply, ReplyWriter};
use sluicegate_core::{Entry, Operation, Timestamp};
use sluicegate_resp::{Version, Writer};

use super::session::Session;
use crate::{
    buffers::BufferBudget,
    dashboard::Cause,
    face::Face,
    home::{Home, HomeRule, Question, Trouble},
    shared::Shared,
    worker::Worker,
};

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
    /// Resets the keys. The reply is the number of keys that had state.
    Reset(Vec<Box<[u8]>>),
    /// The reply is the number of keys that have state.
    CountExisting(Vec<Box<[u8]>>),
    /// Reads the state of the key, and replies.
    Read(Box<[u8]>, EntryReply),
}

/// A decision to be made.
#[derive(Debug)]
pub(super) struct PendingDecision {
    pub(super) key: Box<[u8]>,
    pub(super) policy: HomeRule,
    pub(super) operation: Operation,
    pub(super) format: DecisionFormat,
    /// Length of the array whose first element is the reply; 0 for none.
    pub(super) begins_array: usize,
}

/// Operations that were deferred.
#[derive(Debug, Default)]
pub(crate) struct DeferredReplies {
    replies: Vec<DeferredReply>,
    keys: usize,
    /// Bytes of all operations, and those that the largest needs besides while it is sent.
    bytes: usize,
    largest: usize,
}

#[derive(Debug)]
struct DeferredReply {
    /// Where the reply belongs among those that are known.
    offset: usize,
    version: Version,
    now: Timestamp,
    operation: StoreOperation,
}

impl DeferredReplies {
    /// Defers `operation`, whose reply belongs at `offset`.
    pub(super) fn push(&mut self, session: &Session<'_>, operation: StoreOperation, offset: usize) {
        let (keys, bytes) = match &operation {
            StoreOperation::Decide(pending) => {
                (pending.len(), pending.iter().map(|it| it.key.len()).sum())
            }
            StoreOperation::Reset(keys) | StoreOperation::CountExisting(keys) => {
                (keys.len(), keys.iter().map(|it| it.len()).sum())
            }
            StoreOperation::Read(key, _) => (1, key.len()),
        };
        self.keys += keys;
        self.bytes += keys * OPERATION_BYTES + bytes;
        self.largest = self.largest.max(keys * SENT_OPERATION_BYTES + bytes * KEY_COPIES_WHEN_SENT);
        let (version, now) = (session.version, session.now);
        self.replies.push(DeferredReply { offset, version, now, operation });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether there are enough operations to apply them.
    pub(super) fn is_full(&self, buffers: &BufferBudget) -> bool {
        self.keys >= MAX_KEYS
            || self.keys >= MAX_KEYS_WHEN_SCARCE && buffers.used() > buffers.max() / 2
    }

    /// Bytes until all replies are there.
    pub(super) const fn size(&self) -> usize {
        self.bytes + self.largest
    }

    /// Where the first reply belongs.
    pub(super) fn start(&self) -> usize {
        self.replies.first().map_or(0, |reply| reply.offset)
    }

    /// Applies all operations, and merges their replies with those that are `known` into `out`.
    pub(super) async fn answer(self, worker: &Worker, known: &[u8], out: &mut Vec<u8>) {
        let mut copied = 0;
        for DeferredReply { offset, version, now, operation } in self.replies {
            out.extend_from_slice(&known[copied..offset]);
            copied = offset;
            operation.answer(worker, now, &mut Writer::new(out, version)).await;
        }
        out.extend_from_slice(&known[copied..]);
    }
}

impl Session<'_> {
    /// Applies `operation` and appends its reply to `out`, or defers it.
    pub(super) fn apply(&self, operation: StoreOperation, out: &mut Vec<u8>) {
        self.add_work(operation.work());
        match self.shared.home {
            Home::Memory(_) => {
                let writer = &mut Writer::new(out, self.version);
                let answered = operation.answer(self.worker, self.now, writer);
                answered.now_or_never().expect("state in this process is not waited for");
            }
            Home::Redis { .. } => {
                self.worker.deferred.borrow_mut().push(self, operation, out.len());
            }
        }
    }
}

impl StoreOperation {
    /// Work of the operation on state in this process. A decision is 1.
    fn work(&self) -> u32 {
        let count = match self {
            Self::Decide(pending) => pending.len(),
            Self::Reset(keys) | Self::CountExisting(keys) => keys.len(),
            Self::Read(..) => 1,
        };
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    async fn answer(self, worker: &Worker, now: Timestamp, writer: &mut Writer<'_>) {
        let shared = &*worker.shared;
        let done = match self {
            Self::Decide(pending) => return decide(&pending, worker, now, writer).await,
            Self::Reset(keys) => reset(&keys, shared, now).await.map(|count| writer.integer(count)),
            Self::CountExisting(keys) => {
                count_existing(&keys, &shared.home, now).await.map(|count| writer.integer(count))
            }
            Self::Read(key, reply) => read(&key, reply, &shared.home, now, writer).await,
        };
        if let Err(trouble) = done {
            worker.stats().errors.add();
            writer.error(trouble.to_string());
        }
    }
}

async fn decide(
    pending: &[PendingDecision],
    worker: &Worker,
    now: Timestamp,
    writer: &mut Writer<'_>,
) {
    let (shared, stats) = (&*worker.shared, worker.stats());
    let questions = pending.iter().map(|PendingDecision { key, policy, operation, .. }| Question {
        key,
        rule: policy,
        operation: *operation,
    });
    let questions: Vec<_> = questions.collect();
    let answers = shared.decide_many(&worker.turns, &questions, now).await;
    for (answer, pending) in answers.into_iter().zip(pending) {
        if pending.begins_array > 0 {
            writer.array(pending.begins_array);
        }
        match answer {
            Ok(answer) => {
                let policy = pending.policy.policy();
                stats.decided(Face::Resp, answer.source, &answer.decision);
                stats.watch.note(&pending.key, &answer.decision, Cause::policy(policy));
                pending.format.write(&answer.decision, |integers| writer.integers(integers));
                shared.lines.asked(&pending.key, policy, pending.operation);
            }
            Err(trouble) => {
                stats.errors.add();
                writer.error(trouble.to_string());
            }
        }
    }
}

async fn reset(keys: &[Box<[u8]>], shared: &Shared, now: Timestamp) -> Result<i64, Trouble> {
    let mut count = 0;
    for key in keys {
        count += i64::from(shared.home.reset(key, now).await?);
        shared.lines.changed(key);
    }
    Ok(count)
}

async fn count_existing(keys: &[Box<[u8]>], home: &Home, now: Timestamp) -> Result<i64, Trouble> {
    let mut count = 0;
    for key in keys {
        count += i64::from(home.read(key, now, |_, _| ()).await?.is_some());
    }
    Ok(count)
}

async fn read(
    key: &[u8],
    reply: EntryReply,
    home: &Home,
    now: Timestamp,
    writer: &mut Writer<'_>,
) -> Result<(), Trouble> {
    let read = |entry: &Entry, now| reply(Some(entry), now, &mut RespReply(writer));
    if home.read(key, now, read).await?.is_none() {
        reply(None, now, &mut RespReply(writer));
    }
    Ok(())
}

/// Writes a reply as RESP.
struct RespReply<'w, 'o>(&'w mut Writer<'o>);

impl ReplyWriter for RespReply<'_, '_> {
    fn integer(&mut self, value: i64) {
        self.0.integer(value);
    }

    fn string(&mut self, bytes: &[u8]) {
        self.0.bulk(bytes);
    }

    fn null(&mut self) {
        self.0.null();
    }

    fn array(&mut self, length: usize) {
        self.0.array(length);
    }

    fn map(&mut self, length: usize) {
        self.0.map(length);
    }
}
