//! A store that answers later, and is unavailable at times. It imports from `sluicegate` only, as one of a user does.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use sluicegate::{
    Answer, Applied, LocalLimiter, ManualClock, MultiKeyAnswer, Operation, PreparedPolicy, Store,
    StoreError,
    store::{HoldOperation, KeyedTake, MultiKeyOperation, ReadEntry, StoreStatus},
};

/// A store in this process that behaves as a remote one.
#[derive(Clone, Debug)]
pub(crate) struct SlowStore {
    local: LocalLimiter<ManualClock>,
    /// Polls of each operation before it is applied, and before its answer arrives.
    before: usize,
    after: usize,
    /// How many operations on holds are still unavailable.
    faults: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl SlowStore {
    pub(crate) fn new(local: LocalLimiter<ManualClock>, before: usize, after: usize) -> Self {
        Self { local, before, after, faults: Arc::default(), calls: Arc::default() }
    }

    /// Lets the next `count` operations on holds fail.
    pub(crate) fn fail(&self, count: usize) {
        self.faults.store(count, Relaxed);
    }

    /// Number of operations on holds.
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Relaxed)
    }

    fn later<'a, T: Send + 'a>(
        &'a self,
        apply: impl FnOnce() -> Result<T, StoreError> + Send + 'a,
    ) -> Applied<'a, Result<T, StoreError>> {
        self.paused(move || {
            self.calls.fetch_add(1, Relaxed);
            if self.faults.fetch_update(Relaxed, Relaxed, |it| it.checked_sub(1)).is_ok() {
                return Err(StoreError::Unavailable("no reply".to_owned()));
            }
            apply()
        })
    }

    fn paused<'a, T: Send + 'a>(&'a self, apply: impl FnOnce() -> T + Send + 'a) -> Applied<'a, T> {
        Applied::later(async move {
            pause(self.before).await;
            let result = apply();
            pause(self.after).await;
            result
        })
    }
}

/// Is pending for `polls` polls.
async fn pause(mut polls: usize) {
    std::future::poll_fn(|context| {
        if polls == 0 {
            return std::task::Poll::Ready(());
        }
        polls -= 1;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

impl Store for SlowStore {
    type Error = StoreError;

    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        self.paused(move || self.local.apply(key, policy, operation).now().unwrap())
    }

    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, StoreError>> {
        self.later(move || self.local.apply_hold(key, policy, operation).now().unwrap())
    }

    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, StoreError>> {
        self.later(move || self.local.apply_multi_key(operation, takes).now().unwrap())
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        self.local.read(key, read)
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Store::reset(&self.local, key)
    }

    fn status(&self) -> StoreStatus {
        self.local.status()
    }
}
