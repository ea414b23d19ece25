//! The wait queues that all workers share, and one request's place in them.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use sluicegate_core::{
    Operation, Policy, Timestamp,
    wait::{self, Event, QueueFull, Step, Ticket, WaitRequest},
};
use tokio::sync::Notify;

use crate::{home::HomeRule, shared::Shared};

type Queues = wait::WaitQueues<Arc<[u8]>, Arc<Notify>>;

/// The waiting requests of all keys.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    queues: Mutex<Queues>,
    /// Number of waiting requests, to check without a lock that there is none.
    waiting: AtomicUsize,
}

impl WaitQueues {
    /// Number of waiting requests.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }

    /// An operation was applied to `key`: requests that wait for it may now pass.
    pub(crate) fn asked(&self, key: &[u8], policy: &Policy, operation: Operation) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.applied(key, policy, operation);
            wake(&mut queues, head);
        }
    }

    /// The usage of `key` may be lower than before.
    pub(crate) fn changed(&self, key: &[u8]) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.changed(key);
            wake(&mut queues, head);
        }
    }
}

fn wake(queues: &mut Queues, ticket: Option<Ticket>) {
    if let Some(woken) = ticket.and_then(|ticket| queues.data(ticket)) {
        woken.notify_one();
    }
}

/// Adds a request to the queue of its key, until the place is dropped.
pub(super) fn enter<'a>(
    shared: &'a Shared,
    key: &'a Arc<[u8]>,
    rule: &'a HomeRule,
    cost: u32,
    deadline: Timestamp,
) -> Result<Place<'a>, QueueFull> {
    let request = WaitRequest { policy: rule.policy().clone(), cost, deadline };
    let woken = Arc::<Notify>::default();
    let mut queues = shared.lines.queues.lock();
    let ticket = queues.enter(Arc::clone(key), request, Arc::clone(&woken))?;
    shared.lines.waiting.store(queues.waiting(), Ordering::SeqCst);
    Ok(Place { shared, key, rule, ticket, woken })
}

/// The place of one request in the queue of its key. Dropping it leaves the queue and releases the
/// reservation.
pub(super) struct Place<'a> {
    shared: &'a Shared,
    key: &'a [u8],
    rule: &'a HomeRule,
    ticket: Ticket,
    woken: Arc<Notify>,
}

impl Place<'_> {
    /// The next step of the request.
    pub(super) fn poll(&self, now: Timestamp, event: Event) -> Step {
        let mut queues = self.shared.lines.queues.lock();
        let polled = queues.poll(self.ticket, now, event);
        wake(&mut queues, polled.wake);
        polled.step
    }

    /// Waits until another request wakes this one.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let Self { shared, key, rule, ticket, .. } = *self;
        let refund = {
            let mut queues = shared.lines.queues.lock();
            let Some((_, refund, head)) = queues.remove(ticket) else { return };
            wake(&mut queues, head);
            shared.lines.waiting.store(queues.waiting(), Ordering::SeqCst);
            refund
        };
        if let Some(Operation::Refund(cost)) = refund {
            shared.home.give_back(key, rule, cost, shared.now());
            shared.lines.changed(key);
        }
    }
}
