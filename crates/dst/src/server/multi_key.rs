//! Checks of decisions on several keys, and of requests that wait for these.

use std::time::Duration;

use sluicegate_conformance::OracleSubject;
use sluicegate_core::{
    Decision, HoldOperation, MultiKeyDecision, Operation, Outcome, Retry, Timestamp,
};

use super::{
    command::{Command, hold_id},
    ledger::{Key, Ledger, PendingCommand, WaitState},
    received::Received,
    reply::Reply,
    waiters::TOLERANCE,
};
use crate::{
    oracle::{decide, decide_denied},
    plan::MultiKey,
    redis_model::{ScriptCall, ScriptOperation},
};

/// Keys, each with the units that a request takes or holds.
type Takes<'a> = &'a [(usize, u32)];
/// A key, its state after a decision, and the decision.
type KeyDecision = (usize, OracleSubject, Result<Decision, String>);

impl Ledger {
    /// The decision of the oracle on each of the keys.
    fn decide_all(
        &self,
        operation: MultiKey,
        takes: Takes<'_>,
        now: Timestamp,
    ) -> Vec<KeyDecision> {
        let id = if let MultiKey::Hold(id, _) = operation { hold_id(id) } else { Vec::new() };
        let on_key = |cost| match operation {
            MultiKey::Hold(_, ttl) => {
                let ttl = Some(Duration::from_millis(ttl));
                ScriptOperation::OnHold(HoldOperation::Hold { id: &id, cost, ttl })
            }
            MultiKey::Take | MultiKey::Peek => ScriptOperation::OnKey(Operation::Take(cost)),
        };
        let mut decided = Vec::new();
        for decides in [decide, decide_denied] {
            decided.clear();
            for &(key, cost) in takes {
                let Key { policy, state, .. } = &self.keys[key];
                let mut state = state.clone();
                let call = ScriptCall { policy: policy.policy(), operation: on_key(cost) };
                let decision = decides(&mut state, call, now);
                decided.push((key, state, decision));
            }
            if all_allow(&decided) {
                break;
            }
        }
        decided
    }

    pub(super) fn check_all(
        &mut self,
        operation: MultiKey,
        takes: Takes<'_>,
        sent: &PendingCommand,
        received: &Received,
        now: Timestamp,
    ) {
        let decided = self.decide_all(operation, takes, now);
        let decisions: Result<Vec<_>, _> = decided.iter().map(|it| it.2.clone()).collect();
        let expected = decisions.ok().and_then(MultiKeyDecision::of);
        let reply = &received.reply;
        let is_right = match (reply, &expected) {
            (Reply::MultiKey { decision, key, each }, Some(expected)) => {
                *decision == expected.decision.to_integers()
                    && i64::try_from(expected.key) == Ok(*key)
                    && each.iter().copied().eq(expected.each.iter().map(Decision::to_integers))
            }
            (Reply::Error(_), None) => return,
            _ => false,
        };
        let binding = expected.as_ref().and_then(|it| takes.get(it.key)).map_or(0, |it| it.0);
        // The head speaks of the binding key alone.
        let bound = expected.as_ref().and_then(|it| it.each.get(it.key));
        self.check_head(received, binding, bound, false);
        if !is_right {
            return self.violate(format_args!(
                "exactness: {operation:?} of {takes:?} at {now}: {reply:?}, but the oracle decides {expected:?}"
            ));
        }
        let may_pass = expected.is_some_and(|it| {
            matches!(it.decision.outcome, Outcome::Deny { retry: Retry::After(_) })
        });
        let waits_until = sent.waiting.as_ref().map(|it| it.deadline);
        let deadline = waits_until.unwrap_or(now + sent.command.timeout());
        if may_pass && !self.is_stopping && now + Duration::from_millis(TOLERANCE) < deadline {
            self.violate(format_args!(
                "waiting: {:?} is denied at {now}, before {deadline}",
                sent.command
            ));
        }
        for (key, state, _) in decided {
            self.keys[key].state = state;
        }
    }

    /// Requests for several keys that wait, with their connections.
    fn multi_key_waiters(&self) -> impl Iterator<Item = (usize, MultiKey, Takes<'_>, &WaitState)> {
        let open = self.connections.iter().enumerate().filter(|it| !it.1.has_ended);
        open.filter_map(|(number, connection)| match connection.sent.front()? {
            PendingCommand { command: Command::All { operation, takes, .. }, waiting, .. } => {
                Some((number, *operation, &**takes, waiting.as_ref()?))
            }
            PendingCommand { .. } => None,
        })
    }

    /// Whether a request waits for this key and others. It may be ahead of any that waits for this key alone.
    pub(super) fn waits_for_several(&self, key: usize) -> bool {
        self.multi_key_waiters().any(|it| it.2.iter().any(|take| take.0 == key))
    }

    /// Checks that no request for several keys waits longer than it wanted to, nor when it is the only one that waits for
    /// any of them and passes.
    pub(super) fn check_multi_key_waiters(&mut self, now: Timestamp, millis: u64) {
        let mut problem = None;
        let mut could_pass = Vec::new();
        for (number, operation, takes, waiting) in self.multi_key_waiters() {
            if now.since(waiting.deadline) > Duration::from_millis(TOLERANCE) {
                problem.get_or_insert(format!("{takes:?}, {waiting:?} still waits at {now}"));
            }
            let is_other = |other: usize, others: Takes<'_>| {
                other != number && others.iter().any(|it| takes.iter().any(|take| take.0 == it.0))
            };
            let is_alone = !self.multi_key_waiters().any(|it| is_other(it.0, it.2))
                && takes.iter().all(|it| self.waiters(it.0).next().is_none());
            let since = (is_alone && all_allow(&self.decide_all(operation, takes, now)))
                .then(|| waiting.could_pass_since.unwrap_or(millis));
            if since.is_some_and(|since| millis - since > TOLERANCE) {
                problem.get_or_insert(format!("{takes:?}, {waiting:?} could pass and waits"));
            }
            could_pass.push((number, since));
        }
        for (number, since) in could_pass {
            let front = self.connections[number].sent.front_mut();
            if let Some(waiting) = front.and_then(|it| it.waiting.as_mut()) {
                waiting.could_pass_since = since;
            }
        }
        if let Some(problem) = problem {
            self.violate(format_args!("waiting: {problem}"));
        }
    }
}

fn all_allow(decided: &[KeyDecision]) -> bool {
    decided.iter().all(|it| it.2.as_ref().is_ok_and(Decision::allowed))
}
