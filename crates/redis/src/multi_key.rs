//! One decision on several keys, all or nothing.
//!
//! If one server has all keys (without a cluster, or in one slot), it is one command of the module, or one script call.
//! Otherwise the keys are taken one after the other, and if one denies, the previous charges are refunded: until then,
//! those keys admit less than they could.

use std::{borrow::Cow, sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use sluicegate_core::{
    Answer, Decision, HoldOperation, KeyedTake, MultiKeyAnswer, MultiKeyDecision, MultiKeyError,
    MultiKeyOperation, Operation, Outcome, Source, StoreError, Timestamp,
};

use crate::{
    PlannedOperation, PlannedPolicy,
    call::{ModuleUse, RequestedCalendars, StoreCommand},
    holds::MAX_ATTEMPTS,
    native,
    net::{
        context::Context,
        node_connection::{Deadline, NodeConnection},
        topology::Topology,
    },
    reply::{ReplyKind, one_decision, parse_general},
    script::{Script, boundaries},
    script_command::begin,
    slot::slot,
    store::Inner,
};

/// A take with the name of its key in the store.
#[derive(Clone, Debug)]
struct PreparedTake<'a> {
    key: Cow<'a, [u8]>,
    policy: Cow<'a, PlannedPolicy>,
    cost: u32,
}

impl PreparedTake<'_> {
    /// An operation on the key.
    fn planned(&self, operation: Operation) -> PlannedOperation<'_> {
        PlannedOperation { key: &self.key, policy: &self.policy, operation }
    }
}

fn multi_key_decision(each: Vec<Decision>) -> Result<MultiKeyDecision, StoreError> {
    MultiKeyDecision::of(each).ok_or_else(|| MultiKeyError::MissingKey.into())
}

