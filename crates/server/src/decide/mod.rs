//! Decisions: by a block of an operator, otherwise by the store. The only caller of the store.
//!
//! Every protocol decides here, because a blocked key is denied on all of them.

pub(crate) mod blocks;
mod evaluate;
mod queues;

use std::sync::Arc;

use sluicegate_core::{
    Answer, Applied, Clock as _, Decision, Entry, HoldOperation, KeyedOperation, KeyedTake,
    MultiKeyAnswer, MultiKeyDecision, MultiKeyError, MultiKeyOperation, OnError, Operation,
    OperationError, Policy, PreparedPolicy, Source, StoreError, StoreStatus, Timestamp,
};
use sluicegate_rules::Match;
use tokio::{runtime::Handle, task::yield_now};

use crate::{
    budgets::turn::{TURN, Turn, Turns},
    clock::ServerClock,
    decide::{blocks::Blocks, queues::WaitQueues},
    policies::rule_store::RuleStore,
    store::{
        ServerStore,
        open::{LocalStore, OpenStore},
        request_clock::{self, call_at},
    },
};

/// Decides for all protocols, by the store, the clock, the rules in force, the keys that an operator has
/// blocked, and the requests that wait.
#[derive(Debug)]
pub(crate) struct Decider {
    store: Arc<ServerStore>,
    /// The store, if it is in this process: its batches are compiled into those of RESP (ADR 35).
    local: Option<Arc<LocalStore>>,
    /// The runtime of operations that no request waits for.
    runtime: Option<Handle>,
    /// The rules in force.
    pub(crate) rules: Arc<RuleStore>,
    pub(crate) clock: ServerClock,
    /// The keys that an operator has blocked.
    pub(crate) blocks: Blocks,
    /// Requests that wait for their key.
    pub(crate) queues: WaitQueues,
    /// The fallback while the store is unavailable, unless a rule sets its own.
    pub(crate) on_error: OnError,
}

impl Decider {
    pub(crate) fn new(
        OpenStore { store, local }: OpenStore,
        rules: Arc<RuleStore>,
        clock: ServerClock,
        on_error: OnError,
    ) -> Self {
        let (blocks, queues) = (Blocks::default(), WaitQueues::default());
        let runtime = Handle::try_current().ok();
        Self { store, local, runtime, rules, clock, blocks, queues, on_error }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    /// Whether a turn that began at `start` has taken so long that others should go first.
    #[inline]
    pub(crate) fn is_late(&self, start: Timestamp) -> bool {
        self.now() >= start + TURN
    }

    /// Whether the store is in this process, and answers every operation now.
    #[inline]
    pub(crate) const fn is_local(&self) -> bool {
        self.local.is_some()
    }

    /// How the store is doing.
    pub(crate) fn store_status(&self) -> StoreStatus {
        self.store.status()
    }

    /// Prepares `policy` for a request that no rule applies to.
    pub(crate) fn prepare(&self, policy: &Policy) -> PreparedPolicy {
        PreparedPolicy::new(policy).on_error(self.on_error)
    }

    /// Checks whether the store takes all keys of the enforced rules: its prefix is a part of each key.
    pub(crate) fn check_keys(&self, matches: &[Match<'_>]) -> Result<(), StoreError> {
        let enforced = matches.iter().filter(|it| !it.shadow);
        let mut charges = enforced.flat_map(|it| &it.charges);
        charges.try_for_each(|it| self.check_key(&it.key))
    }

    /// Checks whether the store takes `key`.
    pub(crate) fn check_key(&self, key: &[u8]) -> Result<(), StoreError> {
        self.store.check_key(key)
    }

    /// Why requests are denied whatever their limits say: the store is unavailable, and the fallback denies.
    pub(crate) fn not_ready(&self) -> Option<String> {
        let StoreStatus::Remote(status) = self.store.status() else { return None };
        let reason = status.unavailable.filter(|_| self.on_error == OnError::Deny)?;
        Some(format!(
            "the store is unavailable, and requests are denied (on_error: deny): {reason}"
        ))
    }

    /// The denial of an operation on a blocked key.
    #[inline]
    fn blocked(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        now: Timestamp,
    ) -> Option<Answer> {
        let decision = self.blocks.denial(key, policy.policy(), operation, now)?;
        Some(Answer { decision, source: self.block_source() })
    }

    /// The source of denials of blocked keys: a remote store does not know them.
    const fn block_source(&self) -> Source {
        if self.is_local() { Source::Store } else { Source::Cache }
    }

    /// Applies `operation` to `key`, and wakes the request that may pass now.
    #[inline]
    pub(crate) fn decide<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        let future = match self.decide_queued(key, policy, operation, now) {
            Applied::Now(answer) => {
                self.wake(key, policy, operation, &answer);
                return Applied::Now(answer);
            }
            Applied::Later(future) => future,
        };
        Applied::later(async move {
            let answer = future.await;
            self.wake(key, policy, operation, &answer);
            answer
        })
    }

    /// Applies `operation` of a request in the queue of `key`, which reads the answer itself.
    #[inline]
    pub(crate) fn decide_queued<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        match self.blocked(key, policy, operation, now) {
            Some(answer) => Applied::Now(Ok(answer)),
            None => call_at(now, || self.store.apply(key, policy, operation)),
        }
    }

