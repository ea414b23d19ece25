//! What is asked of the store besides the batches of decisions on state in this process.
//!
//! Where the state is here, a job is done at once, but for decisions that take longer than a turn: what is
//! left of them ends the batch and is put off. Where it is elsewhere, a job is put off until all that a
//! read brought has been looked at. What was put off is done one after the other, and each reply is put
//! where it belongs among those that were known at once.

use std::time::Duration;

use futures_util::FutureExt;
use sluicegate_commands::Description;
use sluicegate_core::{Entry, KeyedOperation, Operation, PreparedPolicy, StoreError, Timestamp};
use sluicegate_resp::{Version, Writer};

use super::{
    batch::Reply,
    context::RespContext,
    session::{Session, WORK},
    worker::RespWorker,
};
use crate::{budgets::buffers::BufferBudget, decide::Decider, stats::Cause, store::error_reply};

/// When so many questions were put off, they are asked before more is read; and so many where memory is scarce.
const MOST: usize = 1024;
const FEW: usize = 128;
/// What a question takes up, about, besides its key: until all are answered, and while it is asked, when its key is
/// there thrice more, in a command and in a pipeline of them.
const QUESTION: usize = 192;
const ASKED: usize = 768;
const KEYS_ASKED: usize = 3;

/// Something to ask the store.
#[derive(Debug)]
pub(super) enum Job {
    /// Decisions, each for itself.
    Decide(Vec<Asked>),
    /// `SG.RESET key`.
    Reset(Box<[u8]>),
    /// `SG.INFO key`.
    Info(Box<[u8]>),
    /// `DEL key ...`.
    Delete(Vec<Box<[u8]>>),
    /// `EXISTS key ...`.
    Exists(Vec<Box<[u8]>>),
    /// `TTL key` and `PTTL key`: in units of so many microseconds.
    TimeToLive(Box<[u8]>, u128),
}

/// A decision to be made.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) key: Box<[u8]>,
    pub(super) rule: PreparedPolicy,
    pub(super) operation: Operation,
    pub(super) reply: Reply,
}

/// Jobs that were put off.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    parts: Vec<Part>,
    questions: usize,
    /// Bytes that all of it takes up, and that the largest part does besides while it is asked.
    bytes: usize,
    largest: usize,
}

#[derive(Debug)]
struct Part {
    /// Where its reply belongs, in what is to be sent.
    place: usize,
    version: Version,
    now: Timestamp,
    job: Job,
}

impl Deferred {
    pub(super) fn push(&mut self, session: &Session<'_>, job: Job, place: usize) {
        let (questions, keys) = match &job {
            Job::Decide(asked) => (asked.len(), asked.iter().map(|it| it.key.len()).sum()),
            Job::Delete(keys) | Job::Exists(keys) => {
                (keys.len(), keys.iter().map(|it| it.len()).sum())
            }
            Job::Reset(key) | Job::Info(key) | Job::TimeToLive(key, _) => (1, key.len()),
        };
        self.questions += questions;
        self.bytes += questions * QUESTION + keys;
        self.largest = self.largest.max(questions * ASKED + keys * KEYS_ASKED);
        self.parts.push(Part { place, version: session.version, now: session.now, job });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Whether these are enough to be asked.
    pub(super) fn is_full(&self, buffers: &BufferBudget) -> bool {
        self.questions >= MOST || self.questions >= FEW && buffers.used() > buffers.max() / 2
    }

    /// The bytes that it takes up until it is answered.
    pub(super) const fn size(&self) -> usize {
        self.bytes + self.largest
    }

    /// Where the first reply belongs.
    pub(super) fn start(&self) -> usize {
        self.parts.first().map_or(0, |part| part.place)
    }

    /// Does all of it, and puts the replies into `out` among those that are `known`.
    pub(super) async fn answer(self, worker: &RespWorker, known: &[u8], out: &mut Vec<u8>) {
        let mut copied = 0;
        for Part { place, version, now, job } in self.parts {
            out.extend_from_slice(&known[copied..place]);
            copied = place;
            job.answer(worker, now, &mut Writer::new(out, version)).await;
        }
        out.extend_from_slice(&known[copied..]);
    }
}

impl Session<'_> {
    /// Does `job`, now or when all has been read.
    pub(super) fn job(&self, job: Job, out: &mut Vec<u8>) {
        self.add_work(job.work());
        if !self.shared.decider.is_local() {
            return self.worker.deferred.borrow_mut().push(self, job, out.len());
        }
        let writer = &mut Writer::new(out, self.version);
        let done = job.answer(self.worker, self.now, writer);
        done.now_or_never().expect("a local store answers now");
    }
}

