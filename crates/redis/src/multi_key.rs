//! One decision on several keys, all or nothing.
//!
//! If one server has all keys (without a cluster, or in one slot), it is one command of the module, or one script call.
//! Otherwise the keys are taken one after the other, and if one denies, the previous charges are refunded: until then,
//! those keys admit less than they could.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use redis::{Cmd, Value};
use sluicegate_core::{
    Answer, Decision, KeyedOperation, Operation, Outcome, Request, RequestError, Source,
    StoreError, Timestamp,
};

use crate::{
    call::{ModuleUse, RequestedCalendars, StoreCommand},
    decide::MAX_ATTEMPTS,
    native,
    net::{
        context::Context,
        node_connection::{Deadline, NodeConnection},
        topology::Topology,
    },
    planned_policy::PlannedKey,
    reply::{ReplyKind, one_decision, parse_general},
    script::{Script, boundaries},
    script_command::begin,
    slot::slot,
    store::Inner,
};

fn combined(each: Vec<Decision>, source: Source) -> Result<Answer, StoreError> {
    Answer::of_all(each, source).ok_or_else(|| RequestError::MissingKey.into())
}

impl Inner {
    /// Decides a request on several keys. `at` is the time to send, if it is given; uses no cache and no fallback then.
    pub(crate) async fn apply_all(
        &self,
        request: Request<'_>,
        at: Option<Timestamp>,
    ) -> Result<Answer, StoreError> {
        let deadline = Deadline::after(self.context.options.deadline);
        let keys = self.distinct(request.operations())?;
        let Some(PlannedKey { operation: first, .. }) = keys.first() else {
            return Err(RequestError::MissingKey.into());
        };
        let stores = matches!(first, Operation::Take(_));
        for PlannedKey { policy, operation, .. } in &keys {
            policy.policy.check_operation(*operation)?;
        }
        if at.is_some() {
            return self.apply_in_one_call(&keys, at, deadline).await;
        }
        let slots = keys.iter().map(|it| slot(&it.key));
        let one = matches!(self.topology, Topology::One(_))
            || slots.clone().all(|it| Some(it) == slots.clone().next());
        if first.id().is_some() {
            if !one {
                return Err(StoreError::Arguments(
                    "invalid keys for a hold: expected keys in one slot of the cluster, such as `{acme}:requests` and \
                     `{acme}:tokens`"
                        .to_owned(),
                ));
            }
            return self.hold_in_one_call(&keys, deadline).await;
        }
        if let Some(answer) = self.cached_denial_of_all(&keys) {
            self.context.counts.cache.one();
            return Ok(answer);
        }
        if !one {
            return self.take_in_turn(&keys, stores, deadline).await;
        }
        let now = self.context.now();
        let begun: Vec<_> = keys.iter().map(|it| self.denials.begin_query(&it.key, now)).collect();
        match self.apply_in_one_call(&keys, None, deadline).await {
            Ok(answer) => {
                self.context.counts.store.one();
                let now = self.context.now();
                for ((it, begun), decision) in keys.iter().zip(begun).zip(answer.each()) {
                    let PlannedKey { key, policy, operation } = it;
                    // An allowed key of a denied take was not charged.
                    let tells = answer.allowed() || !decision.allowed();
                    if stores && operation.cost() > 0 && tells {
                        self.denials.record(key, policy, operation.cost(), begun, now, decision);
                    }
                }
                Ok(answer)
            }
            Err(error) if error.is_unavailable() => self.fallback_answer(&keys, &error),
            Err(error) => Err(error),
        }
    }

