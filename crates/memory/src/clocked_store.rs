//! The table with a clock: a store that needs no time from its callers.

use std::{fmt::Debug, ops::ControlFlow, ptr};

use sluicegate_core::{
    Answer, Applied, Clock, Decision, KeyedOperation, Operation, OperationError, PreparedPolicy,
    ReadEntry, Request, Store, StoreError, StoreStatus,
};

use crate::{MemoryStore, NumberedPolicy, SystemClock};

/// A [`MemoryStore`] with its clock, which answers every operation now. The clock is read once for each operation, or
/// for each batch.
///
/// ```
/// use sluicegate_core::{Clock, ManualClock, Operation, PreparedPolicy, Timestamp};
/// use sluicegate_memory::{ClockedStore, MemoryStore};
///
/// let store = ClockedStore::new(MemoryStore::new(), ManualClock::new(Timestamp::EPOCH));
/// let policy: PreparedPolicy = "gcra:1/1s:burst=1".parse()?;
///
/// assert!(store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// assert!(!store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// store.clock().advance(std::time::Duration::from_secs(1));
/// assert!(store.decide(b"user7", &policy, Operation::Take(1))?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct ClockedStore<C = SystemClock> {
    store: MemoryStore,
    clock: C,
}

impl<C: Clock> ClockedStore<C> {
    /// `store`, in the time of `clock`.
    #[must_use]
    pub const fn new(store: MemoryStore, clock: C) -> Self {
        Self { store, clock }
    }

    /// The store without its clock.
    #[must_use]
    pub const fn store(&self) -> &MemoryStore {
        &self.store
    }

    /// The clock.
    #[must_use]
    pub const fn clock(&self) -> &C {
        &self.clock
    }

    /// Applies `operation` to `key`: [`Store::apply`] without the other errors of stores.
    ///
    /// # Errors
    /// As [`MemoryStore::apply`].
    #[inline(always)]
    pub fn decide(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Decision, OperationError> {
        self.decide_as(key, policy, operation)
    }

    /// Applies independent operations at one time, in order, and passes each with its result to `answer`, until that breaks:
    /// [`Store::apply_many`] without its results in memory. The slots of later ones are prefetched while one is decided.
    #[inline(always)]
    pub fn apply_each<'a>(
        &self,
        operations: &'a [KeyedOperation<'a>],
        mut answer: impl FnMut(
            &'a KeyedOperation<'a>,
            Result<Decision, OperationError>,
        ) -> ControlFlow<()>,
    ) {
        let (store, now) = (&self.store, self.clock.now());
        let mut last: Option<(&PreparedPolicy, &NumberedPolicy)> = None;
        store.for_each_hash(
            operations,
            |it| it.key,
            |it, hash| {
                // Most operations of a batch have the policy of the one before.
                if !last.is_some_and(|last| ptr::eq(last.0, it.policy)) {
                    last = store.attached(it.policy, || now).map(|attached| (it.policy, attached));
                }
                let operation = it.operation;
                // The call is written twice, so that the decision is not copied.
                match last {
                    Some((_, policy)) => {
                        answer(it, store.apply_hashed::<false, _>(hash, policy, now, operation))
                    }
                    None => answer(it, store.apply_unattached(hash.0, it.policy, now, operation)),
                }
            },
        );
    }

    #[inline(always)]
    fn decide_as<E: From<OperationError>>(
        &self,
        key: &[u8],
        policy: &PreparedPolicy,
        operation: Operation,
    ) -> Result<Decision, E> {
        // Before the clock, too: see `apply_by`.
        match self.store.attached(policy, || self.clock.now()) {
            Some(policy) => self.store.apply_by(key, policy, &self.clock, operation),
            None => {
                let (hash, now) = (self.store.hash(key), self.clock.now());
                Ok(self.store.apply_unattached(hash, policy, now, operation)?)
            }
        }
    }
}

impl<C: Clock + Debug + Send + Sync> Store for ClockedStore<C> {
    type Error = StoreError;

    #[inline(always)]
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        Applied::Now(match request.single() {
            Some(KeyedOperation { key, policy, operation }) => {
                self.decide_as(key, policy, operation).map(Answer::from)
            }
            None => {
                let answer = self.store.apply_all(request, self.clock.now());
                answer.map_err(StoreError::from)
            }
        })
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        let mut answers = Vec::with_capacity(operations.len());
        self.apply_each(operations, |_, decision| {
            answers.push(decision.map(Answer::from).map_err(StoreError::from));
            ControlFlow::Continue(())
        });
        Applied::Now(answers)
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        let now = self.clock.now();
        // The entry is not copied, because it may be large.
        if self.store.with_live_entry(key, now, |entry| read(Some(entry), now)).is_none() {
            read(None, now);
        }
        Applied::Now(Ok(()))
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::Now(Ok(self.store.reset(key, self.clock.now())))
    }

    fn prefetch(&self, key: &[u8]) {
        self.store.prefetch(key);
    }

    fn status(&self) -> StoreStatus {
        StoreStatus::Local(self.store.usage())
    }
}