impl Job {
    /// How much work it is to do it here, where a decision is 1.
    fn work(&self) -> u32 {
        let keys = |keys: &[Box<[u8]>]| u32::try_from(keys.len()).unwrap_or(u32::MAX);
        match self {
            Self::Decide(asked) => u32::try_from(asked.len()).unwrap_or(u32::MAX),
            Self::Reset(_) | Self::TimeToLive(..) => 1,
            Self::Delete(names) | Self::Exists(names) => keys(names),
            // Looks at every event of a log.
            Self::Info(_) => WORK,
        }
    }

    async fn answer(self, worker: &RespWorker, now: Timestamp, writer: &mut Writer<'_>) {
        let shared = &*worker.shared;
        let (decider, lines) = (&*shared.decider, &shared.decider.queues);
        let done = match self {
            Self::Decide(asked) => return decide(&asked, worker, now, writer).await,
            Self::Reset(key) => decider.reset(&key, now).await.map(|there| {
                lines.changed(&key);
                writer.integer(there.into());
            }),
            Self::Info(key) => {
                decider.read(&key, now, Description::of).await.map(|found| match found.flatten() {
                    Some(description) => describe(&description, writer),
                    None => writer.null(),
                })
            }
            Self::Delete(keys) => delete(&keys, shared, now).await.map(|it| writer.integer(it)),
            Self::Exists(keys) => exists(&keys, decider, now).await.map(|it| writer.integer(it)),
            Self::TimeToLive(key, unit) => lifetime(&key, decider, now).await.map(|left| {
                let left = left.as_micros().div_ceil(unit);
                writer.integer(if left == 0 {
                    -2
                } else {
                    i64::try_from(left).unwrap_or(i64::MAX)
                });
            }),
        };
        if let Err(error) = done {
            worker.stats().errors.add();
            writer.error(error_reply(&error));
        }
    }
}

async fn decide(asked: &[Asked], worker: &RespWorker, now: Timestamp, writer: &mut Writer<'_>) {
    let (shared, stats) = (&*worker.shared, worker.stats());
    let questions = asked.iter().map(|Asked { key, rule, operation, .. }| KeyedOperation {
        key,
        policy: rule,
        operation: *operation,
    });
    let questions: Vec<_> = questions.collect();
    for (answer, asked) in
        shared.decider.decide_many(worker.turns(), &questions, now).await.into_iter().zip(asked)
    {
        match answer {
            Ok(answer) => {
                stats.decided(answer.source, &answer.decision);
                let cause = Cause::policy(asked.rule.policy());
                stats.sampler.note(&asked.key, &answer.decision, cause);
                asked.reply.write(&answer.decision, writer);
                shared.decider.queues.asked(&asked.key, asked.rule.policy(), asked.operation);
            }
            Err(error) => {
                stats.errors.add();
                if let Reply::First(count) = asked.reply {
                    writer.array(count);
                }
                writer.error(error_reply(&error));
            }
        }
    }
}

async fn delete(
    keys: &[Box<[u8]>],
    shared: &RespContext,
    now: Timestamp,
) -> Result<i64, StoreError> {
    let mut deleted = 0;
    for key in keys {
        deleted += i64::from(shared.decider.reset(key, now).await?);
        shared.decider.queues.changed(key);
    }
    Ok(deleted)
}

async fn exists(keys: &[Box<[u8]>], decider: &Decider, now: Timestamp) -> Result<i64, StoreError> {
    let mut there = 0;
    for key in keys {
        there += i64::from(!lifetime(key, decider, now).await?.is_zero());
    }
    Ok(there)
}

/// How long the key is still kept; zero if it is not.
async fn lifetime(key: &[u8], decider: &Decider, now: Timestamp) -> Result<Duration, StoreError> {
    Ok(decider.read(key, now, Entry::lifetime).await?.unwrap_or_default())
}

fn describe(description: &Description, writer: &mut Writer<'_>) {
    writer.map(5);
    writer.bulk("policy");
    writer.bulk(&description.policy);
    writer.bulk("reset_after_us");
    writer.integer(description.reset_after_us);
    writer.bulk("lifetime_us");
    writer.integer(description.lifetime_us);
    writer.bulk("bytes");
    writer.integer(description.bytes);
    writer.bulk("limits");
    writer.array(description.limits.len());
    for limit in &description.limits {
        writer.map(5);
        writer.bulk("limit");
        writer.bulk(&limit.limit);
        for (name, value) in [
            ("capacity", limit.capacity),
            ("used", limit.used),
            ("remaining", limit.remaining),
            ("reset_after_us", limit.reset_after_us),
        ] {
            writer.bulk(name);
            writer.integer(value);
        }
    }
}