    /// A hold may be sent again, as that of one key.
    async fn hold_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut attempt = 1;
        loop {
            match self.apply_in_one_call(keys, None, deadline).await {
                Ok(answer) => {
                    self.context.counts.store.one();
                    for (it, decision) in keys.iter().zip(answer.each()) {
                        // An allowed key of a denied hold was not charged.
                        if answer.allowed() || !decision.allowed() {
                            self.record_usage(&it.key, &it.policy, decision);
                        }
                    }
                    return Ok(answer);
                }
                Err(error) if !error.is_unavailable() => return Err(error),
                Err(error) if attempt == MAX_ATTEMPTS || deadline.is_over() => {
                    return self.fallback_answer(keys, &error);
                }
                Err(_) => attempt += 1,
            }
        }
    }

    /// Each key once, as it is in the store.
    fn distinct<'a>(
        &self,
        operations: &[KeyedOperation<'a>],
    ) -> Result<Vec<PlannedKey<'a>>, StoreError> {
        let mut distinct: Vec<PlannedKey<'a>> = Vec::with_capacity(operations.len());
        for &KeyedOperation { key, policy, operation } in operations {
            let key = self.key(key)?;
            if distinct.iter().all(|it| it.key != key) {
                distinct.push(PlannedKey { key, policy: self.planned(policy), operation });
            }
        }
        Ok(distinct)
    }

    /// One command or script call.
    async fn apply_in_one_call(
        &self,
        keys: &[PlannedKey<'_>],
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let Some(first) = keys.first() else { return combined(Vec::new(), Source::Store) };
        let peeks = matches!(first.operation, Operation::Peek(_));
        let command = MultiKeyCommand {
            context: &self.context,
            keys,
            script: Script::multi_key(keys.iter().map(|it| &it.policy.policy)),
            at,
            module: ModuleUse::new(at.is_some() || peeks),
        };
        let slot = slot(&first.key);
        let node = self.topology.node(slot, deadline).await?;
        // No command of the module peeks at several keys, and the server or the user may have no scripts. Whether there is
        // a module is known when the node is connected.
        let peeks_at_each = || at.is_none() && peeks && node.has_module();
        if !peeks_at_each() {
            let each = self.send(slot, command, deadline).await;
            if each.is_ok() || !peeks_at_each() {
                return combined(each?, Source::Store);
            }
        }
        let peeks = keys.iter().map(|it| self.call(it.planned(), None, deadline));
        combined(try_join_all(peeks).await?, Source::Store)
    }

    /// The denial of all keys if a cached denial of one still applies, unless a policy records denials.
    fn cached_denial_of_all(&self, keys: &[PlannedKey<'_>]) -> Option<Answer> {
        if !keys.iter().all(|it| it.policy.is_cached) {
            return None;
        }
        let now = self.context.now();
        let denied = |it: &PlannedKey<'_>| {
            self.denials.denied(&it.key, &it.policy, it.operation.cost(), now)
        };
        let known: Vec<_> = keys.iter().map(denied).collect();
        if known.iter().all(Option::is_none) {
            return None;
        }
        // The others count as unused.
        let each = keys.iter().zip(known).map(|(it, known)| {
            known.map_or_else(|| it.policy.plan.unused_decision, |answer| answer.decision)
        });
        Answer::of_all(each.collect(), Source::Cache)
    }

    /// The fallback decision.
    fn fallback_answer(
        &self,
        keys: &[PlannedKey<'_>],
        error: &StoreError,
    ) -> Result<Answer, StoreError> {
        let operations: Vec<_> = keys.iter().map(PlannedKey::planned).collect();
        combined(self.fall_back_all(&operations, error)?, Source::Fallback)
    }

    /// Keys of several slots: in order, until one denies.
    async fn take_in_turn(
        &self,
        takes: &[PlannedKey<'_>],
        stores: bool,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let mut answers: Vec<Answer> = Vec::with_capacity(takes.len());
        if stores {
            for take in takes {
                match self.request(take.planned(), deadline).await {
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
            let peek = Operation::Peek(take.operation.cost());
            let records = stores && take.policy.records_denials;
            self.request(if records { take.planned() } else { take.with(peek) }, deadline).await
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
        let mut answer = combined(each.collect(), Source::Store)?;
        answer.source = answers.get(answer.key).map_or(Source::Store, |it| it.source);
        Ok(answer)
    }

    /// Refunds charges, once, and returns the state of each key. Fallback decisions and policies that record denials
    /// are not refunded.
    async fn refund_all(&self, takes: &[PlannedKey<'_>], answers: &[Answer]) -> Vec<Answer> {
        let back = takes.iter().zip(answers).map(async |(take, answer)| {
            let cost = take.operation.cost();
            if answer.source != Source::Store || cost == 0 || take.policy.records_denials {
                return answer.clone();
            }
            let refund = Operation::Refund(cost);
            let _forget = self.begin(&take.key, refund);
            let deadline = Deadline::after(self.context.options.deadline);
            match self.decide(take.with(refund), deadline).await {
                Ok(decision) => decision.into(),
                Err(error) => {
                    tracing::debug!(%error, "could not return charged units");
                    answer.clone()
                }
            }
        });
        join_all(back).await
    }
}

/// A request on several keys of one slot.
struct MultiKeyCommand<'a> {
    context: &'a Context,
    keys: &'a [PlannedKey<'a>],
    script: &'static Script,
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
        if self.module.choose(node) {
            return Ok(native::command_for_all(self.keys));
        }
        let around = self.at.or(requested.now).unwrap_or_else(|| self.context.now());
        let mut command = begin(self.script, whole);
        command.arg(self.keys.len());
        self.keys.iter().for_each(|it| {
            command.arg(&*it.key);
        });
        let own = self.keys.iter().flat_map(|it| &it.policy.plan.calendars);
        let (word, id) = match self.keys.first().map(|it| it.operation) {
            Some(Operation::Peek(_)) => ("peek", &b""[..]),
            Some(Operation::Hold { id, .. }) => ("hold", id),
            _ => ("take", &b""[..]),
        };
        command.arg(word).arg(boundaries(own.chain(&requested.calendars), around));
        command.arg(self.at.map(|at| at.as_micros().to_string()).unwrap_or_default());
        command.arg(id);
        for PlannedKey { policy, operation, .. } in self.keys {
            let ttl = policy.policy.check_operation(*operation)?;
            command.arg(operation.cost()).arg(&policy.plan.initial_state).arg(ttl);
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
            if elements.len() != 7 * self.keys.len() {
                return None;
            }
            elements.chunks(7).map(one_decision).collect()
        })
    }
}
