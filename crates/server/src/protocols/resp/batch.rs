//! Decisions that are gathered and then made together.
//!
//! Commands that decide at the time of the batch are gathered as they are read; before any other
//! command is carried out, and at the end of what was read, all are decided and answered, in order.

use sluicegate_core::{Answer, Decision, KeyedOperation, Operation};
use sluicegate_resp::Writer;
use smallvec::SmallVec;

use super::{
    job::{Asked, Job},
    session::{Session, WORK},
};
use crate::{
    policies::policy_cache::{Known, Rules},
    stats::Cause,
    store::error_reply,
};

/// When so many are gathered they are decided.
pub(super) const MOST: usize = 128;
/// As many as the store brings near at a time.
const CHUNK: usize = 32;

/// Decisions to be made.
#[derive(Debug)]
pub(super) struct Gathered<'a> {
    gathers: SmallVec<[Gather<'a>; MOST]>,
    /// The first that may take long.
    heavy: Option<usize>,
}

/// A decision to be made.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather<'a> {
    pub(super) key: &'a [u8],
    pub(super) rule: Known,
    pub(super) operation: Operation,
    pub(super) reply: Reply,
}

/// What a decision is answered with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// Five integers.
    Throttle,
    /// Seven integers.
    Decision,
    /// Seven integers, the first of so many decisions in an array.
    First(usize),
}

impl<'a> Gathered<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { gathers: SmallVec::new(), heavy: None }
    }

    #[inline]
    pub(super) fn push(&mut self, gather: Gather<'a>) {
        if gather.rule.is_heavy() {
            self.heavy.get_or_insert(self.gathers.len());
        }
        self.gathers.push(gather);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.gathers.len()
    }

    /// The last one.
    pub(super) fn last(&self) -> Option<&Gather<'a>> {
        self.gathers.last()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.gathers.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.heavy.is_some() || self.gathers.len() >= MOST
    }

    /// Decides and answers all that was gathered; or, where that takes longer than a turn, puts the rest
    /// off and ends the batch.
    #[inline]
    pub(super) fn answer(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        if !self.gathers.is_empty() {
            self.answer_some(session, out);
        }
    }

    fn answer_some(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        let shared = session.shared;
        let stats = session.worker.stats();
        let watch = stats.sampler.active();
        session.worker.gathered.set(session.worker.gathered.get() + self.gathers.len());
        // Of a heavy one nothing is known beforehand: the clock tells.
        let first_heavy = self.heavy.take();
        let work = match first_heavy {
            Some(_) => WORK,
            None => u32::try_from(self.gathers.len()).unwrap_or(WORK),
        };
        session.add_work(work);
        let rules = session.worker.rules.borrow();
        if !shared.decider.is_local() {
            put_off(&self.gathers, &rules, session, out.len());
            return self.gathers.clear();
        }
        let writer = &mut Writer::new(out, session.version);
        let gathers = self.gathers.as_slice();
        let light = first_heavy.unwrap_or(gathers.len());
        // One long take is made at once; several, only while few connections do that.
        let must_wait = gathers.len() > light + 1
            && session.worker.turns().are_many()
            && !session.turn.is_in_lane();
        let mut decided = 0;
        while decided < gathers.len() {
            let end = if decided < light {
                light.min(decided + CHUNK)
            } else if must_wait || decided > light && shared.decider.is_late(session.now) {
                break;
            } else {
                decided + 1
            };
            let chunk = &gathers[decided..end];
            decided = end;
            let mut operations = SmallVec::<[KeyedOperation<'_>; CHUNK]>::new();
            for &Gather { key, rule, operation, .. } in chunk {
                operations.push(KeyedOperation { key, policy: rules.get(rule), operation });
            }
            let answers = shared.decider.decide_batch(&operations, session.now);
            let answers = answers.expect("a local store answers now");
            for ((gather, operation), answer) in chunk.iter().zip(&operations).zip(answers) {
                match answer {
                    Ok(Answer { decision, source }) => {
                        stats.decided(source, &decision);
                        if let Some(watch) = watch {
                            let cause = Cause::policy(operation.policy.policy());
                            watch.decided(operation.key, &decision, cause);
                        }
                        gather.reply.write(&decision, writer);
                    }
                    Err(error) => {
                        stats.errors.add();
                        writer.error(error_reply(&error));
                    }
                }
            }
        }
        // Looked at after all was decided: who comes to wait from now on sees what was.
        if shared.decider.queues.waiting() > 0 {
            for gather in &gathers[..decided] {
                shared.decider.queues.asked(
                    gather.key,
                    rules.get(gather.rule).policy(),
                    gather.operation,
                );
            }
        }
        if decided < gathers.len() {
            put_off(&gathers[decided..], &rules, session, out.len());
            session.end_turn();
        }
        self.gathers.clear();
    }
}

/// Has `gathers` decided when the batch has ended; the replies belong at `place`.
fn put_off(gathers: &[Gather<'_>], rules: &Rules, session: &Session<'_>, place: usize) {
    let questions = gathers.iter().map(|gather| Asked {
        key: gather.key.into(),
        rule: rules.get(gather.rule).clone(),
        operation: gather.operation,
        reply: gather.reply,
    });
    let asked = Job::Decide(questions.collect());
    session.worker.deferred.borrow_mut().push(session, asked, place);
}

impl Reply {
    #[inline]
    pub(super) fn write(self, decision: &Decision, writer: &mut Writer<'_>) {
        match self {
            Self::Throttle => {
                return writer.integers(&sluicegate_commands::throttle_integers(decision));
            }
            Self::Decision => {}
            Self::First(count) => writer.array(count),
        }
        writer.integers(&decision.to_integers());
    }
}
