//! Waiting (`SG.WAIT`, `wait_us`): delays an answer until the request passes.
//!
//! [`sluicegate_core::wait`] decides who waits, in which order and until when; this module sleeps, wakes
//! and calls the store. A waiting request that is dropped, for whatever reason, leaves its queue, and its
//! reservation is released.

use std::{sync::Arc, time::Duration};

pub(crate) use sluicegate_core::wait::QueueFull;
use sluicegate_core::{
    Answer, Entry, KeyedOperation, Limit, PreparedPolicy, Request, StoreError, Timestamp,
    wait::{Event, MAX_OBSERVED_ENTRY, ObservedEntry, Step, Waiter},
};
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

use crate::{decide::Decider, denial_log::Waited, stopping::stopped, store::error_reply};

/// Bytes of a waiting request that are part of what a connection needs; those beyond are reserved while it waits.
const FREE: usize = 1024;
/// Bytes of a policy beside its limits.
const POLICY: usize = 256;

/// Maximum length of one sleep; a longer wait takes several.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// The same if other servers use the store: a refund there is noticed after this time.
const MAX_SLEEP_SHARED: Duration = Duration::from_secs(1);

/// A request that may wait: takes, or holds under one id.
#[derive(Debug)]
pub(crate) struct WaitingRequest {
    waiter: Waiter<Arc<[u8]>>,
    policies: SmallVec<[PreparedPolicy; 1]>,
    waited: Waited,
    /// When it was answered; before that, the epoch.
    decided_at: Timestamp,
    /// Whether it is a request for one key, and not one for several of which there is one.
    is_single: bool,
}

impl WaitingRequest {
    /// A request for one key, which waits for up to `timeout`.
    pub(crate) fn one(
        KeyedOperation { key, policy, operation }: KeyedOperation<'_>,
        timeout: Duration,
    ) -> Self {
        let waiter = Waiter::queued(key.into(), policy.policy().clone(), operation, timeout);
        let policies = SmallVec::from([policy.clone()]);
        let waited = Waited { timeout, is_stopped: false };
        Self { waiter, policies, waited, decided_at: Timestamp::EPOCH, is_single: true }
    }

