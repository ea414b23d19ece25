//! One decision, or several: by a block of the operator, else by the store.
//!
//! Every protocol decides here, because a blocked key is denied on all of them.

use sluicegate_core::{Answer, Joint, MultiKeyAnswer, Operation, Source, Timestamp};
use sluicegate_memory::MemoryStore;
use tokio::task::yield_now;

use crate::{
    home::{HomeRule, Question, Take, Trouble, here},
    shared::Shared,
    turn::{Turn, Turns},
};

impl Shared {
    /// The denial of a question about a blocked key.
    #[inline]
    fn blocked(&self, question: &Question<'_>, now: Timestamp) -> Option<Answer> {
        let Question { key, rule, operation } = *question;
        let decision = self.blocks.denial(key, rule.policy(), operation, now)?;
        Some(Answer { decision, source: self.block_source() })
    }

    /// The source of denials of blocked keys: with a store elsewhere, it is not the store.
    const fn block_source(&self) -> Source {
        if self.home.memory().is_some() { Source::Store } else { Source::Cache }
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
            None => self.home.ask(key, rule, operation, now).await,
        }
    }

    /// The same, where the state is in this process.
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

    /// Answers several questions independently, in their order and at one time. Where the state is in this
    /// process, others go first whenever one of the `turns` is over.
    pub(crate) async fn decide_many(
        &self,
        turns: &Turns,
        questions: &[Question<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, Trouble>> {
        if let Some(store) = self.home.memory() {
            return self.decide_in_turns(store, turns, questions, now).await;
        }
        if !self.blocks.is_used() {
            return self.home.ask_many(questions, now).await;
        }
        let blocked: Vec<_> = questions.iter().map(|it| self.blocked(it, now)).collect();
        let open = questions.iter().zip(&blocked).filter(|(_, blocked)| blocked.is_none());
        let open: Vec<_> = open.map(|(question, _)| *question).collect();
        let mut answers = self.home.ask_many(&open, now).await.into_iter();
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
                // In the lane as the rest of a pipeline: else each of many such requests had a turn between two
                // looks at the sockets.
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

    /// Takes from all of several keys or from none; with `stores` false, only answers what a take would
    /// be answered. A blocked key denies all of them.
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
            return self.home.take_together(takes, stores, now).await;
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

    use sluicegate_core::{Clock as _, OnError};
    use sluicegate_memory::SystemClock;
    use sluicegate_rules::RuleSet;

    use super::*;
    use crate::{Config, home::Home, listen::Addresses, ruleset::Live};

    /// Many decisions that take longer than a turn give way between them; none is lost.
    #[test]
    fn many_decisions_are_made_in_turns() {
        let config = Config { workers: Some(1), ..Config::default() };
        let addresses = Addresses { resp: config.listen, http: None, grpc: None };
        let (home, rules) = (Home::Memory(MemoryStore::new()), Live::of(RuleSet::default()));
        let none = [None, None, None];
        let shared = Shared::new(config, addresses, home, rules, SystemClock::new(), none);
        let now = shared.clock.now();
        let logs = ["sliding-log:10000000/1d"; 8].join(",").parse().unwrap();
        let rule = shared.home.rule(&logs, OnError::Deny, now);
        let question = Question { key: b"k", rule: &rule, operation: Operation::Take(1) };
        let questions = vec![question; 50_000];
        let lane = Turns::default();
        let mut deciding = pin!(shared.decide_many(&lane, &questions, now));
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
