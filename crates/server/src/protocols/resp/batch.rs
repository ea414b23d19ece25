//! Batches of decisions on state in this process.
//!
//! Commands that are decided at the time of the batch are collected as they are read. All of them are decided and
//! answered, in order, before any other command runs and at the end of what was read.

use sluicegate_commands::{DecisionFormat, KeyOperation};
use sluicegate_core::{KeyedOperation, Source};
use sluicegate_resp::Writer;
use smallvec::SmallVec;

use super::{
    batch_entry::{BatchEntry, PendingDecision, counts},
    deferred_replies::StoreOperation,
    session::{Session, WORK},
};
use crate::{
    policies::policy_cache::{PolicyCache, PolicyId},
    stats::Cause,
    telemetry::record_decision,
};

/// Entries of a batch that is decided before more is read.
pub(super) const MAX_BATCH: usize = 128;
/// Entries that the store prefetches at a time.
const PREFETCHED: usize = 32;

/// Decisions to be made.
#[derive(Debug)]
pub(super) struct Batch<'a> {
    pub(super) entries: SmallVec<[BatchEntry<'a>; MAX_BATCH]>,
    /// Index of the first entry that may take long.
    first_heavy: Option<usize>,
}

impl<'a> Batch<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { entries: SmallVec::new(), first_heavy: None }
    }

    #[inline]
    pub(super) fn push(&mut self, entry: BatchEntry<'a>) {
        debug_assert!(self.first_heavy.is_none_or(|first| self.entries[first].policy.is_heavy()));
        if entry.policy.is_heavy() {
            self.first_heavy.get_or_insert(self.entries.len());
        }
        self.entries.push(entry);
    }

    /// Adds operations whose replies are one array.
    pub(super) fn push_array(&mut self, operations: &[KeyOperation<'a, PolicyId>]) {
        let mut begins_array = operations.len();
        for &KeyOperation { key, policy, operation } in operations {
            let (key, format) = (key.bytes, DecisionFormat::Sluicegate);
            self.push(BatchEntry { key, policy, operation, format, begins_array });
            begins_array = 0;
        }
    }

    /// Whether the batch is to be decided before another command is read.
    pub(super) fn is_full(&self) -> bool {
        self.first_heavy.is_some() || self.entries.len() >= MAX_BATCH
    }

    /// Decides all entries and appends the replies to `out`. If that takes longer than a turn, it defers the rest and
    /// ends the turn.
    #[inline]
    pub(super) fn decide(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        if !self.entries.is_empty() {
            self.decide_entries(session, out);
        }
    }

    fn decide_entries(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        let shared = session.shared;
        let stats = session.worker.stats();
        let watch = stats.sampler.active();
        session.worker.gathered.set(session.worker.gathered.get() + self.entries.len());
        // How long a heavy entry takes is unknown, so that the clock is read after it.
        let first_heavy = self.first_heavy.take();
        let work = match first_heavy {
            Some(_) => WORK,
            None => u32::try_from(self.entries.len()).unwrap_or(WORK),
        };
        session.add_work(work);
        let policies = session.worker.policies.borrow();
        if !shared.decider.is_local() {
            defer(&self.entries, &policies, session, out.len());
            return self.entries.clear();
        }
        let writer = &mut Writer::new(out, session.version);
        let entries = self.entries.as_slice();
        let light = first_heavy.unwrap_or(entries.len());
        // One long take is decided immediately; several, only while few connections do that.
        let must_wait = entries.len() > light + 1
            && session.worker.turns().are_many()
            && !session.turn.is_in_lane();
        // The span of a batch has the decision of a single command.
        let traced = shared.telemetry.is_some() && entries.len() == 1;
        let mut decided = 0;
        while decided < entries.len() {
            let end = if decided < light {
                light.min(decided + PREFETCHED)
            } else if must_wait || decided > light && shared.decider.is_late(session.now) {
                break;
            } else {
                decided + 1
            };
            let chunk = &entries[decided..end];
            let mut operations = SmallVec::<[KeyedOperation<'_>; PREFETCHED]>::new();
            for &BatchEntry { key, policy, operation, .. } in chunk {
                operations.push(KeyedOperation { key, policy: policies.get(policy), operation });
            }
            let mut replied = chunk.iter();
            shared.decider.decide_batch(&operations, session.now, |operation, decision| {
                let Some(entry) = replied.next() else { return };
                match decision {
                    Ok(decision) => {
                        let is_counted = counts(operation.operation);
                        if is_counted {
                            stats.decided(Source::Store, &decision);
                            shared.decider.note(
                                operation,
                                Source::Store,
                                &decision,
                                session.now,
                                None,
                            );
                        }
                        if let Some(watch) = watch.filter(|_| is_counted) {
                            let cause = Cause::policy(operation.policy.policy());
                            watch.decided(operation.key, &decision, cause);
                        }
                        if traced {
                            let cause = Cause::policy(operation.policy.policy());
                            record_decision(Source::Store, &decision, cause);
                        }
                        entry.reply(&decision, writer);
                    }
                    Err(error) => {
                        stats.errors.add();
                        entry.fail(&error.into(), writer);
                    }
                }
            });
            let rest = replied.len();
            debug_assert!(rest < chunk.len(), "a command of a batch has no reply");
            decided = end - rest;
            // The last one was on a key with many holds.
            if rest > 0 && shared.decider.is_late(session.now) {
                break;
            }
        }
        if decided < entries.len() {
            defer(&entries[decided..], &policies, session, out.len());
            session.end_turn();
        }
        self.entries.clear();
    }
}

/// Has `entries` decided after the batch; their replies belong at `offset`.
fn defer(entries: &[BatchEntry<'_>], policies: &PolicyCache, session: &Session<'_>, offset: usize) {
    let pending = entries.iter().map(|entry| PendingDecision::new(entry, policies));
    let operation = StoreOperation::Decide(pending.collect());
    session.defer(operation, offset);
}
