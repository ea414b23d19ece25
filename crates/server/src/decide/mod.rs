//! Decisions: by a block of an operator, otherwise by the store.
//!
//! Every protocol decides here, because a blocked key is denied on all of them.

pub(crate) mod blocks;
pub(crate) mod judge;

use std::{sync::Arc, time::Duration};

use sluicegate_core::{Clock as _, Joint, Operation, Policy, Timestamp};
use sluicegate_memory::{MemoryStore, SystemClock};
use sluicegate_redis::{Answer, MultiKeyAnswer, OnError, Source};
use tokio::task::yield_now;

use crate::{
    budgets::{
        buffers::BufferBudget,
        turn::{Turn, Turns},
    },
    decide::blocks::Blocks,
    policies::ruleset::Live,
    store::home::{Home, HomeRule, Question, Take, Trouble, here},
    wait::Lines,
};

/// How long a client may occupy its worker before others go first.
const TURN: Duration = Duration::from_micros(500);

/// Decides for all protocols, by the store, the clock, the rules in force, the keys that an operator has
/// blocked, and the requests that wait.
#[derive(Debug)]
pub(crate) struct Decider {
    pub(crate) store: Arc<Home>,
    /// The rules in force.
    pub(crate) rules: Arc<Live>,
    pub(crate) clock: SystemClock,
    /// The keys that an operator has blocked.
    pub(crate) blocks: Blocks,
    /// Requests that wait for their key.
    pub(crate) queues: Lines,
    /// The memory budget, for keys of waiting requests.
    pub(crate) buffers: Arc<BufferBudget>,
    /// The fallback while the store is unavailable, unless a rule sets its own.
    pub(crate) on_error: OnError,
}

