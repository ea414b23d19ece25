//! A hold in its store: the operations on it, and the loops of background tasks.

use std::{sync::Arc, time::Duration};

use sluicegate_core::{Answer, Applied, Operation, PreparedPolicy, Request, Store, reached};
use smallvec::SmallVec;
use tokio::time::{Instant, sleep};

use crate::HoldId;

/// Pause before a settle in the background is sent again; it doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The longest key that needs no memory of its own.
pub(crate) const KEY_BYTES: usize = 32;

/// A hold of a key in a store, open or about to be.
pub(crate) struct StoredHold<S: ?Sized> {
    pub(crate) key: SmallVec<[u8; KEY_BYTES]>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) id: HoldId,
    pub(crate) ttl: Option<Duration>,
    pub(crate) store: Arc<S>,
}

impl<S: Store + ?Sized> StoredHold<S> {
    pub(crate) fn open(&self, cost: u32) -> Applied<'_, Result<Answer, S::Error>> {
        self.apply(Operation::Hold { id: &self.id, cost, ttl: self.ttl })
    }

    pub(crate) fn settle(&self, used: Option<u32>) -> Applied<'_, Result<Answer, S::Error>> {
        self.apply(Operation::Settle { id: &self.id, used })
    }

    pub(crate) fn renew(&self) -> Applied<'_, Result<Answer, S::Error>> {
        self.apply(Operation::Renew { id: &self.id, ttl: self.ttl })
    }

    fn apply<'a>(&'a self, operation: Operation<'a>) -> Applied<'a, Result<Answer, S::Error>> {
        self.store.apply(Request::one(&self.key, &self.policy, operation))
    }

    /// Settles. If `repeats`, it tries again after an error, until the hold has expired.
    pub(crate) async fn settle_in_background(&self, used: Option<u32>, repeats: bool) {
        let expires = Instant::now() + self.lifetime().unwrap_or_default();
        let mut pause = FIRST_PAUSE;
        while self.settle(used).await.is_err() && repeats && Instant::now() + pause < expires {
            reached!(SettleIsRepeated);
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Renews the hold three times in its lifetime, until it is not open. An invalid hold never is.
    pub(crate) async fn keep_alive(&self) {
        let Some(lifetime) = self.lifetime() else { return };
        let pause = lifetime / 3;
        loop {
            sleep(pause).await;
            if self.renew().await.is_ok_and(|answer| !answer.allowed()) {
                reached!(RenewedHoldIsOver);
                return;
            }
        }
    }

    /// `None` if the hold is invalid.
    fn lifetime(&self) -> Option<Duration> {
        let renew = Operation::Renew { id: &self.id, ttl: self.ttl };
        self.policy.policy().check_operation(renew).ok().map(Duration::from_micros)
    }
}

impl<S: ?Sized> Clone for StoredHold<S> {
    fn clone(&self) -> Self {
        let Self { key, policy, id, ttl, store } = self;
        let (key, policy, id) = (key.clone(), policy.clone(), id.clone());
        Self { key, policy, id, ttl: *ttl, store: Arc::clone(store) }
    }
}
