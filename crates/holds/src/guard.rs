//! The guard of a hold.

use std::{fmt, mem, sync::Arc, time::Duration};

use sluicegate_core::{Answer, Applied, Operation, PreparedPolicy, Source, Store, reached};
use tokio::{runtime::Handle, task::AbortHandle};

use crate::{HoldId, stored_hold::StoredHold};

/// A hold of a key, which is settled when its guard is dropped.
///
/// From [`open`](Self::open) until the answer is known, a drop cancels the hold, because the store may have made it. A
/// hold whose id was given may belong to another guard as well: it expires instead. After it was
/// [allowed](Self::decide), a drop settles it with the units that were held, or that
/// [`set_used`](Self::set_used) sets.
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use sluicegate_core::{PreparedPolicy, Store};
/// use sluicegate_holds::{HoldGuard, HoldId};
///
/// async fn try_hold<S: Store + 'static>(store: &Arc<S>, policy: &PreparedPolicy) -> Result<Option<HoldGuard<S>>, S::Error> {
///     let mut guard = HoldGuard::new(store, b"user7", policy, HoldId::random(), Some(Duration::from_secs(30)));
///     let answer = guard.open(1).await?;
///     Ok(guard.decide(&answer).then_some(guard))
/// }
/// ```
pub struct HoldGuard<S: Store + ?Sized + 'static> {
    hold: StoredHold<S>,
    /// Units to settle; `None`: as many as are held.
    used: Option<u32>,
    /// Whether a drop settles.
    is_armed: bool,
    /// Whether the store made the hold. A settle that fails is then repeated.
    is_made: bool,
    /// Where background tasks run. `None` before a store has answered later.
    runtime: Option<Handle>,
    renewal: Option<AbortHandle>,
}

impl<S: Store + ?Sized> HoldGuard<S> {
    /// The guard of a hold that is not open yet, for up to `ttl` (see
    /// [`Operation::Hold`](sluicegate_core::Operation::Hold)).
    #[must_use]
    pub fn new(
        store: &Arc<S>,
        key: &[u8],
        policy: &PreparedPolicy,
        id: HoldId,
        ttl: Option<Duration>,
    ) -> Self {
        let (policy, store) = (policy.clone(), Arc::clone(store));
        let hold = StoredHold { key: key.into(), policy, id, ttl, store };
        let (is_armed, is_made) = (false, false);
        Self { hold, used: Some(0), is_armed, is_made, runtime: None, renewal: None }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.hold.key
    }

    /// The policy.
    #[must_use]
    pub fn policy(&self) -> &PreparedPolicy {
        &self.hold.policy
    }

