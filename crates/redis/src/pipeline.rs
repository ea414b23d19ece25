//! Independent operations in one round trip per cluster slot.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use redis::Pipeline;
use sluicegate_core::{Answer, KeyedOperation, StoreError};

use crate::{
    PlannedOperation,
    decide::ForgetGuard,
    local::denial_cache::QueryToken,
    native,
    net::{node_connection::Deadline, topology::Topology},
    planned_policy::PlannedKey,
    reply::{ReplyKind, parse_script_reply},
    script_command::command,
    slot::slot,
    store::Inner,
};

/// An operation for the store, with its index in the batch.
struct PendingOperation<'a> {
    place: usize,
    planned: PlannedKey<'a>,
    token: QueryToken,
    _forget: Option<ForgetGuard<'a>>,
}

impl Inner {
    /// Applies several operations independently, and returns their answers in the same order.
    pub(crate) async fn send_many(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Vec<Result<Answer, StoreError>> {
        let deadline = Deadline::after(self.context.options.deadline);
        let now = self.context.now();
        let mut answers: Vec<Option<Result<Answer, StoreError>>> = vec![None; operations.len()];
        let mut slots: BTreeMap<u16, Vec<PendingOperation<'_>>> = BTreeMap::new();
        let alone = matches!(self.topology, Topology::One(_));
        for (place, &KeyedOperation { key, policy, operation }) in operations.iter().enumerate() {
            let planned = match self.key_of(key, operation) {
                Ok(key) => PlannedKey { key, policy: self.planned(policy), operation },
                Err(error) => {
                    answers[place] = Some(Err(error));
                    continue;
                }
            };
            if let Err(error) = planned.policy.policy.check_operation(operation) {
                answers[place] = Some(Err(error.into()));
                continue;
            }
            if let Some(answer) = self.cached_denial(planned.planned(), now) {
                answers[place] = Some(Ok(answer));
                continue;
            }
            self.local.follow_hold(planned.planned(), now);
            let forget = self.begin(&planned.key, operation);
            let token = self.denials.begin_query(&planned.key, now);
            let slot = if alone { 0 } else { slot(&planned.key) };
            let pending = PendingOperation { place, planned, token, _forget: forget };
            slots.entry(slot).or_default().push(pending);
        }
        let slots = slots.iter().map(|(slot, open)| self.apply_slot(*slot, open, deadline));
        for (place, answer) in join_all(slots).await.into_iter().flatten() {
            answers[place] = Some(answer);
        }
        let none = || Err(StoreError::Unavailable("the store did not reply".to_owned()));
        answers.into_iter().map(|answer| answer.unwrap_or_else(none)).collect()
    }

    /// Applies the operations of one slot.
    async fn apply_slot(
        &self,
        slot: u16,
        open: &[PendingOperation<'_>],
        deadline: Deadline,
    ) -> Vec<(usize, Result<Answer, StoreError>)> {
        let all: Vec<_> = open.iter().collect();
        let mut parsed = self.send_slot(slot, &all, false, deadline).await;
        // Sends commands again that the server did not have, in the same order.
        let (again, unknown): (Vec<_>, Vec<_>) = open
            .iter()
            .zip(&mut parsed)
            .filter(|(_, parsed)| {
                matches!(parsed, Ok(ReplyKind::NoScript | ReplyKind::NoModule { at_all: true }))
            })
            .unzip();
        if !again.is_empty() {
            let answers = self.send_slot(slot, &again, true, deadline).await;
            unknown.into_iter().zip(answers).for_each(|(parsed, answer)| *parsed = answer);
        }
        let answers = open.iter().zip(parsed).map(async |(open, parsed)| {
            (open.place, self.resolve_redirects(open, parsed, deadline).await)
        });
        join_all(answers).await
    }

    /// Sends one pipeline, and parses the reply to each of `open`. With `texts`, the first call of each script has
    /// its whole text.
    async fn send_slot(
        &self,
        slot: u16,
        open: &[&PendingOperation<'_>],
        texts: bool,
        deadline: Deadline,
    ) -> Vec<Result<ReplyKind, StoreError>> {
        let exchange = async {
            let node = self.topology.node(slot, deadline).await?;
            let native = !texts && node.has_module();
            let around = self.context.now();
            let mut pipeline = Pipeline::with_capacity(open.len());
            let mut sent = Vec::new();
            for PendingOperation { planned: PlannedKey { key, policy, operation }, .. } in open {
                let plan = &policy.plan;
                if native {
                    pipeline.add_command(native::command(plan, key, *operation)?);
                    continue;
                }
                let arguments = plan.arguments(*operation, around, None, &[])?;
                let sha1 = plan.script().sha1();
                let whole = texts && !sent.contains(&sha1);
                if whole {
                    self.context.counts.scripts_sent.one();
                    sent.push(sha1);
                }
                pipeline.add_command(command(plan, key, &arguments, whole));
            }
            let replies = node.commands(&pipeline, deadline).await;
            // Another node may hold the slot by now.
            let replies = replies.inspect_err(|_| self.topology.refresh())?;
            if replies.len() != open.len() {
                let (expected, found) = (open.len(), replies.len());
                let text = format!("unexpected replies: expected {expected}, found {found}");
                return Err(StoreError::Unavailable(text));
            }
            Ok((node, native, replies))
        };
        match exchange.await {
            Ok((node, native, replies)) => {
                let parse = |(open, reply): (&&PendingOperation<'_>, _)| {
                    let parsed = if native::is_without_scripts(reply) && node.without_scripts() {
                        ReplyKind::NoModule { at_all: false }
                    } else if native {
                        native::parse_reply(
                            &open.planned.policy.plan,
                            open.planned.operation,
                            reply,
                        )
                    } else {
                        parse_script_reply(&open.planned.policy.plan, open.planned.operation, reply)
                    };
                    self.follow(&node, &parsed, reply);
                    let decided = native && matches!(parsed, ReplyKind::Decided(_));
                    self.context.counts.module.add(decided.into());
                    Ok(parsed)
                };
                open.iter().zip(&replies).map(parse).collect()
            }
            Err(error) => open.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    /// The answer to one operation. Sends it again, alone, if it was not applied.
    async fn resolve_redirects(
        &self,
        open: &PendingOperation<'_>,
        parsed: Result<ReplyKind, StoreError>,
        deadline: Deadline,
    ) -> Result<Answer, StoreError> {
        let planned = open.planned.planned();
        let PlannedOperation { key, policy, operation } = planned;
        let is_hold = operation.id().is_some();
        let answer = match parsed {
            Ok(ReplyKind::Decided(decision)) if is_hold => {
                self.context.counts.store.one();
                self.record_usage(key, policy, &decision);
                Ok(decision.into())
            }
            Ok(ReplyKind::Decided(decision)) => Ok(self.decided(planned, open.token, decision)),
            Ok(ReplyKind::Failed(error)) | Err(error) if !error.is_unavailable() => Err(error),
            // It may be repeated.
            _ if is_hold => self.apply_hold(planned, deadline).await,
            Ok(ReplyKind::Failed(error)) | Err(error) => self.fall_back(planned, error),
            Ok(
                ReplyKind::NoScript
                | ReplyKind::NoModule { .. }
                | ReplyKind::Redirect { .. }
                | ReplyKind::Calendars { .. },
            ) => self.request(planned, deadline).await,
        };
        self.finish(key, operation, answer.is_ok());
        answer
    }
}
