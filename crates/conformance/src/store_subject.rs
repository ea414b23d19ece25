//! Adapts any store with a test clock to [`Subject`].

use std::{fmt, sync::Arc, time::Duration};

use sluicegate_core::{
    Applied, BoxFuture, KeyedOperation, KeyedTake, ManualClock, MultiKeyDecision,
    MultiKeyOperation, PreparedPolicy, Store, Timestamp,
};

use crate::{
    Answer, HoldInvocation, HoldSubject, Invocation, MultiKeyHoldSubject, MultiKeySubject,
    MultiKeyTake, Subject,
};

/// Runs a future to its end.
type BlockOn = Box<dyn Fn(BoxFuture<'_, ()>)>;

/// A [`Store`] under test. Its clock is set to the time of each invocation.
pub struct StoreSubject<S> {
    store: S,
    clock: Arc<ManualClock>,
    block_on: BlockOn,
}

impl<S: Store> StoreSubject<S> {
    /// Tests `store`, which reads `clock`; `block_on` runs the futures of a store that answers later.
    pub fn new(
        store: S,
        clock: Arc<ManualClock>,
        block_on: impl Fn(BoxFuture<'_, ()>) + 'static,
    ) -> Self {
        Self { store, clock, block_on: Box::new(block_on) }
    }

    fn apply_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        self.clock.set(now);
        let policies: Vec<_> = takes.iter().map(|it| PreparedPolicy::new(&it.1)).collect();
        let takes = takes.iter().zip(&policies);
        let takes: Vec<_> =
            takes.map(|(&(ref key, _, cost), policy)| KeyedTake { key, policy, cost }).collect();
        let answer = self.wait(self.store.apply_multi_key(operation, &takes));
        answer.map(|answer| answer.multi_key).map_err(|error| error.to_string())
    }

    /// The result of an operation, now or later.
    fn wait<T: Send>(&self, applied: Applied<'_, T>) -> T {
        match applied {
            Applied::Now(result) => result,
            Applied::Later(future) => {
                let mut result = None;
                (self.block_on)(Box::pin(async { result = Some(future.await) }));
                result.expect("`block_on` runs a future to its end")
            }
        }
    }
}

/// At every fourth microsecond, the operation is applied as a batch of one.
impl<S: Store> Subject for StoreSubject<S> {
    fn apply(&mut self, invocation: Invocation<'_>) -> Answer {
        let Invocation { key, policy, now, operation } = invocation;
        self.clock.set(now);
        let policy = &PreparedPolicy::new(policy);
        let answer = if now.as_micros() % 4 == 0 {
            let batch = [KeyedOperation { key, policy, operation }];
            let mut answers = self.wait(self.store.apply_many(&batch));
            assert_eq!(answers.len(), 1, "a batch of one has one answer");
            answers.remove(0)
        } else {
            self.wait(self.store.apply(key, policy, operation))
        };
        answer.map(|answer| answer.decision).map_err(|error| error.to_string())
    }
}

impl<S: Store> HoldSubject for StoreSubject<S> {
    fn apply_hold(&mut self, invocation: HoldInvocation<'_>) -> Answer {
        let HoldInvocation { key, policy, now, operation } = invocation;
        self.clock.set(now);
        let answer = self.wait(self.store.apply_hold(key, &PreparedPolicy::new(policy), operation));
        answer.map(|answer| answer.decision).map_err(|error| error.to_string())
    }
}

impl<S: Store> MultiKeySubject for StoreSubject<S> {
    fn take_multi_key(
        &mut self,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        let peek = self.apply_multi_key(MultiKeyOperation::Peek, takes, now)?;
        let take = self.apply_multi_key(MultiKeyOperation::Take, takes, now)?;
        if peek.decision.allowed() != take.decision.allowed() {
            return Err(format!("peek: {peek:?}; take: {take:?}"));
        }
        Ok(take)
    }
}

impl<S: Store> MultiKeyHoldSubject for StoreSubject<S> {
    fn hold_multi_key(
        &mut self,
        id: &[u8],
        ttl: Option<Duration>,
        takes: &[MultiKeyTake],
        now: Timestamp,
    ) -> Result<MultiKeyDecision, String> {
        self.apply_multi_key(MultiKeyOperation::Hold { id, ttl }, takes, now)
    }
}

impl<S: fmt::Debug> fmt::Debug for StoreSubject<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoreSubject").field("store", &self.store).finish_non_exhaustive()
    }
}
