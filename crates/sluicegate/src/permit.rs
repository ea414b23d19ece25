//! Permits: guards of units that are held.

use std::fmt;

use sluicegate_core::{Answer, Clock, Store, StoreError};
use sluicegate_holds::HoldGuard;
use sluicegate_memory::{ClockedStore, SystemClock};

/// The store of a [`Limiter`](crate::Limiter).
type AnyStore = dyn Store<Error = StoreError>;

/// The permit of a [`LocalLimiter`](crate::LocalLimiter): the same calls without async and without errors.
pub type LocalPermit<C = SystemClock> = Permit<ClockedStore<C>>;

/// Units that are held until the permit is settled or dropped: a request in flight, a stream of tokens, a job.
///
/// A permit that is dropped is settled with the units that were held: rates are charged for all of them, and
/// `concurrency` limits, which charge nothing, get their units back. The same holds if a future that owns the permit is
/// cancelled.
///
/// A drop never blocks. With a store in this process, it settles at once. With a remote store, a task settles on the
/// tokio runtime that made the hold; it tries again while the store is unavailable, until the hold has expired.
/// Without a tokio runtime, or if the process ends, the hold expires after its lifetime and is charged in full.
///
/// ```
/// use sluicegate::{HoldOutcome, Limiter, PreparedPolicy};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let limiter = Limiter::in_memory();
/// let policy: PreparedPolicy = "concurrency:20000/30s,token-bucket:100000/1m".parse()?;
/// // A request to a language model: up to 4000 tokens, of which it uses 2310.
/// let HoldOutcome::Allowed(permit) = limiter.hold("team7", &policy, 4000, None).await? else {
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
    pub(crate) guard: HoldGuard<S>,
    pub(crate) answer: Answer,
}

impl<S: Store<Error = StoreError> + ?Sized> Permit<S> {
    /// The decision that allowed the hold.
    pub const fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The id of the hold: 1 to 64 bytes.
    #[must_use]
    pub fn id(&self) -> &[u8] {
        self.guard.id()
    }

    /// Renews the hold three times in its lifetime, by a task, until the permit is settled or dropped: for work that may
    /// take longer than the lifetime. If the process ends, the hold still expires.
    ///
    /// # Panics
    /// Outside of a tokio runtime with timers.
    pub fn keep_alive(mut self) -> Self {
        self.guard.keep_alive();
        assert!(self.guard.is_kept_alive(), "a tokio runtime is needed to keep a hold alive");
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
        self.guard.settle(used).await
    }

    /// Prolongs the hold: it then expires after its lifetime from now. The answer is denied if it has expired already.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] or [`StoreError::Timeout`].
    pub async fn renew(&self) -> Result<Answer, StoreError> {
        self.guard.renew().await
    }
}

impl<C: Clock + fmt::Debug + Send + Sync> LocalPermit<C> {
    /// Ends the hold, and charges rates for the `used` units, which may be more or less than were held. 0 cancels.
    ///
    /// The answer is denied if the hold has expired: it was charged in full, and nothing more is charged.
    pub fn settle(self, used: u32) -> Answer {
        answered(self.guard.settle_now(used))
    }

    /// Prolongs the hold: it then expires after its lifetime from now. The answer is denied if it has expired already.
    pub fn renew(&self) -> Answer {
        answered(self.guard.renew().now())
    }
}

/// The answer of a store in this process about a hold that it made.
fn answered(answer: Option<Result<Answer, StoreError>>) -> Answer {
    let answer = answer.expect("a store in this process answers now");
    answer.expect("only a hold that is not open can fail")
}

impl<S: Store<Error = StoreError> + ?Sized> fmt::Debug for Permit<S> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { guard, answer } = self;
        formatter.debug_struct("Permit").field("guard", guard).field("answer", answer).finish()
    }
}
