//! Several questions at once.

use std::{borrow::Cow, collections::BTreeMap};

use futures_util::future::join_all;
use redis::Pipeline;
use sluicegate_core::Operation;

use crate::{
    Answer, RedisStore, Rule, Source, StoreError,
    call::{Heard, command, follow, heard},
    front::known::Asked,
    native,
    net::{link::Deadline, topology::Topology},
    slot::slot,
    store::Inner,
};

/// One of several questions.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Whom it is about.
    pub key: &'a [u8],
    /// The rule.
    pub rule: &'a Rule,
    /// What is asked.
    pub operation: Operation,
}

/// A question that the store is to be asked, and where its answer belongs.
struct Open<'a> {
    place: usize,
    key: Cow<'a, [u8]>,
    rule: &'a Rule,
    operation: Operation,
    asked: Asked,
}

impl RedisStore {
    /// Asks about several keys, each for itself: their answers in the same order. The store is sent one
    /// pipeline for each slot (a server that is no cluster has one), all at the same time; each question
    /// is decided atomically, all of them together are not. Questions about one key are decided in the
    /// order given, unless the server has forgotten a script meanwhile. Leases are not used.
    pub async fn ask_many(&self, questions: &[Question<'_>]) -> Vec<Result<Answer, StoreError>> {
        let inner = self.inner();
        let deadline = Deadline::after(inner.context.options.deadline);
        let now = inner.context.now();
        let mut answers: Vec<Option<Result<Answer, StoreError>>> = vec![None; questions.len()];
        let mut slots: BTreeMap<u16, Vec<Open<'_>>> = BTreeMap::new();
        let alone = matches!(inner.topology, Topology::One(_));
        for (place, &Question { key, rule, operation }) in questions.iter().enumerate() {
            let key = inner.key(key);
            if let Operation::Take(cost @ 1..) = operation
                && let Some(answer) = inner.known.denied(&key, rule, cost, now)
            {
                inner.context.counts.cache.one();
                answers[place] = Some(Ok(answer));
                continue;
            }
            inner.begins(&key, operation);
            let asked = inner.known.asked(&key, now);
            let slot = if alone { 0 } else { slot(&key) };
            slots.entry(slot).or_default().push(Open { place, key, rule, operation, asked });
        }
        let slots = slots.iter().map(|(slot, open)| inner.ask_slot(*slot, open, deadline));
        for (place, answer) in join_all(slots).await.into_iter().flatten() {
            answers[place] = Some(answer);
        }
        let none = || Err(StoreError::Unavailable("the store said nothing".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }
}

impl Inner {
    /// Asks about the keys of one slot.
    async fn ask_slot(
        &self,
        slot: u16,
        open: &[Open<'_>],
        deadline: Deadline,
    ) -> Vec<(usize, Result<Answer, StoreError>)> {
        let all: Vec<_> = open.iter().collect();
        let mut heard = self.send_slot(slot, &all, false, deadline).await;
        // What the server does not know: once more, in the same order.
        let unknown = |heard: &Result<Heard, _>| {
            matches!(heard, Ok(Heard::NoScript | Heard::NoModule { at_all: true }))
        };
        let places: Vec<_> = (0..open.len()).filter(|&it| unknown(&heard[it])).collect();
        if !places.is_empty() {
            let again: Vec<_> = places.iter().map(|&place| &open[place]).collect();
            let answers = self.send_slot(slot, &again, true, deadline).await;
            for (place, answer) in places.into_iter().zip(answers) {
                heard[place] = answer;
            }
        }
        let answers = open
            .iter()
            .zip(heard)
            .map(async |(open, heard)| (open.place, self.settle(open, heard, deadline).await));
        join_all(answers).await
    }

    /// Sends one pipeline, and reads what is answered to each of `open`. With `texts`, each script is
    /// sent in full where it is needed first.
    async fn send_slot(
        &self,
        slot: u16,
        open: &[&Open<'_>],
        texts: bool,
        deadline: Deadline,
    ) -> Vec<Result<Heard, StoreError>> {
        let asked = async {
            let link = self.topology.link(slot, deadline).await?;
            let native = !texts && link.has_module();
            let around = self.context.now();
            let mut pipeline = Pipeline::with_capacity(open.len());
            let mut sent = Vec::new();
            for Open { key, rule, operation, .. } in open {
                let plan = rule.plan();
                if native {
                    pipeline.add_command(native::command(plan, key, *operation)?);
                    continue;
                }
                let arguments = plan.arguments(*operation, around)?;
                let sha1 = plan.script().sha1();
                let whole = texts && !sent.contains(&sha1);
                if whole {
                    self.context.counts.scripts_sent.one();
                    sent.push(sha1);
                }
                pipeline.add_command(command(plan, key, &arguments, whole));
            }
            let replies = link.commands(&pipeline, deadline).await;
            // Another node may hold the slot by now.
            let replies = replies.inspect_err(|_| self.topology.refresh())?;
            Ok((link, native, replies))
        };
        match asked.await {
            Ok((link, native, replies)) if replies.len() == open.len() => {
                let hear = |(open, reply): (&&Open<'_>, _)| {
                    let heard = if native {
                        native::hear(open.rule.plan(), open.operation, reply)
                    } else {
                        heard(open.rule.plan(), open.operation, reply)
                    };
                    follow(&self.context, &self.topology, &link, &heard, reply);
                    let decided = native && matches!(heard, Heard::Decided(_));
                    self.context.counts.module.add(decided.into());
                    Ok(heard)
                };
                open.iter().zip(&replies).map(hear).collect()
            }
            asked => {
                let error = asked.err().unwrap_or_else(|| {
                    StoreError::Unavailable("not all questions were answered".to_owned())
                });
                open.iter().map(|_| Err(error.clone())).collect()
            }
        }
    }

    /// The answer to one question: what was not done at all is asked again by itself.
    async fn settle(
        &self,
        open: &Open<'_>,
        heard: Result<Heard, StoreError>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let &Open { ref key, rule, operation, asked, .. } = open;
        let answer = match heard {
            Ok(Heard::Decided(decision)) => {
                self.context.counts.store.one();
                self.learn(key, rule, operation, asked, &decision);
                Ok(Answer { decision, source: Source::Store })
            }
            Ok(
                Heard::NoScript
                | Heard::NoModule { .. }
                | Heard::Elsewhere { .. }
                | Heard::Calendars { .. },
            ) => self.question(key, rule, operation, deadline).await,
            Ok(Heard::Failed(error)) | Err(error) if error.is_absence() => {
                self.fall_back(key, rule, operation, error)
            }
            Ok(Heard::Failed(error)) | Err(error) => Err(error),
        };
        self.finish(key, operation, answer.is_ok());
        answer
    }
}
