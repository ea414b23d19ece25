//! Waiting (`SG.WAIT`, `wait_us`): delays an answer until the request passes.
//!
//! [`sluicegate_core::wait`] decides who waits, in which order and until when; this module sleeps, wakes
//! and calls the store. A waiting request that is dropped, for whatever reason, leaves its queue, and its
//! reservation is released.

mod multi_key;

use std::{sync::Arc, time::Duration};

pub(crate) use sluicegate_core::wait::QueueFull;
use sluicegate_core::{
    Answer, Entry, Limit, Operation, PreparedPolicy, Request, StoreError, Timestamp,
    wait::{Event, MAX_OBSERVED_ENTRY, ObservedEntry, Step, Ticket, WaitRequest, peeks_first},
};
use tokio::{
    sync::{Notify, watch},
    time::sleep,
};

pub(crate) use self::multi_key::{WaitingTakes, wait_all};
use crate::{decide::Decider, stopping::stopped, store::error_reply};

/// Bytes of a waiting request that are part of what a connection needs; those beyond are reserved while it waits.
const FREE: usize = 1024;
/// Bytes of a policy beside its limits.
const POLICY: usize = 256;

/// Maximum length of one sleep; a longer wait takes several.
const MAX_SLEEP: Duration = Duration::from_secs(3600);
/// The same if other servers use the store: a refund there is noticed after this time.
const MAX_SLEEP_SHARED: Duration = Duration::from_secs(1);

/// A request that may wait.
#[derive(Debug)]
pub(crate) struct WaitingTake {
    pub(crate) key: Arc<[u8]>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) cost: u32,
    pub(crate) timeout: Duration,
    /// The hold that is to be opened, if units are held; else they are taken.
    pub(crate) hold: Option<WaitingHold>,
}

impl WaitingTake {
    /// The bytes to reserve while it waits.
    pub(crate) fn reserved_bytes(&self) -> usize {
        reserved_bytes(size(&self.key, &self.policy))
    }
}

/// The bytes to reserve for a waiting request that keeps `size` bytes.
const fn reserved_bytes(size: usize) -> usize {
    if size > FREE { size } else { 0 }
}

/// An upper bound on the bytes that a waiting request keeps for one key: others may share its policy.
fn size(key: &[u8], policy: &PreparedPolicy) -> usize {
    let limits = policy.policy().limits();
    let zones = limits.iter().filter_map(Limit::calendar).map(|(_, zone)| zone.len());
    // The limits, and about as much for their text and what the store has attached.
    key.len() + POLICY + 2 * (size_of_val(limits) + zones.sum::<usize>())
}

/// A hold to be opened once it fits.
#[derive(Debug)]
pub(crate) struct WaitingHold {
    pub(crate) id: Box<[u8]>,
    pub(crate) ttl: Option<Duration>,
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
/// Dropping the future cancels the request: nothing stays charged.
pub(crate) async fn wait(
    decider: &Decider,
    waiting: WaitingTake,
    mut stopping: watch::Receiver<bool>,
) -> Result<Answer, Failure> {
    let mut now = decider.now();
    let WaitingTake { key, policy, cost, timeout, hold } = waiting;
    // A take, or the hold in place of it.
    let attempt = match &hold {
        None => Operation::Take(cost),
        Some(WaitingHold { id, ttl }) => Operation::Hold { id, cost, ttl: *ttl },
    };
    // An invalid request does not wait for its error.
    policy.policy().check_operation(attempt).map_err(StoreError::from)?;
    if cost == 0 {
        let operation = if hold.is_some() { Operation::Peek(0) } else { attempt };
        let request = Request::one(&key, &policy, operation);
        return Ok(decider.decide_queued(request, now).await?);
    }
    // A repeated hold is answered before those that may wait for its units, and no peek denies it.
    if let Some(WaitingHold { id, .. }) = &hold
        && (decider.queues.has_queue(&key) || peeks_first(policy.policy()))
        && has_open_hold(decider, &key, id, now).await
    {
        let answer = decider.decide(Request::one(&key, &policy, attempt), now).await?;
        if answer.allowed() {
            return Ok(answer);
        }
    }
    let new_request = if hold.is_some() { WaitRequest::hold } else { WaitRequest::take };
    let request = new_request(policy.policy().clone(), cost, now + timeout);
    let woken = Arc::<Notify>::default();
    let ticket = decider.queues.enqueue(&key, request, &woken)?;
    let _guard = TicketGuard { decider, key: &key, policy: &policy, ticket };
    let mut event = Event::Start;
    loop {
        event = match decider.queues.poll(ticket, now, event) {
            Step::Apply(operation) => {
                let answer = match (&hold, operation) {
                    (Some(_), Operation::Take(_)) => {
                        decider.decide(Request::one(&key, &policy, attempt), now).await?
                    }
                    _ => decider.decide_queued(Request::one(&key, &policy, operation), now).await?,
                };
                // A local answer takes no time. A request that may not wait at all may then pass.
                now = if decider.is_local() { now } else { decider.now() };
                Event::Answered(answer)
            }
            Step::Observe => Event::Observed(observe(decider, &key, now).await?),
            Step::SleepUntil(then) => {
                let is_stopped = sleep_until(decider, then, now, &woken, &mut stopping).await;
                now = decider.now();
                if is_stopped { Event::Stopped } else { Event::Woken }
            }
            Step::Done(answer) => return Ok(answer),
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

/// A waiting request. Dropping it leaves the queue and releases the
/// reservation.
struct TicketGuard<'a> {
    decider: &'a Decider,
    key: &'a [u8],
    policy: &'a PreparedPolicy,
    ticket: Ticket,
}

impl Drop for TicketGuard<'_> {
    fn drop(&mut self) {
        let Self { decider, key, policy, ticket } = *self;
        if let Some(Operation::Refund(cost)) = decider.queues.remove(ticket) {
            decider.refund_unused(key, policy, cost, decider.now());
            decider.queues.changed(key);
        }
    }
}

/// Whether a hold is known to be open. If the store cannot be read, the request is decided as a new one.
async fn has_open_hold(decider: &Decider, key: &[u8], id: &[u8], now: Timestamp) -> bool {
    let is_open = |entry: &Entry, now| entry.has_open_hold(id, now);
    matches!(decider.read(key, now, is_open).await, Ok(Some(true)))
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
    Ok(decider.read(key, now, copy).await?.unwrap_or_else(unused))
}
