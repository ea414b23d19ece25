//! Decisions: by a block of an operator, otherwise by the store. The only caller of the store.
//!
//! Every protocol decides here, because a blocked key is denied on all of them. Requests that wait for their key are in queues that
//! all workers share.

use std::{
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;
use sluicegate_core::{
    Answer, Applied, Clock as _, Decision, Entry, KeyedOperation, OnError, Operation,
    OperationError, Policy, PolicySettings, PreparedPolicy, Request, RequestError, Source,
    StoreError, StoreStatus, Timestamp, reached,
    wait::{self, Event, Step, Ticket, Waiter},
};
use sluicegate_holds::apply_cancellable;
use sluicegate_rules::Match;
use tokio::{runtime::Handle, sync::Notify, task::yield_now};

use crate::{
    DashboardMode,
    budgets::turn::{TURN, Turn, Turns},
    clock::{self, ServerClock, call_at},
    decide::blocks::Blocks,
    denial_log::DenialLog,
    key_display::KeyDisplay,
    policies::rule_store::{RuleStore, with_settings},
    store::{
        ServerStore,
        open::{LocalStore, OpenStore},
    },
};

pub(crate) mod blocks;
mod denial_facts;
mod evaluate;

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
    /// How keys are shown.
    pub(crate) display: Arc<KeyDisplay>,
    /// The log of denials, if there is one.
    pub(crate) denial_log: Option<Arc<DenialLog>>,
    /// Whether requests may have spans.
    pub(crate) has_spans: bool,
    /// The fallback while the store is unavailable, and the lease, unless a rule sets its own.
    pub(crate) defaults: PolicySettings,
}

