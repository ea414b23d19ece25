//! A hold and its store: the operations on it, and the loops of background tasks.

use std::{
    fmt::Debug,
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use sluicegate_core::{Answer, Applied, Clock, HoldOperation, PreparedPolicy, Store, StoreError};
use sluicegate_memory::ClockedStore;
use tokio::{
    runtime::Handle,
    time::{Instant, sleep},
};

/// Pause before a settle in the background is sent again; it doubles with each attempt.
const FIRST_PAUSE: Duration = Duration::from_millis(50);

/// The store of a [`Limiter`](crate::Limiter).
pub(crate) type AnyStore = dyn Store<Error = StoreError>;

/// A hold of a key in a store, open or about to be.
pub(crate) struct StoredHold<S: ?Sized> {
    pub(crate) key: Box<[u8]>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) id: Box<[u8]>,
    pub(crate) ttl: Option<Duration>,
    /// Where background tasks run. `None` with a store that answers at once.
    pub(crate) runtime: Option<Handle>,
    pub(crate) store: Arc<S>,
}

impl<S: Store<Error = StoreError> + ?Sized> StoredHold<S> {
    pub(crate) fn open(&self, cost: u32) -> Applied<'_, Result<Answer, StoreError>> {
        let operation = HoldOperation::Hold { id: &self.id, cost, ttl: self.ttl };
        self.store.apply_hold(&self.key, &self.policy, operation)
    }

    pub(crate) fn settle(&self, used: Option<u32>) -> Applied<'_, Result<Answer, StoreError>> {
        let operation = HoldOperation::Settle { id: &self.id, used };
        self.store.apply_hold(&self.key, &self.policy, operation)
    }

    pub(crate) fn renew(&self) -> Applied<'_, Result<Answer, StoreError>> {
        let operation = HoldOperation::Renew { id: &self.id, ttl: self.ttl };
        self.store.apply_hold(&self.key, &self.policy, operation)
    }

    /// Settles. If `repeats`, it tries again while the store is unavailable, until the hold has expired.
    pub(crate) async fn settle_in_background(&self, used: Option<u32>, repeats: bool) {
        let expires = Instant::now() + self.lifetime();
        let mut pause = FIRST_PAUSE;
        while let Err(error) = self.settle(used).await {
            if !repeats || !error.is_unavailable() || Instant::now() + pause >= expires {
                return;
            }
            sleep(pause).await;
            pause *= 2;
        }
    }

    /// Renews the hold three times in its lifetime, until it is not open.
    pub(crate) async fn keep_alive(&self) {
        let pause = self.lifetime() / 3;
        loop {
            sleep(pause).await;
            if self.renew().await.is_ok_and(|answer| !answer.allowed()) {
                return;
            }
        }
    }

    fn lifetime(&self) -> Duration {
        let renew = HoldOperation::Renew { id: &self.id, ttl: self.ttl };
        let ttl = self.policy.policy().check_hold(&renew);
        Duration::from_micros(ttl.expect("the hold was made with this lifetime"))
    }
}

impl<C: Clock + Debug + Send + Sync> StoredHold<ClockedStore<C>> {
    /// Applies a settle or renew of the hold, which was made.
    pub(crate) fn decide(&self, operation: HoldOperation<'_>) -> Answer {
        let decision = self.store.decide_hold(&self.key, &self.policy, operation);
        decision.expect("only a hold that is not open can fail").into()
    }
}

/// An id of 16 random bytes.
pub(crate) fn random_id() -> [u8; 16] {
    // Each `RandomState` has keys of its own, the first ones of a thread from the operating system.
    let random = RandomState::new();
    let [first, second] = [0_u8, 1].map(|half| u128::from(random.hash_one(half)));
    (first << 64 | second).to_ne_bytes()
}
