//! Operations on holds: by the module if the node has it, otherwise by script.
//!
//! Each may be repeated: a hold whose id is open changes nothing, and a settle of an id that is not open charges nothing.
//! Therefore an operation whose reply was lost is sent again, until its deadline.

use std::sync::Arc;

use redis::{Cmd, Value};
use sluicegate_core::{
    Answer, Decision, HoldOperation, PreparedPolicy, Source, StoreError, Timestamp,
};

use crate::{
    PlannedPolicy,
    call::{ModuleUse, RequestedCalendars, StoreCommand},
    native,
    net::{
        context::Context,
        node_connection::{Deadline, NodeConnection},
    },
    reply::{ReplyKind, one_decision, parse_general},
    script_command::command,
    slot::slot,
    store::Inner,
};

/// Maximum number of times that an operation is sent.
pub(crate) const MAX_ATTEMPTS: usize = 3;

impl Inner {
    /// Applies an operation to a hold.
    pub(crate) async fn apply_hold(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: HoldOperation<'_>,
    ) -> Result<Answer, StoreError> {
        let (key, policy) = (self.key(key)?, self.planned(policy));
        let ttl = policy.policy.check_hold(&operation)?;
        let given = self.given_time();
        if !matches!(operation, HoldOperation::Hold { .. }) {
            self.local.follow_hold(&key, &policy, operation, self.context.now());
        }
        let deadline = Deadline::after(self.context.options.deadline);
        let mut attempt = 1;
        let error = loop {
            let command = HoldCommand {
                context: &self.context,
                key: &key,
                policy: &policy,
                operation,
                ttl,
                at: given,
                module: ModuleUse::new(given.is_some()),
            };
            let reply = {
                // A settle may have freed units, even if its reply was lost.
                let _forget = self.denials.forget_on_drop(&key);
                self.send(slot(&key), command, deadline).await
            };
            match reply {
                Ok(decision) => {
                    self.context.counts.store.one();
                    if given.is_none() {
                        self.record_usage(&key, &policy, &decision);
                    }
                    return Ok(Answer { decision, source: Source::Store });
                }
                Err(error) if error.is_unavailable() => {
                    if attempt == MAX_ATTEMPTS || given.is_some() || deadline.is_over() {
                        break error;
                    }
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        };
        match operation {
            HoldOperation::Hold { .. } => self.fall_back_hold(&key, &policy, operation, error),
            HoldOperation::Settle { .. } | HoldOperation::Renew { .. } => Err(error),
        }
    }

    /// Records the usage of a key in a reply about a hold, for the local fallback.
    pub(crate) fn record_usage(&self, key: &[u8], policy: &PlannedPolicy, decision: &Decision) {
        if policy.local.is_some() {
            let now = self.context.now();
            let token = self.denials.begin_query(key, now);
            self.denials.record(key, policy, 0, token, now, decision);
        }
    }
}

/// An operation on a hold.
struct HoldCommand<'a> {
    context: &'a Context,
    key: &'a [u8],
    policy: &'a PlannedPolicy,
    operation: HoldOperation<'a>,
    /// In microseconds.
    ttl: u64,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for HoldCommand<'_> {
    type Answer = Decision;
    // As for other operations.
    const CALENDARS: usize = 4;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        if self.module.choose(node) {
            return Ok(native::hold_command(&self.policy.plan, self.key, self.operation));
        }
        let around = requested.now.or(self.at).unwrap_or_else(|| self.context.now());
        let plan = &self.policy.plan;
        let arguments =
            plan.hold_arguments(self.operation, self.ttl, around, self.at, &requested.calendars);
        Ok(command(plan, self.key, &arguments, whole))
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind {
        if !self.module.is_native() {
            return parse_general(reply, one_decision);
        }
        self.module.follow(native::parse_decided(reply, one_decision), self.context)
    }
}