    /// Wakes the request that may pass after an operation on `key`. A store whose reply is lost may have applied it.
    #[inline]
    fn wake(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
        answer: &Result<Answer, StoreError>,
    ) {
        if self.queues.waiting() > 0
            && answer.as_ref().map_or_else(StoreError::is_unavailable, |_| true)
        {
            self.queues.applied(key, policy.policy(), operation);
        }
    }

    /// Applies `operation` to a hold of `key`. A blocked key opens no holds, but settles those that are open.
    pub(crate) async fn decide_hold(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: HoldOperation<'_>,
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        if let HoldOperation::Hold { cost, .. } = operation
            && let Some(answer) = self.blocked(key, policy, Operation::Take(cost), now)
        {
            return Ok(answer);
        }
        let answer = call_at(now, || self.store.apply_hold(key, policy, operation)).await;
        match &answer {
            Ok(answer) if matches!(operation, HoldOperation::Hold { .. }) => {
                self.queues.held(key, policy.policy(), answer.decision.allowed());
            }
            // A settle frees units for those that wait.
            _ => self.queues.changed(key),
        }
        answer
    }

    /// Applies independent operations at one time, passes each with its result to `answer`, and wakes the requests that
    /// may pass now. The store must be local.
    #[inline]
    pub(crate) fn decide_batch<'a>(
        &self,
        operations: &'a [KeyedOperation<'a>],
        now: Timestamp,
        mut answer: impl FnMut(&'a KeyedOperation<'a>, Result<Decision, OperationError>),
    ) {
        let Some(local) = &self.local else { return };
        request_clock::set(now);
        if self.blocks.is_used() {
            for it in operations {
                let denial = self.blocks.denial(it.key, it.policy.policy(), it.operation, now);
                let decide = || local.decide(it.key, it.policy, it.operation);
                answer(it, denial.map_or_else(decide, Ok));
            }
        } else {
            local.apply_each(operations, answer);
        }
        // After the decisions, because requests that begin to wait from now on see them.
        if self.queues.waiting() > 0 {
            for it in operations {
                self.queues.applied(it.key, it.policy.policy(), it.operation);
            }
        }
    }

    /// Applies independent operations, in order and at one time. If the store is local, other requests go first
    /// whenever one of the `turns` is over.
    pub(crate) async fn decide_many(
        &self,
        turns: &Turns,
        operations: &[KeyedOperation<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, StoreError>> {
        if self.is_local() {
            return self.decide_in_turns(turns, operations, now).await;
        }
        let answers = self.decide_many_remote(operations, now).await;
        for (it, answer) in operations.iter().zip(&answers) {
            self.wake(it.key, it.policy, it.operation, answer);
        }
        answers
    }

    async fn decide_many_remote(
        &self,
        operations: &[KeyedOperation<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, StoreError>> {
        if !self.blocks.is_used() {
            return call_at(now, || self.store.apply_many(operations)).await;
        }
        let denial = |it: &KeyedOperation<'_>| self.blocked(it.key, it.policy, it.operation, now);
        let denials: Vec<_> = operations.iter().map(denial).collect();
        let open = operations.iter().zip(&denials).filter(|(_, denial)| denial.is_none());
        let open: Vec<_> = open.map(|(operation, _)| *operation).collect();
        let mut answers = call_at(now, || self.store.apply_many(&open)).await.into_iter();
        let none = || Err(StoreError::Settings("the store gave no answer".to_owned()));
        let merged = denials.into_iter().map(|denial| match denial {
            Some(answer) => Ok(answer),
            None => answers.next().unwrap_or_else(none),
        });
        merged.collect()
    }

    /// Lets others go first if `turn`, which began at `start`, is over. Returns when it began, or the next one.
    pub(crate) async fn next_turn<'a>(
        &self,
        turns: &'a Turns,
        turn: &mut Turn<'a>,
        start: Timestamp,
    ) -> Timestamp {
        let must_wait = turns.are_many() && !turn.is_in_lane();
        if !must_wait && !self.is_late(start) {
            return start;
        }
        // In the lane, as the rest of a pipeline is: otherwise each of many such requests would have a turn before the
        // sockets are polled again.
        if !turn.is_in_lane() {
            turn.lane().await;
        }
        yield_now().await;
        self.now()
    }

    async fn decide_in_turns(
        &self,
        turns: &Turns,
        operations: &[KeyedOperation<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, StoreError>> {
        let mut answers = Vec::with_capacity(operations.len());
        let (mut turn, mut start) = (Turn::new(turns), self.now());
        for &KeyedOperation { key, policy, operation } in operations {
            start = self.next_turn(turns, &mut turn, start).await;
            answers.push(self.decide(key, policy, operation, now).await);
        }
        answers
    }

    /// Takes from or holds units of several keys, of all of them or of none, or peeks, and wakes the requests that may
    /// pass now.
    pub(crate) async fn decide_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
        now: Timestamp,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let answer = self.decide_multi_key_queued(operation, takes, now).await;
        match &answer {
            Ok(answer) => self.wake_multi_key(operation, takes, answer.decision.allowed()),
            // A store whose reply is lost may have applied it.
            Err(error) if error.is_unavailable() => self.wake_multi_key(operation, takes, false),
            Err(_) => {}
        }
        answer
    }

    /// Wakes the requests that may pass after an operation on several keys.
    pub(crate) fn wake_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
        is_allowed: bool,
    ) {
        for &KeyedTake { key, policy, cost } in takes {
            match operation {
                MultiKeyOperation::Peek => {}
                // A remote store may have taken from some keys and given that back.
                _ if !is_allowed && !self.is_local() => self.queues.changed(key),
                MultiKeyOperation::Take => {
                    self.queues.applied(key, policy.policy(), Operation::Take(cost));
                }
                MultiKeyOperation::Hold { .. } => {
                    self.queues.held(key, policy.policy(), is_allowed);
                }
            }
        }
    }

    /// The same for a request that waits, which wakes others once, when it is answered. A blocked key denies all keys.
    pub(crate) async fn decide_multi_key_queued(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
        now: Timestamp,
    ) -> Result<MultiKeyAnswer, StoreError> {
        let is_blocked = |&KeyedTake { key, policy, cost }: &KeyedTake<'_>| {
            self.blocked(key, policy, Operation::Take(cost), now).is_some()
        };
        if !self.blocks.is_used() || !takes.iter().any(is_blocked) {
            return call_at(now, || self.store.apply_multi_key(operation, takes)).await;
        }
        let mut each = Vec::with_capacity(takes.len());
        for &KeyedTake { key, policy, cost } in takes {
            each.push(self.decide(key, policy, Operation::Peek(cost), now).await?.decision);
        }
        let taken = MultiKeyDecision::of(each).ok_or(MultiKeyError::MissingKey)?;
        Ok(MultiKeyAnswer { multi_key: taken, source: self.block_source() })
    }

    /// The result of `read` for the state of `key`, if it has any that has not recovered, and the time of the store.
    /// It may run under a lock: it must neither take long nor call the store.
    pub(crate) async fn read<R: Send>(
        &self,
        key: &[u8],
        now: Timestamp,
        read: impl FnOnce(&Entry, Timestamp) -> R + Send,
    ) -> Result<Option<R>, StoreError> {
        let (mut read, mut result) = (Some(read), None);
        let mut once = |entry: Option<&Entry>, now| {
            result = entry.and_then(|entry| Some(read.take()?(entry, now)));
        };
        call_at(now, || self.store.read(key, &mut once)).await?;
        Ok(result)
    }

    /// Peeks at `key`, blocked or not.
    pub(crate) fn peek<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        cost: u32,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        call_at(now, || self.store.apply(key, policy, Operation::Peek(cost)))
    }

    /// Resets `key`, and wakes the request that may pass now. Whether the key had state that had not recovered.
    pub(crate) async fn reset(&self, key: &[u8], now: Timestamp) -> Result<bool, StoreError> {
        let existed = call_at(now, || self.store.reset(key)).await;
        // A store whose reply is lost may have reset it.
        self.queues.changed(key);
        existed
    }

    /// Brings the state of `key` near, for an operation that follows soon.
    #[inline]
    pub(crate) fn prefetch(&self, key: &[u8]) {
        self.store.prefetch(key);
    }

    /// Refunds `cost` units to `key`, once. No request waits for it.
    pub(crate) fn refund_unused(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        cost: u32,
        now: Timestamp,
    ) {
        let refund = Operation::Refund(cost);
        if call_at(now, || self.store.apply(key, policy, refund)).now().is_some() {
            return;
        }
        let Some(runtime) = &self.runtime else { return };
        let (store, key, policy) =
            (Arc::clone(&self.store), Box::<[u8]>::from(key), policy.clone());
        runtime.spawn(async move {
            if let Err(error) = call_at(now, || store.apply(&key, &policy, refund)).await {
                tracing::debug!(%error, "could not return unused units");
            }
        });
    }
}

#[cfg(test)]
mod tests;
