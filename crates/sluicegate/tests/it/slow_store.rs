//! A store that answers later, and is unavailable at times. It imports from `sluicegate` only, as one of a user does.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use sluicegate::{
    Answer, Applied, LocalLimiter, ManualClock, Request, Store, StoreError,
    store::{ReadEntry, StoreStatus},
};

/// A store in this process that behaves as a remote one.
#[derive(Clone, Debug)]
pub(crate) struct SlowStore {
    local: LocalLimiter<ManualClock>,
    /// Polls of each operation before it is applied, and before its answer arrives.
    before: usize,
    after: usize,
    /// How many operations on holds and on several keys are still unavailable.
    faults: Arc<AtomicUsize>,
    calls: Arc<AtomicUsize>,
}

impl SlowStore {
    pub(crate) fn new(local: LocalLimiter<ManualClock>, before: usize, after: usize) -> Self {
        Self { local, before, after, faults: Arc::default(), calls: Arc::default() }
    }

    /// Lets the next `count` operations on holds and on several keys fail.
    pub(crate) fn fail(&self, count: usize) {
        self.faults.store(count, Relaxed);
    }

    /// Number of operations on holds and on several keys.
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

    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let apply = move || self.local.apply(request).now().unwrap();
        match request.single() {
            Some(one) if one.operation.id().is_none() => self.paused(apply),
            _ => self.later(apply),
        }
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
