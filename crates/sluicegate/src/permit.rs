//! Guards of holds, which settle when they are dropped.

use std::{fmt, mem, sync::Arc, time::Duration};

use sluicegate_core::{
    Answer, Clock, HoldOperation, KeyedTake, MultiKeyAnswer, PreparedPolicy, Source, Store,
    StoreError,
};
use sluicegate_memory::{ClockedStore, SystemClock};
use tokio::{runtime::Handle, task::AbortHandle};

use crate::{
    Hold, MultiKeyHold,
    stored_hold::{AnyStore, StoredHold, random_id},
};

/// The permit of a [`LocalLimiter`](crate::LocalLimiter): the same calls without async and without errors.
pub type LocalPermit<C = SystemClock> = Permit<ClockedStore<C>>;

/// Units that are held until the permit is settled or dropped: a request in flight, a stream of tokens, a job.
///
/// A permit that is dropped is settled with the units that were held: rates are charged for all of them, and
/// `concurrency` limits, which charge nothing, have their room back. The same holds if a future that owns the permit is
/// cancelled.
///
/// A drop never blocks. With a store in this process, it settles at once. With a remote store, a task settles on the
/// tokio runtime that made the hold; it tries again while the store is unavailable, until the hold has expired.
/// Without a tokio runtime, or if the process ends, the hold expires after its lifetime and is charged in full.
///
/// ```
/// use sluicegate::{Hold, Limiter, PreparedPolicy};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let limiter = Limiter::in_memory();
/// let policy: PreparedPolicy = "concurrency:20000/30s,token-bucket:100000/1m".parse()?;
/// // A request to a language model: up to 4000 tokens, of which it uses 2310.
/// let Hold::Allowed(permit) = limiter.hold("team7", &policy, 4000, None).await? else {
///     panic!("the key is unused");
/// };
/// assert_eq!(permit.answer().remaining, 16_000);
/// assert_eq!(permit.settle(2310).await?.remaining, 20_000);
/// # Ok::<(), sluicegate::Error>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a permit that is dropped is settled"]
pub struct Permit<S = AnyStore>
where
    S: Store<Error = StoreError> + ?Sized + 'static,
{
    // Dropped before the guard settles.
    renewal: Option<Renewal>,
    guard: HoldGuard<S>,
    answer: Answer,
}

impl<S: Store<Error = StoreError> + ?Sized> Permit<S> {
    /// The decision that allowed the hold.
    pub const fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The id of the hold: 1 to 64 bytes.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.guard.hold.id
    }

    /// Renews the hold three times in its lifetime, by a task, until the permit is settled or dropped: for work that may
    /// take longer than the lifetime. If the process ends, the hold still expires.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub fn keep_alive(mut self) -> Self {
        let hold = Arc::clone(&self.guard.hold);
        let task = tokio::spawn(async move { hold.keep_alive().await });
        self.renewal = Some(Renewal(task.abort_handle()));
        self
    }
}

impl Permit {
    /// Ends the hold, and charges rates for the `used` units, which may be more or less than were held. 0 cancels.
    ///
    /// The answer is denied if the hold has expired: it was charged in full, and nothing more is charged. A future that
    /// is dropped while it waits settles in the background.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] or [`StoreError::Timeout`]. The settle is then repeated in the background.
    pub async fn settle(self, used: u32) -> Result<Answer, StoreError> {
        let Self { renewal, mut guard, .. } = self;
        drop(renewal);
        guard.used = Some(used);
        let answer = guard.hold.settle(Some(used)).await?;
        guard.disarm();
        Ok(answer)
    }

    /// Prolongs the hold: it then expires after its lifetime from now. The answer is denied if it has expired already.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] or [`StoreError::Timeout`].
    pub async fn renew(&self) -> Result<Answer, StoreError> {
        self.guard.hold.renew().await
    }
}

impl<C: Clock + fmt::Debug + Send + Sync> LocalPermit<C> {
    /// Ends the hold, and charges rates for the `used` units, which may be more or less than were held. 0 cancels.
    ///
    /// The answer is denied if the hold has expired: it was charged in full, and nothing more is charged.
    pub fn settle(self, used: u32) -> Answer {
        let Self { renewal, mut guard, .. } = self;
        drop(renewal);
        guard.disarm();
        guard.hold.decide(HoldOperation::Settle { id: &guard.hold.id, used: Some(used) })
    }

    /// Prolongs the hold: it then expires after its lifetime from now. The answer is denied if it has expired already.
    pub fn renew(&self) -> Answer {
        let hold = &self.guard.hold;
        hold.decide(HoldOperation::Renew { id: &hold.id, ttl: hold.ttl })
    }
}