impl Inner {
    /// `at` is the time to send, if it is given; uses no cache and no fallback then.
    pub(crate) async fn apply_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
        at: Option<Timestamp>,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let deadline = Deadline::after(self.context.options.deadline);
        let takes = self.distinct(takes)?;
        let stores = operation == MultiKeyOperation::Take;
        for take in &takes {
            take.policy.policy.check_multi_key(operation, take.cost)?;
        }
        if at.is_some() {
            let taken = self.take_in_one_call(&takes, operation, at, deadline).await?;
            return Ok(MultiKeyAnswer { multi_key: taken, source: Source::Store });
        }
        let slots = takes.iter().map(|take| slot(&take.key));
        let one = matches!(self.topology, Topology::One(_))
            || slots.clone().all(|it| Some(it) == slots.clone().next());
        if let MultiKeyOperation::Hold { .. } = operation {
            if !one {
                return Err(StoreError::Arguments(
                    "invalid keys for a hold: expected keys in one slot of the cluster, such as `{acme}:requests` and \
                     `{acme}:tokens`"
                        .to_owned(),
                ));
            }
            return self.hold_in_one_call(&takes, operation, deadline).await;
        }
        if let Some(taken) = self.cached_multi_key(&takes) {
            self.context.counts.cache.one();
            return Ok(MultiKeyAnswer { multi_key: taken, source: Source::Cache });
        }
        if !one {
            return self.take_in_turn(&takes, stores, deadline).await;
        }
        let now = self.context.now();
        let begun: Vec<_> =
            takes.iter().map(|take| self.denials.begin_query(&take.key, now)).collect();
        match self.take_in_one_call(&takes, operation, None, deadline).await {
            Ok(taken) => {
                self.context.counts.store.one();
                let now = self.context.now();
                for ((take, begun), decision) in takes.iter().zip(begun).zip(&taken.each) {
                    // An allowed key of a denied take was not charged.
                    let tells = taken.decision.allowed() || !decision.allowed();
                    if stores && take.cost > 0 && tells {
                        let PreparedTake { key, policy, cost } = take;
                        self.denials.record(key, policy, *cost, begun, now, decision);
                    }
                }
                Ok(MultiKeyAnswer { multi_key: taken, source: Source::Store })
            }
            Err(error) if error.is_unavailable() => {
                self.fallback_multi_key(&takes, operation, &error)
            }
            Err(error) => Err(error),
        }
    }

    /// A hold may be sent again, as that of one key.
    async fn hold_in_one_call(
        &self,
        takes: &[PreparedTake<'_>],
        operation: MultiKeyOperation<'_>,
        deadline: Deadline,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let mut attempt = 1;
        loop {
            match self.take_in_one_call(takes, operation, None, deadline).await {
                Ok(taken) => {
                    self.context.counts.store.one();
                    for (take, decision) in takes.iter().zip(&taken.each) {
                        // An allowed key of a denied hold was not charged.
                        if taken.decision.allowed() || !decision.allowed() {
                            self.record_usage(&take.key, &take.policy, decision);
                        }
                    }
                    return Ok(MultiKeyAnswer { multi_key: taken, source: Source::Store });
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return self.fallback_multi_key(takes, operation, &error);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Each key once, as it is in the store.
    fn distinct<'a>(&self, takes: &[KeyedTake<'a>]) -> Result<Vec<PreparedTake<'a>>, StoreError> {
        let mut distinct: Vec<PreparedTake<'a>> = Vec::with_capacity(takes.len());
        for &KeyedTake { key, policy, cost } in takes {
            let key = self.key(key)?;
            if distinct.iter().all(|take| take.key != key) {
                distinct.push(PreparedTake { key, policy: self.planned(policy), cost });
            }
        }
        Ok(distinct)
    }

    /// One command or script call.
    async fn take_in_one_call(
        &self,
        takes: &[PreparedTake<'_>],
        operation: MultiKeyOperation<'_>,
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<MultiKeyDecision, StoreError> {
        let Some(first) = takes.first() else { return multi_key_decision(Vec::new()) };
        let command = MultiKeyCommand {
            context: &self.context,
            takes,
            script: Script::multi_key(takes.iter().map(|take| &take.policy.policy)),
            operation,
            at,
            module: ModuleUse::new(at.is_some() || operation == MultiKeyOperation::Peek),
        };
        let slot = slot(&first.key);
        let node = self.topology.node(slot, deadline).await?;
        // No command of the module peeks at several keys, and the server or the user may have no scripts. Whether there is
        // a module is known when the node is connected.
        let peeks_at_each =
            || at.is_none() && operation == MultiKeyOperation::Peek && node.has_module();
        if !peeks_at_each() {
            let each = self.send(slot, command, deadline).await;
            if each.is_ok() || !peeks_at_each() {
                return multi_key_decision(each?);
            }
        }
        let peek = |it: &PreparedTake<'_>| Operation::Peek(it.cost);
        let peeks = takes.iter().map(|it| self.call(it.planned(peek(it)), None, deadline));
        multi_key_decision(try_join_all(peeks).await?)
    }

    /// The denial of all keys if a cached denial of one still applies, unless a policy records denials.
    fn cached_multi_key(&self, takes: &[PreparedTake<'_>]) -> Option<MultiKeyDecision> {
        if !takes.iter().all(|take| take.policy.is_cached) {
            return None;
        }
        let now = self.context.now();
        let denied =
            |take: &PreparedTake<'_>| self.denials.denied(&take.key, &take.policy, take.cost, now);
        let known: Vec<_> = takes.iter().map(denied).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        // The others count as unused.
        let each = takes.iter().zip(known).map(|(take, known)| {
            known.map_or_else(|| take.policy.plan.unused_decision, |answer| answer.decision)
        });
        MultiKeyDecision::of(each.collect())
    }

    /// The fallback decision.
    fn fallback_multi_key(
        &self,
        takes: &[PreparedTake<'_>],
        operation: MultiKeyOperation<'_>,
        error: &StoreError,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let takes: Vec<_> = takes.iter().map(|it| (&*it.key, &*it.policy, it.cost)).collect();
        let taken = multi_key_decision(self.fall_back_multi_key(operation, &takes, error)?)?;
        Ok(MultiKeyAnswer { multi_key: taken, source: Source::Fallback })
    }

    /// Keys of several slots: in order, until one denies.
    async fn take_in_turn(
        &self,
        takes: &[PreparedTake<'_>],
        stores: bool,
        deadline: Deadline,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let mut answers: Vec<Answer> = Vec::with_capacity(takes.len());
        if stores {
            for take in takes {
                match self.request(take.planned(Operation::Take(take.cost)), deadline).await {
                    Ok(answer) => answers.push(answer),
                    Err(error) => {
                        self.refund_all(takes, &answers).await;
                        return Err(error);
                    }
                }
                if answers.last().is_some_and(|answer| !answer.allowed()) {
                    break;
                }
            }
        }
        let denied = answers.last().is_some_and(|answer| !answer.allowed());
        if denied {
            let before = answers.len() - 1;
            let back = self.refund_all(takes, &answers[..before]).await;
            for (answer, back) in answers.iter_mut().zip(back) {
                *answer = back;
            }
        }
        // Peeks at the remaining keys; takes where the policy records denials.
        let rest = takes[answers.len()..].iter().map(async |take| {
            let operation = if stores && take.policy.records_denials {
                Operation::Take(take.cost)
            } else {
                Operation::Peek(take.cost)
            };
            self.request(take.planned(operation), deadline).await
        });
        for answer in join_all(rest).await {
            answers.push(answer?);
        }
        let each = answers.iter().map(|answer| match answer.decision {
            // A take that was not applied has no delay.
            Decision { outcome: Outcome::Allow { .. }, .. } if denied => {
                Decision { outcome: Outcome::Allow { delay: Duration::ZERO }, ..answer.decision }
            }
            decision => decision,
        });
        let taken = multi_key_decision(each.collect())?;
        let source = answers.get(taken.key).map_or(Source::Store, |answer| answer.source);
        Ok(MultiKeyAnswer { multi_key: taken, source })
    }

    /// Refunds charges, once, and returns the state of each key. Fallback decisions and policies that record denials
    /// are not refunded.
    async fn refund_all(&self, takes: &[PreparedTake<'_>], answers: &[Answer]) -> Vec<Answer> {
        let back = takes.iter().zip(answers).map(async |(take, &answer)| {
            let charged = answer.source == Source::Store && take.cost > 0;
            if !charged || take.policy.records_denials {
                return answer;
            }
            let refund = Operation::Refund(take.cost);
            let _forget = self.begin(&take.key, refund);
            let deadline = Deadline::after(self.context.options.deadline);
            let decision = self.decide(take.planned(refund), deadline).await;
            match decision {
                Ok(decision) => Answer { decision, ..answer },
                Err(error) => {
                    tracing::debug!(%error, "could not return charged units");
                    answer
                }
            }
        });
        join_all(back).await
    }
}

/// An operation on several keys of one slot.
struct MultiKeyCommand<'a> {
    context: &'a Context,
    takes: &'a [PreparedTake<'a>],
    script: &'static Script,
    operation: MultiKeyOperation<'a>,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for MultiKeyCommand<'_> {
    type Answer = Vec<Decision>;
    // The state of each key may use other calendars.
    const CALENDARS: usize = sluicegate_core::MAX_KEYS_PER_TAKE * 2;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        let hold = match self.operation {
            MultiKeyOperation::Hold { id, ttl } => Some((id, ttl)),
            MultiKeyOperation::Take | MultiKeyOperation::Peek => None,
        };
        if self.module.choose(node) {
            let takes = self.takes.iter().map(|it| (&*it.key, &it.policy.plan, it.cost));
            return Ok(native::multi_key_command(takes, hold));
        }
        let around = self.at.or(requested.now).unwrap_or_else(|| self.context.now());
        let mut command = begin(self.script, whole);
        command.arg(self.takes.len());
        self.takes.iter().for_each(|take| {
            command.arg(&*take.key);
        });
        let own = self.takes.iter().flat_map(|take| &take.policy.plan.calendars);
        let (word, id) = match self.operation {
            MultiKeyOperation::Take => ("take", &b""[..]),
            MultiKeyOperation::Peek => ("peek", &b""[..]),
            MultiKeyOperation::Hold { id, .. } => ("hold", id),
        };
        command.arg(word).arg(boundaries(own.chain(&requested.calendars), around));
        command.arg(self.at.map(|at| at.as_micros().to_string()).unwrap_or_default());
        command.arg(id);
        for take in self.takes {
            let ttl = match self.operation {
                MultiKeyOperation::Hold { id, ttl } => take
                    .policy
                    .policy
                    .check_hold(&HoldOperation::Hold { id, cost: take.cost, ttl })?,
                MultiKeyOperation::Take | MultiKeyOperation::Peek => 0,
            };
            command.arg(take.cost).arg(&take.policy.plan.initial_state).arg(ttl);
        }
        Ok(command)
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Vec<Decision>> {
        if self.module.is_native() {
            return self
                .module
                .follow(native::parse_decided(reply, native::decisions), self.context);
        }
        parse_general(reply, |elements| {
            if elements.len() != 7 * self.takes.len() {
                return None;
            }
            elements.chunks(7).map(one_decision).collect()
        })
    }
}
