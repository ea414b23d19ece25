//! Decisions that are gathered and then made together.
//!
//! Commands that decide at the time of the batch are gathered as they are read; before any other
//! command is carried out, and at the end of what was read, all are decided and answered, in order.

use sluicegate_core::Operation;
use sluicegate_memory::Request;
use sluicegate_redis::Source;
use sluicegate_resp::Writer;
use smallvec::SmallVec;

use super::{
    job::{Asked, Job},
    session::Session,
};
use crate::{face::Face, rules::Known};

/// When so many are gathered they are decided.
pub(super) const MOST: usize = 128;
/// As many as the store brings near at a time.
const CHUNK: usize = 32;

/// Decisions to be made.
#[derive(Debug)]
pub(super) struct Gathered<'a>(SmallVec<[Gather<'a>; MOST]>);

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
        Self(SmallVec::new())
    }

    #[inline]
    pub(super) fn push(&mut self, gather: Gather<'a>) {
        self.0.push(gather);
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The last one.
    pub(super) fn last(&self) -> Option<&Gather<'a>> {
        self.0.last()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.0.len() >= MOST
    }

    /// Decides and answers all that was gathered.
    #[inline]
    pub(super) fn answer(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        if !self.0.is_empty() {
            self.answer_some(session, out);
        }
    }

    fn answer_some(&mut self, session: &Session<'_>, out: &mut Vec<u8>) {
        let shared = session.shared;
        let stats = session.worker.stats();
        let watch = stats.watch.looked_at();
        session.worker.gathered.set(session.worker.gathered.get() + self.0.len());
        let rules = session.worker.rules.borrow();
        let Some(store) = shared.home.memory() else {
            let questions = self.0.drain(..).map(|gather| Asked {
                key: gather.key.into(),
                rule: rules.get(gather.rule).clone(),
                operation: gather.operation,
                reply: gather.reply,
            });
            let asked = Job::Decide(questions.collect());
            return session.worker.deferred.borrow_mut().push(session, asked, out.len());
        };
        let writer = &mut Writer::new(out, session.version);
        for chunk in self.0.chunks(CHUNK) {
            // Not collected, which would copy all of it once more.
            let mut requests = SmallVec::<[Request<'_>; CHUNK]>::new();
            for gather in chunk {
                let rule = rules.get(gather.rule).memory().expect("rules are those of their home");
                requests.push(Request { key: gather.key, rule, operation: gather.operation });
            }
            let mut replies = chunk.iter().map(|gather| gather.reply);
            store.apply_many(&requests, session.now, |request, answer| {
                let reply = replies.next().unwrap_or(Reply::Decision);
                match answer {
                    Ok(decision) => {
                        stats.decided(Face::Resp, Source::Store, &decision);
                        if let Some(watch) = watch {
                            watch.decided(request.key, decision.allowed());
                        }
                        reply.write(&decision, writer);
                    }
                    Err(error) => {
                        stats.errors.add();
                        writer.error(format!("ERR {error}"));
                    }
                }
            });
        }
        // Looked at after all was decided: who comes to wait from now on sees what was.
        if shared.lines.waiting() > 0 {
            for gather in &self.0 {
                shared.lines.asked(gather.key, rules.get(gather.rule).policy(), gather.operation);
            }
        }
        self.0.clear();
    }
}

impl Reply {
    #[inline]
    pub(super) fn write(self, decision: &sluicegate_core::Decision, writer: &mut Writer<'_>) {
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
