//! Checks of decisions on several keys.

use sluicegate_conformance::Invocation;
use sluicegate_core::{
    Answer, Decision, KeyedOperation, OnError, Operation, Outcome, Retry, Source, StoreError,
    Timestamp,
};

use super::{
    checks::{CLOCK_ERROR, CheckState, Checks, TIMER_RESOLUTION_MS},
    key_state::{AppliedMultiKey, KeysWithCosts},
};

/// A request on several keys with its answer.
#[derive(Debug)]
pub(crate) struct AnsweredMultiKey<'a> {
    pub(crate) process: usize,
    pub(crate) number: u64,
    pub(crate) operations: &'a [KeyedOperation<'a>],
    /// The answer of the oracle to a peek at each key, if the answer is from the cache.
    pub(crate) by_oracle: Vec<Option<Decision>>,
    /// Whether the keys are in several slots, so that they are taken one after the other.
    pub(crate) in_turn: bool,
    /// The nodes that decide on the keys.
    pub(crate) nodes: Vec<usize>,
    pub(crate) sent: u64,
    pub(crate) paused: u64,
    pub(crate) result: &'a Result<Answer, StoreError>,
    pub(crate) local_time: Timestamp,
}

impl AnsweredMultiKey<'_> {
    /// Whether units were to be taken.
    pub(super) fn is_take(&self) -> bool {
        self.operations.iter().all(|it| matches!(it.operation, Operation::Take(_)))
    }
}