    /// A request for several keys, of all of them or of none.
    pub(crate) fn all(operations: &[KeyedOperation<'_>], timeout: Duration) -> Self {
        let keys = operations.iter();
        let keys = keys.map(|it| (it.key.into(), it.policy.policy().clone(), it.operation));
        let waiter = Waiter::queued_all(keys, timeout);
        let policies = operations.iter().map(|it| it.policy.clone()).collect();
        let waited = Waited { timeout, is_stopped: false };
        Self { waiter, policies, waited, decided_at: Timestamp::EPOCH, is_single: false }
    }

    /// How it has waited.
    pub(crate) const fn waited(&self) -> Waited {
        self.waited
    }

    /// The time at which it was answered.
    pub(crate) const fn decided_at(&self) -> Timestamp {
        self.decided_at
    }

    /// The bytes to reserve while it waits.
    pub(crate) fn reserved_bytes(&self) -> usize {
        let sizes = self.policies.iter().enumerate();
        let size = sizes.map(|(index, policy)| size(self.waiter.key(index), policy)).sum();
        if size > FREE { size } else { 0 }
    }

    /// The takes or the holds.
    pub(crate) fn attempted(&self) -> SmallVec<[KeyedOperation<'_>; 1]> {
        let keyed = |(index, policy)| KeyedOperation {
            key: self.waiter.key(index),
            policy,
            operation: self.waiter.attempted(index),
        };
        self.policies.iter().enumerate().map(keyed).collect()
    }

    /// The operations of its present step.
    fn operations(&self) -> SmallVec<[KeyedOperation<'_>; 1]> {
        let mut operations = self.attempted();
        for (index, it) in operations.iter_mut().enumerate() {
            it.operation = self.waiter.operation(index);
        }
        operations
    }

    /// Decides its operations, without waking others.
    async fn apply(&self, decider: &Decider, now: Timestamp) -> Result<Answer, StoreError> {
        let operations = self.operations();
        let request = match &operations[..] {
            [one] if self.is_single => (*one).into(),
            all => Request::all(all)?,
        };
        let answer = decider.decide_queued(request, now).await;
        if answer.is_err() {
            decider.wake(request, &answer);
        }
        answer
    }
}

/// An upper bound on the bytes that a waiting request keeps for one key: others may share its policy.
fn size(key: &[u8], policy: &PreparedPolicy) -> usize {
    let limits = policy.policy().limits();
    let zones = limits.iter().filter_map(Limit::calendar).map(|(_, zone)| zone.len());
    // The limits, and about as much for their text and what the store has attached.
    key.len() + POLICY + 2 * (size_of_val(limits) + zones.sum::<usize>())
}

/// Why a request got no decision. Its text is a whole error reply.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("ERR {0}")]
    QueueFull(#[from] QueueFull),
    #[error("{}", error_reply(.0))]
    Store(#[from] StoreError),
}

/// The answer to a request once it passes, or a denial once it cannot pass in time. It is denied
/// immediately when `stopping` turns true.
///
/// Dropping the future cancels the request: what it has reserved is returned. Of an operation that was just sent to a store
/// that answers later, a hold and units that could be used at once stay.
pub(crate) async fn wait(
    decider: &Decider,
    waiting: &mut WaitingRequest,
    mut stopping: watch::Receiver<bool>,
) -> Result<Answer, Failure> {
    // An invalid request does not wait for its error.
    for KeyedOperation { policy, operation, .. } in waiting.attempted() {
        policy.policy().check_operation(operation).map_err(StoreError::from)?;
    }
    let mut now = decider.now();
    let woken = Arc::<Notify>::default();
    let guard = &mut QueueGuard { decider, waiting };
    let mut event = Event::Start;
    loop {
        event = match decider.queues.poll(&mut guard.waiting.waiter, now, event, &woken) {
            Step::Apply => {
                let answer = guard.waiting.apply(decider, now).await?;
                // A local answer takes no time. A request that may not wait at all may then pass.
                now = if decider.is_local() { now } else { decider.now() };
                Event::Answered(answer)
            }
            Step::CheckOpen => Event::IsOpen(is_open(decider, guard.waiting, now).await),
            Step::Observe => {
                Event::Observed(observe(decider, guard.waiting.waiter.key(0), now).await?)
            }
            Step::SleepUntil(then) => {
                let is_stopped = sleep_until(decider, then, now, &woken, &mut stopping).await;
                now = decider.now();
                guard.waiting.waited.is_stopped |= is_stopped;
                if is_stopped { Event::Stopped } else { Event::Woken }
            }
            Step::Done(answer) => {
                guard.waiting.decided_at = now;
                return Ok(answer);
            }
            Step::Reject(full) => return Err(full.into()),
        };
    }
}

/// Sleeps until `then`, or until woken. Returns whether no request waits any longer, because the server stops.
async fn sleep_until(
    decider: &Decider,
    then: Timestamp,
    now: Timestamp,
    woken: &Notify,
    stopping: &mut watch::Receiver<bool>,
) -> bool {
    let max_sleep = if decider.is_local() { MAX_SLEEP } else { MAX_SLEEP_SHARED };
    tokio::select! {
        () = sleep(then.since(now).min(max_sleep)) => false,
        () = woken.notified() => false,
        () = stopped(stopping) => true,
    }
}

/// A waiting request. Dropping it leaves the queue, and gives back what is charged for it.
struct QueueGuard<'a> {
    decider: &'a Decider,
    waiting: &'a mut WaitingRequest,
}

impl Drop for QueueGuard<'_> {
    fn drop(&mut self) {
        let Self { decider, waiting: WaitingRequest { waiter, policies, .. } } = self;
        if let Some(refund) = decider.queues.remove(waiter) {
            let key = waiter.key(0);
            decider.refund_unused(key, &policies[0], refund.cost(), decider.now());
            decider.queues.changed(key);
        }
    }
}

/// Whether the hold of a request is known to be open on every key. If the store cannot be read, the request is decided as a
/// new one.
async fn is_open(decider: &Decider, waiting: &WaitingRequest, now: Timestamp) -> bool {
    for KeyedOperation { key, operation, .. } in waiting.attempted() {
        let Some(id) = operation.id() else { return false };
        let is_open = |entry: &Entry, now| entry.has_open_hold(id, now);
        if !matches!(decider.read(key, now, is_open).await, Ok(Some(true))) {
            return false;
        }
    }
    true
}

/// The state of a key; `None` if it is too large to be copied for each request that waits.
async fn observe(
    decider: &Decider,
    key: &[u8],
    now: Timestamp,
) -> Result<Option<ObservedEntry>, StoreError> {
    let copy = |entry: &Entry, store_time| {
        let is_small = entry.allocations().sum::<usize>() <= MAX_OBSERVED_ENTRY;
        is_small.then(|| ObservedEntry { entry: Some(entry.clone()), store_time, local_time: now })
    };
    let unused = || Some(ObservedEntry { entry: None, store_time: now, local_time: now });
    match decider.read(key, now, copy).await {
        Ok(read) => Ok(read.unwrap_or_else(unused)),
        // A peek decides, or the fallback.
        Err(error) if error.is_unavailable() => Ok(None),
        Err(error) => Err(error),
    }
}
