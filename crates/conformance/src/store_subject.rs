//! Adapts any store with a test clock to [`Subject`].

use std::{fmt, sync::Arc};

use sluicegate_core::{
    Applied, BoxFuture, KeyedOperation, ManualClock, Operation, PreparedPolicy, Request, Source,
    Store,
};

use crate::{Answer, Invocation, MultiKeySubject, Subject};

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

    /// The answer to operations that are all applied or none, without its source.
    fn decide(&self, operations: &[KeyedOperation<'_>]) -> Result<sluicegate_core::Answer, String> {
        let request = Request::all(operations).map_err(|error| error.to_string())?;
        let answer = self.wait(self.store.apply(request));
        let mut answer = answer.map_err(|error| error.to_string())?;
        answer.source = Source::Store;
        Ok(answer)
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
            self.wait(self.store.apply(Request::one(key, policy, operation)))
        };
        answer.map(|answer| answer.decision).map_err(|error| error.to_string())
    }
}

/// A take of several keys comes after a peek that must decide alike.
impl<S: Store> MultiKeySubject for StoreSubject<S> {
    fn apply_all(
        &mut self,
        invocations: &[Invocation<'_>],
    ) -> Result<sluicegate_core::Answer, String> {
        invocations.iter().for_each(|it| self.clock.set(it.now));
        let policies: Vec<_> =
            invocations.iter().map(|it| PreparedPolicy::new(it.policy)).collect();
        let operations = invocations.iter().zip(&policies);
        let operations: Vec<_> = operations
            .map(|(&Invocation { key, operation, .. }, policy)| KeyedOperation {
                key,
                policy,
                operation,
            })
            .collect();
        let peeks = operations.iter().filter_map(|it| match it.operation {
            Operation::Take(cost) => {
                Some(KeyedOperation { operation: Operation::Peek(cost), ..*it })
            }
            _ => None,
        });
        let peeks: Vec<_> = peeks.collect();
        let peek = (!peeks.is_empty()).then(|| self.decide(&peeks)).transpose()?;
        let answer = self.decide(&operations)?;
        match peek {
            Some(peek) if peek.allowed() != answer.allowed() => {
                Err(format!("peek: {peek:?}; take: {answer:?}"))
            }
            _ => Ok(answer),
        }
    }
}

impl<S: fmt::Debug> fmt::Debug for StoreSubject<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("StoreSubject").field("store", &self.store).finish_non_exhaustive()
    }
}