impl Checks {
    /// The server decided on several keys.
    pub(super) fn applied_multi_key(
        &self,
        process: usize,
        invocations: &[Invocation<'_>],
        decisions: &[Decision],
    ) {
        let at = self.time.millis();
        let state = &mut *self.state.lock();
        for it in invocations {
            if let Some(key) = state.keys.get_mut(it.key) {
                key.uses(it.policy, at, self.caching(), &state.paused_until);
            }
        }
        let keys: Vec<_> =
            invocations.iter().map(|it| (it.key.to_vec(), it.operation.cost())).collect();
        let Some(&Invocation { now: time, operation, .. }) = invocations.first() else { return };
        if let Operation::Take(_) = operation {
            let requested = state.requested_multi_key.entry((process, keys.clone())).or_default();
            match requested.checked_sub(1) {
                Some(left) => *requested = left,
                None => {
                    let what = format_args!(
                        "exactness: {invocations:?} of process {process} are applied twice"
                    );
                    return state.violate(at, what);
                }
            }
        }
        let oldest = at.saturating_sub(10_000);
        state.multi_key.retain(|it| it.at >= oldest);
        let each = decisions.to_vec();
        state.multi_key.push(AppliedMultiKey { process, at, time, keys, each });
    }

    /// A client sends a process a request for several keys.
    pub(crate) fn requested_multi_key(
        &self,
        process: usize,
        operations: &[KeyedOperation<'_>],
        in_turn: bool,
    ) {
        if !matches!(operations, [KeyedOperation { operation: Operation::Take(_), .. }, ..]) {
            return;
        }
        let takes: KeysWithCosts =
            operations.iter().map(|it| (it.key.to_vec(), it.operation.cost())).collect();
        let state = &mut *self.state.lock();
        if in_turn {
            return state.requested_in_turn(process, &takes);
        }
        *state.requested_multi_key.entry((process, takes)).or_default() += 1;
    }

    /// A client got an answer about several keys.
    pub(crate) fn answered_multi_key(&self, answered: &AnsweredMultiKey<'_>) {
        let now = self.time.millis();
        if answered.result.as_ref().map_or(true, |answer| answer.source == Source::Fallback) {
            let state = &mut *self.state.lock();
            answered.nodes.iter().for_each(|node| state.notice(now, answered.process, *node));
        }
        let took = now - answered.sent;
        // Refunds after a denial have a deadline of their own.
        let deadlines = if answered.in_turn { 2 } else { 1 };
        let most = deadlines * (self.deadline + TIMER_RESOLUTION_MS) + answered.paused;
        let problem = match answered.result {
            _ if took > most => Some("liveness: an answer after the deadline"),
            Ok(answer) if answered.in_turn => {
                self.state.lock().check_in_turn(now, answered, answer, self.deadline)
            }
            Ok(answer) => self.check_multi_key(now, answered, answer),
            Err(StoreError::Timeout(_) | StoreError::Unavailable(_)) => {
                let mut policies = answered.operations.iter().map(|it| it.policy);
                let fails = policies.any(|it| it.settings().on_error == OnError::Fail);
                if !fails {
                    Some("exactness: an error in place of the fallback")
                } else if self.state.lock().is_calm_multi_key(now, answered, self.deadline) {
                    Some("liveness: an error without a fault")
                } else {
                    None
                }
            }
            Err(_) => Some("exactness: an error of another kind"),
        };
        if let Some(problem) = problem {
            self.violation(format_args!("{problem}: {answered:?}"));
        }
    }

    fn check_multi_key(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
    ) -> Option<&'static str> {
        let state = &mut *self.state.lock();
        *state.answers.entry((answered.number, answer.source.as_str())).or_default() += 1;
        let (is_take, allowed) = (answered.is_take(), answer.allowed());
        match answer.source {
            Source::Store => {
                let is_same = |((key, cost), it): (&(Vec<u8>, u32), &KeyedOperation<'_>)| {
                    key == it.key && *cost == it.operation.cost()
                };
                let found = state.multi_key.iter().position(|it| {
                    it.process == answered.process
                        && it.at >= answered.sent
                        && it.each == answer.each()
                        && it.keys.len() == answered.operations.len()
                        && it.keys.iter().zip(answered.operations).all(is_same)
                });
                let Some(index) = found else {
                    return Some("exactness: the server gave no such answer");
                };
                let applied = state.multi_key.remove(index);
                if is_take && allowed {
                    for (key, cost) in &applied.keys {
                        if let Some(key) = state.keys.get_mut(key) {
                            key.admitted.admit(applied.at, applied.time, (*cost).into());
                        }
                    }
                }
            }
            Source::Cache => return state.check_cached(now, answered, answer),
            Source::Fallback => {
                if state.is_calm_multi_key(now, answered, self.deadline) {
                    return Some("liveness: a fallback without a fault");
                }
                for &KeyedOperation { key, policy, operation } in answered.operations {
                    if let (OnError::Local(_), true, Some(key)) =
                        (policy.settings().on_error, is_take && allowed, state.keys.get_mut(key))
                    {
                        let meter = key.local.entry(answered.number).or_default();
                        meter.admit(now, answered.local_time, operation.cost().into());
                    }
                }
            }
            _ => return Some("exactness: an answer of an impossible source"),
        }
        None
    }
}

impl CheckState {
    /// The error in an answer from the cache, if there is one.
    pub(super) fn check_cached(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        answer: &Answer,
    ) -> Option<&'static str> {
        if answer.allowed() {
            return Some("exactness: the cache allows");
        }
        let ends = matches!(answer.outcome,
            Outcome::Deny { retry: Retry::After(after) } if after <= CLOCK_ERROR);
        let place = self.place(answered.process, answered.number);
        let may_deny =
            answered.operations.iter().zip(&answered.by_oracle).any(|(it, by_oracle)| {
                let loose_until = self.keys.get(it.key).map_or(0, |key| key.loose_until[place]);
                now <= loose_until || by_oracle.is_some_and(|it| !it.allowed())
            });
        (!may_deny && !ends).then_some("exactness: the cache denies what the oracle allows")
    }

    /// Whether an answer now must be one of the store. Keys whose slot moves have none if they are at two nodes. In several
    /// slots, they may need more redirections than there is time for.
    pub(super) fn is_calm_multi_key(
        &self,
        now: u64,
        answered: &AnsweredMultiKey<'_>,
        deadline: u64,
    ) -> bool {
        let is_moving = |key: &[u8]| {
            self.keys.get(key).is_some_and(|it| it.migrating_until >= answered.sent.max(1))
        };
        let has_time = answered.in_turn && now < answered.sent + deadline;
        self.is_calm_at(now, answered.process, answered.sent)
            && (has_time || !answered.operations.iter().any(|it| is_moving(it.key)))
    }
}
