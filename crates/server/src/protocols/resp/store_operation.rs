//! Operations on the store other than the batches of decisions on state in this process.
//!
//! With state in this process, an operation is applied immediately, except decisions that take longer than a turn:
//! those that are left end the batch and are deferred. With any other store, an operation is deferred until
//! everything that was read has been parsed. Deferred operations are applied one after the other, and each reply is
//! inserted where it belongs among those of the batch.

use futures_util::FutureExt;
use sluicegate_commands::{EntryReply, RepeatedKeys, write_all};
use sluicegate_core::{Answer, Entry, KeyedOperation, Request, StoreError, Timestamp};
use sluicegate_resp::Writer;

use super::{
    batch_entry::{PendingDecision, RespReply, counts},
    deferred_replies::{DeferredReplies, DeferredReply, PendingAll, PendingCount, StoreOperation},
    session::{Session, WORK},
    worker::RespWorker,
};
use crate::{
    budgets::turn::Turn, decide::Decider, denial_log::Waited, stats::Cause, store::error_reply,
    telemetry::record_decision,
};

/// Applies all deferred operations, and merges their replies with those that are `known` into `out`.
pub(super) async fn answer_deferred(
    deferred: DeferredReplies,
    worker: &RespWorker,
    known: &[u8],
    out: &mut Vec<u8>,
) {
    debug_assert!(
        deferred.replies.last().is_none_or(|last| last.offset <= known.len()),
        "a deferred reply belongs behind the known ones"
    );
    let mut copied = 0;
    for DeferredReply { offset, version, now, operation } in deferred.replies {
        out.extend_from_slice(&known[copied..offset]);
        copied = offset;
        operation.answer(worker, now, &mut Writer::new(out, version)).await;
    }
    out.extend_from_slice(&known[copied..]);
}

impl Session<'_> {
    /// Applies `operation` and appends its reply to `out`, or defers it.
    pub(super) fn apply(&self, mut operation: StoreOperation, out: &mut Vec<u8>) {
        self.add_work(operation.work());
        let decider = &self.shared.decider;
        if !decider.is_local() {
            return self.defer(operation, out.len());
        }
        if let StoreOperation::Count(pending) = &mut operation {
            let is_late = || self.turn.is_over(decider.now());
            while let Some(Ok(true)) = pending.count_next(decider, self.now).now_or_never() {
                if pending.ends_group() && is_late() {
                    self.defer(operation, out.len());
                    return self.end_turn();
                }
            }
        }
        let writer = &mut Writer::new(out, self.version);
        let answered = operation.answer(self.worker, self.now, writer);
        answered.now_or_never().expect("a local store answers now");
    }
}

impl StoreOperation {
    /// Work until the clock is read; see [`Session::add_work`].
    fn work(&self) -> u32 {
        match self {
            Self::All(_) => WORK,
            _ => u32::try_from(self.size().0).unwrap_or(u32::MAX),
        }
    }

    async fn answer(self, worker: &RespWorker, now: Timestamp, writer: &mut Writer<'_>) {
        let decider = &*worker.shared.decider;
        let done = match self {
            Self::Decide(pending) => return decide(&pending, worker, now, writer).await,
            Self::Count(pending) => count(pending, worker, now, writer).await,
            Self::All(pending) => apply_all(&pending, worker, now, writer).await,
            Self::Read(key, reply) => read(&key, reply, decider, now, writer).await,
        };
        if let Err(error) = done {
            worker.stats().errors.add();
            writer.error(error_reply(&error));
        }
    }
}

async fn decide(
    pending: &[PendingDecision],
    worker: &RespWorker,
    now: Timestamp,
    writer: &mut Writer<'_>,
) {
    let (decider, stats) = (&*worker.shared.decider, worker.stats());
    let operations: Vec<_> = pending.iter().map(PendingDecision::keyed).collect();
    let answers = decider.decide_many(worker.turns(), &operations, now).await;
    debug_assert_eq!(answers.len(), pending.len(), "one answer for each operation");
    for ((answer, it), PendingDecision { entry: pending, .. }) in
        answers.into_iter().zip(&operations).zip(pending)
    {
        match answer {
            Ok(answer) => {
                let cause = Cause::policy(pending.policy.policy());
                if counts(pending.operation) {
                    stats.record(&pending.key, answer.source, &answer.decision, cause);
                    decider.note(it, answer.source, &answer.decision, now, None);
                }
                if worker.shared.telemetry.is_some() && operations.len() == 1 {
                    record_decision(answer.source, &answer.decision, cause);
                }
                pending.reply(&answer.decision, writer);
            }
            Err(error) => {
                stats.errors.add();
                pending.fail(&error, writer);
            }
        }
    }
}

async fn apply_all(
    pending: &PendingAll,
    worker: &RespWorker,
    now: Timestamp,
    writer: &mut Writer<'_>,
) -> Result<(), StoreError> {
    let operations = pending.keyed();
    let answer = worker.shared.decider.decide(Request::all(&operations)?, now).await?;
    answer_all(&operations, (&answer, &pending.repeated), worker, (now, None), writer);
    Ok(())
}

/// Counts what was decided about several keys, at `now`, after the request had `waited`, and replies.
pub(super) fn answer_all(
    operations: &[KeyedOperation<'_>],
    (answer, repeated): (&Answer, &RepeatedKeys),
    worker: &RespWorker,
    (now, waited): (Timestamp, Option<Waited>),
    writer: &mut Writer<'_>,
) {
    let stats = worker.stats();
    debug_assert!(answer.each().len() <= operations.len(), "more decisions than keys");
    for (it, decision) in operations.iter().zip(answer.each()) {
        stats.decided(answer.source, decision);
        stats.sampler.note(it.key, decision, Cause::policy(it.policy.policy()));
    }
    worker.shared.decider.note_all(operations, answer, now, waited);
    write_all(answer, repeated, &mut RespReply(writer));
}

async fn count(
    mut pending: PendingCount,
    worker: &RespWorker,
    now: Timestamp,
    writer: &mut Writer<'_>,
) -> Result<(), StoreError> {
    let (decider, turns) = (&*worker.shared.decider, worker.turns());
    let (mut turn, mut start) = (Turn::new(turns), decider.now());
    while pending.count_next(decider, now).await? {
        if pending.ends_group() && decider.is_local() {
            start = decider.next_turn(turns, &mut turn, start).await;
        }
    }
    writer.integer(pending.count);
    Ok(())
}

async fn read(
    key: &[u8],
    reply: EntryReply,
    decider: &Decider,
    now: Timestamp,
    writer: &mut Writer<'_>,
) -> Result<(), StoreError> {
    let read = |entry: &Entry, now| reply(Some(entry), now, &mut RespReply(writer));
    if decider.read(key, now, read).await?.is_none() {
        reply(None, now, &mut RespReply(writer));
    }
    Ok(())
}