impl Decider {
    pub(crate) fn new(
        OpenStore { store, local }: OpenStore,
        rules: Arc<RuleStore>,
        clock: ServerClock,
        defaults: PolicySettings,
    ) -> Self {
        let (blocks, queues) = (Blocks::default(), WaitQueues::default());
        let runtime = Handle::try_current().ok();
        let display = Arc::new(KeyDisplay::new(DashboardMode::NoKeys));
        let (denial_log, has_spans) = (None, false);
        Self {
            store,
            local,
            runtime,
            rules,
            clock,
            blocks,
            queues,
            display,
            denial_log,
            has_spans,
            defaults,
        }
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

    /// Gives the store back what this process holds of its units.
    pub(crate) async fn close(&self) {
        self.store.close().await;
    }

    /// Prepares `policy` for requests that no rule applies to, with a lease of `lease` units, or that of the server if it
    /// is 0.
    pub(crate) fn prepare(&self, policy: &Policy, lease: u32) -> PreparedPolicy {
        let lease = if lease > 0 { lease } else { self.defaults.lease };
        with_settings(policy, self.defaults.on_error, lease)
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
        let reason = status.unavailable.filter(|_| self.defaults.on_error == OnError::Deny)?;
        Some(format!(
            "the store is unavailable, and requests are denied (on_error: deny): {reason}"
        ))
    }

    /// The denial of an operation on a blocked key.
    #[inline]
    fn blocked(&self, it: &KeyedOperation<'_>, now: Timestamp) -> Option<Answer> {
        let decision = self.blocks.denial(it.key, it.policy.policy(), it.operation, now)?;
        Some(Answer::new(decision, self.block_source()))
    }

    /// The source of denials of blocked keys: a remote store does not know them.
    const fn block_source(&self) -> Source {
        if self.is_local() { Source::Store } else { Source::Cache }
    }

    /// Decides a request, and wakes the requests that may pass now.
    #[inline]
    pub(crate) fn decide<'a>(
        &'a self,
        request: Request<'a>,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        let future = match self.decide_without_wake(request, now) {
            Applied::Now(answer) => {
                self.wake(request, &answer);
                return Applied::Now(answer);
            }
            Applied::Later(future) => future,
        };
        Applied::later(async move {
            let answer = future.await;
            self.wake(request, &answer);
            answer
        })
    }

    /// Decides a request that waits: it wakes others itself, and may be dropped.
    pub(crate) fn decide_queued<'a>(
        &'a self,
        request: Request<'a>,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        match request.single() {
            Some(it) if self.blocked(&it, now).is_none() => {
                call_at(now, || apply_cancellable(&self.store, it, self.runtime.as_ref()))
            }
            _ => self.decide_without_wake(request, now),
        }
    }

    /// Decides a request. A blocked key opens no holds, but settles those that are open; it denies all keys of its request.
    #[inline]
    fn decide_without_wake<'a>(
        &'a self,
        request: Request<'a>,
        now: Timestamp,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        match request.single() {
            Some(it) => match self.blocked(&it, now) {
                Some(answer) => Applied::Now(Ok(answer)),
                None => call_at(now, || self.store.apply(request)),
            },
            None if self.has_blocked(request, now) => {
                Applied::later(self.deny_blocked(request, now))
            }
            None => call_at(now, || self.store.apply(request)),
        }
    }

    fn has_blocked(&self, request: Request<'_>, now: Timestamp) -> bool {
        self.blocks.is_used()
            && request.operations().iter().any(|it| self.blocked(it, now).is_some())
    }

    /// The answer to a request on several keys of which some are blocked.
    async fn deny_blocked(
        &self,
        request: Request<'_>,
        now: Timestamp,
    ) -> Result<Answer, StoreError> {
        let operations = request.operations();
        let mut each = Vec::with_capacity(operations.len());
        for &KeyedOperation { key, policy, operation } in operations {
            let peek = Request::one(key, policy, Operation::Peek(operation.cost()));
            each.push(self.decide_without_wake(peek, now).await?.decision);
        }
        let answer = Answer::of_all(each, self.block_source());
        answer.ok_or_else(|| RequestError::MissingKey.into())
    }

    /// Wakes the requests that may pass after this one. A store whose reply is lost may have applied it.
    #[inline]
    pub(crate) fn wake(&self, request: Request<'_>, answer: &Result<Answer, StoreError>) {
        if self.queues.waiting() > 0
            && answer.as_ref().map_or_else(StoreError::is_unavailable, |_| true)
        {
            self.wake_all(request, answer.as_ref().is_ok_and(Answer::allowed));
        }
    }

    fn wake_all(&self, request: Request<'_>, is_allowed: bool) {
        let is_single = request.single().is_some();
        for &KeyedOperation { key, policy, operation } in request.operations() {
            // A remote store may have taken from some of several keys and given that back.
            let is_unknown = !is_single && !is_allowed && !self.is_local();
            match operation {
                Operation::Peek(_) => {}
                _ if is_unknown => self.queues.changed(key),
                _ => self.queues.applied(key, policy.policy(), operation, is_allowed),
            }
        }
    }

    /// Applies independent operations at one time, passes each with its result to `answer`, and wakes the requests that
    /// may pass now. It stops behind one on a key with many open holds, which may have taken long. The store must be local.
    #[inline]
    pub(crate) fn decide_batch<'a>(
        &self,
        operations: &'a [KeyedOperation<'a>],
        now: Timestamp,
        mut answer: impl FnMut(&'a KeyedOperation<'a>, Result<Decision, OperationError>),
    ) {
        let Some(local) = &self.local else { return };
        clock::set(now);
        let long = local.store().long_operations();
        let mut decided = 0;
        let mut answer = |operation, decision| {
            answer(operation, decision);
            decided += 1;
            match local.store().long_operations() == long {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        };
        if self.blocks.is_used() {
            for it in operations {
                let denial = self.blocks.denial(it.key, it.policy.policy(), it.operation, now);
                let decide = || local.decide(it.key, it.policy, it.operation);
                if answer(it, denial.map_or_else(decide, Ok)).is_break() {
                    break;
                }
            }
        } else {
            local.apply_each(operations, answer);
        }
        // After the decisions, because requests that begin to wait from now on see them.
        if self.queues.waiting() > 0 {
            for it in &operations[..decided] {
                self.queues.applied(it.key, it.policy.policy(), it.operation, true);
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
            self.wake((*it).into(), answer);
        }
        answers
    }

    /// The same with a store elsewhere, for keys that no request waits for.
    pub(crate) async fn decide_many_remote(
        &self,
        operations: &[KeyedOperation<'_>],
        now: Timestamp,
    ) -> Vec<Result<Answer, StoreError>> {
        if !self.blocks.is_used() {
            return call_at(now, || self.store.apply_many(operations)).await;
        }
        let denials: Vec<_> = operations.iter().map(|it| self.blocked(it, now)).collect();
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
        for &operation in operations {
            start = self.next_turn(turns, &mut turn, start).await;
            answers.push(self.decide(operation.into(), now).await);
        }
        answers
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
        call_at(now, || self.store.apply(Request::one(key, policy, Operation::Peek(cost))))
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
        if call_at(now, || self.store.apply(Request::one(key, policy, refund))).now().is_some() {
            return;
        }
        let Some(runtime) = &self.runtime else { return };
        let (store, key, policy) =
            (Arc::clone(&self.store), Box::<[u8]>::from(key), policy.clone());
        runtime.spawn(async move {
            if let Err(error) =
                call_at(now, || store.apply(Request::one(&key, &policy, refund))).await
            {
                tracing::debug!(%error, "could not return unused units");
            }
        });
    }
}

type Queues = wait::WaitQueues<Arc<[u8]>, Arc<Notify>>;

// The wait queues that all workers share.

/// The waiting requests of all keys.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<Queues>,
    /// Number of waiting requests, to check without a lock that there is none.
    waiting: AtomicUsize,
}

impl WaitQueues {
    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// The next step of a request, which `woken` wakes.
    pub(crate) fn poll(
        &self,
        waiter: &mut Waiter<Arc<[u8]>>,
        now: Timestamp,
        event: Event,
        woken: &Arc<Notify>,
    ) -> Step {
        let mut queues = self.queues.lock();
        let polled = queues.poll(waiter, now, event, || Arc::clone(woken));
        polled.wake.into_iter().for_each(|head| wake(&mut queues, Some(head)));
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        polled.step
    }

    /// Removes a request. Returns the refund that is to be applied.
    pub(crate) fn remove(&self, waiter: &mut Waiter<Arc<[u8]>>) -> Option<Operation<'static>> {
        let mut queues = self.queues.lock();
        let left = queues.remove(waiter);
        left.wake.into_iter().for_each(|head| wake(&mut queues, Some(head)));
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        left.refund
    }

    /// An operation was applied to `key`, and allowed or not: requests that wait for it may now pass.
    pub(crate) fn applied(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
        is_allowed: bool,
    ) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.applied(key, policy, operation, is_allowed);
            wake(&mut queues, head);
        }
    }

    /// The usage of `key` may be lower than before.
    pub(crate) fn changed(&self, key: &[u8]) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.changed(key);
            reached!(WaiterWokenByReset if head.is_some());
            wake(&mut queues, head);
        }
    }
}

/// Each request leaves its queue when its future is dropped.
#[cfg(debug_assertions)]
impl Drop for WaitQueues {
    fn drop(&mut self) {
        let waiting = self.queues.get_mut().waiting();
        assert!(waiting == 0 || std::thread::panicking(), "a request waits that no task polls");
    }
}

fn wake(queues: &mut Queues, ticket: Option<Ticket>) {
    if let Some(woken) = ticket.and_then(|ticket| queues.data(ticket)) {
        woken.notify_one();
    }
}

#[cfg(test)]
mod tests;