impl Decider {
    pub(crate) fn new(
        store: Arc<Home>,
        rules: Arc<Live>,
        clock: SystemClock,
        buffers: Arc<BufferBudget>,
        on_error: OnError,
    ) -> Self {
        let (blocks, queues) = (Blocks::default(), Lines::default());
        Self { store, rules, clock, blocks, queues, buffers, on_error }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether a turn that began at `start` has taken so long that others should go first.
    #[inline]
    pub(crate) fn is_late(&self, start: Timestamp) -> bool {
        self.now() >= start + TURN
    }

    /// `policy` as the store knows it, for a request that no rule is about.
    pub(crate) fn prepare(&self, policy: &Policy, now: Timestamp) -> HomeRule {
        self.store.rule(policy, self.on_error, now)
    }

    /// Why all requests are denied, if they are: the store is unavailable, and the fallback is a denial.
    pub(crate) fn not_ready(&self) -> Option<String> {
        self.store.not_ready(self.on_error)
    }

    /// The denial of an operation on a blocked key.
    #[inline]
    fn blocked(&self, question: &Question<'_>, now: Timestamp) -> Option<Answer> {
        let Question { key, rule, operation } = *question;
        let decision = self.blocks.denial(key, rule.policy(), operation, now)?;
        Some(Answer { decision, source: self.block_source() })
    }

    /// The source of denials of blocked keys: not the store, if that is another process.
    fn block_source(&self) -> Source {
        if self.store.memory().is_some() { Source::Store } else { Source::Cache }
    }

    /// Applies `operation` to `key`.
    pub(crate) async fn decide(
        &self,
        key: &[u8],
        rule: &HomeRule,
        operation: Operation,
        now: Timestamp,
    ) -> Result<Answer, Trouble> {
        match self.blocked(&Question { key, rule, operation }, now) {
            Some(answer) => Ok(answer),
            None => self.store.ask(key, rule, operation, now).await,
        }
    }

    /// The same with state in this process.
    #[inline]
    pub(crate) fn decide_here(
        &self,
        store: &MemoryStore,
        question: Question<'_>,
        now: Timestamp,
    ) -> Result<Answer, Trouble> {
        match self.blocked(&question, now) {
            Some(answer) => Ok(answer),
            None => here(store, question, now),
        }
    }

    /// Decides several independent operations, in order and at one time. With state in this process, other
    /// connections go first whenever one of the `turns` is over.
    pub(crate) async fn decide_many(
        &self,
        turns: &Turns,
        questions: &[Question<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, Trouble>> {
        if let Some(store) = self.store.memory() {
            return self.decide_in_turns(store, turns, questions, now).await;
        }
        if !self.blocks.is_used() {
            return self.store.ask_many(questions, now).await;
        }
        let blocked: Vec<_> = questions.iter().map(|it| self.blocked(it, now)).collect();
        let open = questions.iter().zip(&blocked).filter(|(_, blocked)| blocked.is_none());
        let open: Vec<_> = open.map(|(question, _)| *question).collect();
        let mut answers = self.store.ask_many(&open, now).await.into_iter();
        let none = || Err(Trouble::Away("the store gave no answer".to_owned()));
        let merged = blocked.into_iter().map(|blocked| match blocked {
            Some(answer) => Ok(answer),
            None => answers.next().unwrap_or_else(none),
        });
        merged.collect()
    }

    async fn decide_in_turns(
        &self,
        store: &MemoryStore,
        turns: &Turns,
        questions: &[Question<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, Trouble>> {
        let mut answers = Vec::with_capacity(questions.len());
        let (mut turn, mut start) = (Turn::new(turns), self.now());
        for &question in questions {
            let must_wait = turns.are_many() && !turn.is_in_lane();
            if must_wait || self.is_late(start) {
                // In the lane, as the rest of a pipeline is; otherwise each of many such requests would have a turn
                // between two polls of the sockets.
                if !turn.is_in_lane() {
                    turn.lane().await;
                }
                yield_now().await;
                start = self.now();
            }
            answers.push(self.decide_here(store, question, now));
        }
        answers
    }

    /// Takes from all of several keys or from none; with `stores` false, only returns the decision of such a
    /// take. A blocked key denies all of them.
    pub(crate) async fn decide_together(
        &self,
        takes: &[Take<'_>],
        stores: bool,
        now: Timestamp,
    ) -> Result<MultiKeyAnswer, Trouble> {
        let denial = |&Take { key, rule, cost }: &Take<'_>| {
            self.blocked(&Question { key, rule, operation: Operation::Take(cost) }, now)
        };
        if !self.blocks.is_used() || !takes.iter().any(|take| denial(take).is_some()) {
            return self.store.take_together(takes, stores, now).await;
        }
        let mut each = Vec::with_capacity(takes.len());
        for take in takes {
            let peek = Operation::Peek(take.cost);
            each.push(self.decide(take.key, take.rule, peek, now).await?.decision);
        }
        let joint = Joint::of(each).ok_or_else(|| Trouble::Away("no key is given".to_owned()))?;
        Ok(MultiKeyAnswer { joint, source: self.block_source() })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use sluicegate_rules::RuleSet;

    use super::*;

    /// Many decisions that take longer than a turn give way between them; none is lost.
    #[test]
    fn decide_many_long_batch_gives_way_between_turns() {
        let store = Arc::new(Home::Memory(MemoryStore::new()));
        let rules = Arc::new(Live::of(RuleSet::default()));
        let (clock, buffers) = (SystemClock::new(), Arc::new(BufferBudget::new(1 << 20)));
        let decider = Decider::new(store, rules, clock, buffers, OnError::Deny);
        let now = decider.clock.now();
        let logs = ["sliding-log:10000000/1d"; 8].join(",").parse().unwrap();
        let rule = decider.prepare(&logs, now);
        let question = Question { key: b"k", rule: &rule, operation: Operation::Take(1) };
        let questions = vec![question; 50_000];
        let lane = Turns::default();
        let mut deciding = pin!(decider.decide_many(&lane, &questions, now));
        let mut context = Context::from_waker(Waker::noop());
        let mut turns = 1;
        let answers = loop {
            match deciding.as_mut().poll(&mut context) {
                Poll::Ready(answers) => break answers,
                Poll::Pending => turns += 1,
            }
        };
        let left =
            |answer: &Result<Answer, Trouble>| answer.as_ref().ok().map(|it| it.decision.remaining);
        assert!(answers.iter().map(left).eq((1..=50_000).map(|taken| Some(10_000_000 - taken))));
        println!("figure: 50000 decisions on eight logs are made in {turns} turns");
        assert!(turns > 20, "{turns}");
    }
}