impl<S: Store<Error = StoreError> + ?Sized> fmt::Debug for Permit<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { renewal, guard, answer } = self;
        formatter
            .debug_struct("Permit")
            .field("policy", &guard.hold.policy)
            .field("answer", answer)
            .field("is_kept_alive", &renewal.is_some())
            .finish_non_exhaustive()
    }
}

/// A task that renews a hold. Dropping it stops the task.
struct Renewal(AbortHandle);

impl Drop for Renewal {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A hold that may be open in the store. Dropping it settles, unless it is disarmed.
pub(crate) struct HoldGuard<S: Store<Error = StoreError> + ?Sized + 'static> {
    hold: Arc<StoredHold<S>>,
    /// Units to settle; `None`: as many as are held.
    used: Option<u32>,
    is_armed: bool,
    /// Whether the store made the hold, so that a settle that fails is repeated.
    is_made: bool,
}

impl<S: Store<Error = StoreError> + ?Sized> HoldGuard<S> {
    /// The guard of a hold that is about to be made, under `id` or a random one. Dropping it cancels the hold, because
    /// the store may have made it; but a hold of a given id may also belong to another permit, and expires.
    pub(crate) fn new(
        store: &Arc<S>,
        key: &[u8],
        policy: &PreparedPolicy,
        id: Option<&[u8]>,
        ttl: Option<Duration>,
    ) -> Self {
        let hold = StoredHold {
            key: key.into(),
            policy: policy.clone(),
            id: id.map_or_else(|| Box::from(random_id()), Box::from),
            ttl,
            runtime: Handle::try_current().ok(),
            store: Arc::clone(store),
        };
        Self { hold: Arc::new(hold), used: Some(0), is_armed: id.is_none(), is_made: false }
    }

    /// The guards of holds under one id, which is random, on each of the keys.
    pub(crate) fn of_keys(
        store: &Arc<S>,
        takes: &[KeyedTake<'_>],
        id: &[u8],
        ttl: Option<Duration>,
    ) -> Vec<Self> {
        let mut guards: Vec<Self> = Vec::with_capacity(takes.len());
        for KeyedTake { key, policy, .. } in takes {
            if guards.iter().all(|guard| *guard.hold.key != **key) {
                let mut guard = Self::new(store, key, policy, Some(id), ttl);
                guard.is_armed = true;
                guards.push(guard);
            }
        }
        guards
    }

    /// The hold.
    pub(crate) fn hold(&self) -> &StoredHold<S> {
        &self.hold
    }

    /// The permit of the hold, or its denial.
    pub(crate) fn decided(self, answer: Answer) -> Hold<Permit<S>> {
        if answer.allowed() {
            return Hold::Allowed(self.allowed(answer));
        }
        self.denied(answer.source);
        Hold::Denied(answer)
    }

    /// The permits of the holds on several keys, or their denial.
    pub(crate) fn all_decided(
        guards: Vec<Self>,
        answer: MultiKeyAnswer,
    ) -> MultiKeyHold<Permit<S>> {
        let source = answer.source;
        if !answer.decision.allowed() {
            guards.into_iter().for_each(|guard| guard.denied(source));
            return Hold::Denied(answer);
        }
        let each = guards.into_iter().zip(&answer.each);
        let permits =
            each.map(|(guard, decision)| guard.allowed(Answer { decision: *decision, source }));
        Hold::Allowed(permits.collect())
    }

    fn allowed(mut self, answer: Answer) -> Permit<S> {
        (self.used, self.is_armed) = (None, true);
        self.is_made = answer.source == Source::Store;
        Permit { renewal: None, guard: self, answer }
    }

    /// If the denial is not the store's own, the store may still have made the hold.
    fn denied(mut self, source: Source) {
        self.is_armed &= source != Source::Store;
    }

    fn disarm(&mut self) {
        self.is_armed = false;
    }
}

impl<S: Store<Error = StoreError> + ?Sized + 'static> Drop for HoldGuard<S> {
    fn drop(&mut self) {
        if !mem::take(&mut self.is_armed) || self.hold.settle(self.used).now().is_some() {
            return;
        }
        // A drop cannot wait, but a task can.
        let Some(runtime) = &self.hold.runtime else { return };
        let (hold, used, repeats) = (Arc::clone(&self.hold), self.used, self.is_made);
        runtime.spawn(async move { hold.settle_in_background(used, repeats).await });
    }
}