    /// The id of the hold.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        &self.hold.id
    }

    /// Whether the store has answered later: a drop then settles in the background.
    #[must_use]
    pub const fn is_remote(&self) -> bool {
        self.runtime.is_some()
    }

    /// Whether a task renews the hold.
    #[must_use]
    pub const fn is_kept_alive(&self) -> bool {
        self.renewal.is_some()
    }

    /// Whether the store may have made the hold, so that a drop settles or cancels it.
    #[must_use]
    pub const fn may_be_open(&self) -> bool {
        self.is_armed
    }

    /// Holds `cost` units in the store.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub fn open(&mut self, cost: u32) -> Applied<'_, Result<Answer, S::Error>> {
        let is_random = matches!(self.hold.id, HoldId::Random(_));
        let applied = self.hold.open(cost);
        self.is_armed = is_random;
        if let Applied::Later(_) = applied {
            self.runtime = Handle::try_current().ok();
        }
        applied
    }

    /// As [`open`](Self::open), where the caller sends the hold to the store. `is_later`: whether the store
    /// answers [later](Applied::Later).
    pub fn sent(&mut self, is_later: bool) {
        self.is_armed = matches!(self.hold.id, HoldId::Random(_));
        if is_later {
            self.runtime = Handle::try_current().ok();
        }
    }

    /// The operation that opens the hold with `cost` units.
    #[must_use]
    pub fn hold(&self, cost: u32) -> Operation<'_> {
        Operation::Hold { id: &self.hold.id, cost, ttl: self.hold.ttl }
    }

    /// Records the answer, and returns whether the hold is allowed. If a denial is not the store's own, the store may
    /// still have made the hold: a drop then cancels it.
    pub fn decide(&mut self, answer: &Answer) -> bool {
        self.record(answer.allowed(), answer.source)
    }

    /// [`decide`](Self::decide) by the two members that count.
    pub fn record(&mut self, allowed: bool, source: Source) -> bool {
        if allowed {
            (self.used, self.is_armed) = (None, true);
            self.is_made = source == Source::Store;
        } else {
            self.is_armed &= source != Source::Store;
            reached!(DeniedHoldMayBeOpen if self.is_armed);
        }
        allowed
    }

    /// Sets the units that a drop settles; `None`: as many as are held.
    pub fn set_used(&mut self, used: impl Into<Option<u32>>) {
        self.used = used.into();
    }

    /// Renews the hold three times in its lifetime, by a task, until the guard is dropped. Without a tokio runtime, the
    /// hold expires.
    pub fn keep_alive(&mut self) {
        if self.renewal.is_none()
            && self.is_armed
            && let Ok(runtime) = Handle::try_current()
        {
            let hold = self.hold.clone();
            let task = runtime.spawn(async move { hold.keep_alive().await });
            self.renewal = Some(task.abort_handle());
        }
    }

    /// Settles with `used` units; `None`: as many as are held. If the future is dropped, or the settle fails, it is
    /// repeated in the background.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub async fn settle(mut self, used: impl Into<Option<u32>>) -> Result<Answer, S::Error> {
        self.used = used.into();
        self.stop_renewal();
        let answer = self.hold.settle(self.used).await?;
        self.is_armed = false;
        Ok(answer)
    }

    /// Prolongs the hold: it then expires after its lifetime from now.
    ///
    /// # Errors
    /// As [`Store::apply`].
    pub fn renew(&self) -> Applied<'_, Result<Answer, S::Error>> {
        self.hold.renew()
    }

    /// [`renew`](Self::renew) as a future that does not borrow the guard.
    pub fn renewal(&self) -> impl Future<Output = Result<Answer, S::Error>> + Send + use<S> {
        let hold = self.hold.clone();
        async move { hold.renew().await }
    }

    /// [`settle`](Self::settle) in a store that answers now; `None` and no settle in another one.
    pub fn settle_now(mut self, used: impl Into<Option<u32>>) -> Option<Result<Answer, S::Error>> {
        self.stop_renewal();
        let answer = self.hold.settle(used.into()).now();
        self.is_armed &= answer.is_none();
        answer
    }

    fn stop_renewal(&mut self) {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
    }
}

impl<S: Store + ?Sized + 'static> Drop for HoldGuard<S> {
    fn drop(&mut self) {
        self.stop_renewal();
        if !mem::take(&mut self.is_armed) || self.hold.settle(self.used).now().is_some() {
            return;
        }
        // A drop cannot wait, but a task can.
        let Some(runtime) = &self.runtime else { return };
        let (hold, used, repeats) = (self.hold.clone(), self.used, self.is_made);
        reached!(DroppedHoldIsSettled if repeats);
        reached!(HoldOfUnknownOutcomeIsCancelled if !repeats && used == Some(0));
        runtime.spawn(async move { hold.settle_in_background(used, repeats).await });
    }
}

impl<S: Store + ?Sized> fmt::Debug for HoldGuard<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("HoldGuard")
            .field("policy", self.policy())
            .field("is_armed", &self.is_armed)
            .field("is_kept_alive", &self.is_kept_alive())
            .finish_non_exhaustive()
    }
}
