//! The wait queues that all workers share.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use sluicegate_core::{
    Operation, Policy, Timestamp, reached,
    wait::{self, Event, Step, Ticket, Waiter},
};
use tokio::sync::Notify;

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

    /// The next step of a request, which `woken` wakes.
    pub(crate) fn poll(
        &self,
        waiter: &mut Waiter<Arc<[u8]>>,
        now: Timestamp,
        event: Event,
        woken: &Arc<Notify>,
    ) -> Step {
        let mut queues = self.queues.lock();
        let polled = queues.poll(waiter, now, event, || Arc::clone(woken));
        polled.wake.into_iter().for_each(|head| wake(&mut queues, Some(head)));
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        polled.step
    }

    /// Removes a request. Returns the refund that is to be applied.
    pub(crate) fn remove(&self, waiter: &mut Waiter<Arc<[u8]>>) -> Option<Operation<'static>> {
        let mut queues = self.queues.lock();
        let left = queues.remove(waiter);
        left.wake.into_iter().for_each(|head| wake(&mut queues, Some(head)));
        self.waiting.store(queues.waiting(), Ordering::SeqCst);
        left.refund
    }

    /// An operation was applied to `key`, and allowed or not: requests that wait for it may now pass.
    pub(crate) fn applied(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
        is_allowed: bool,
    ) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.applied(key, policy, operation, is_allowed);
            wake(&mut queues, head);
        }
    }

    /// The usage of `key` may be lower than before.
    pub(crate) fn changed(&self, key: &[u8]) {
        if self.waiting() > 0 {
            let mut queues = self.queues.lock();
            let head = queues.changed(key);
            reached!(WaiterWokenByReset if head.is_some());
            wake(&mut queues, head);
        }
    }
}

/// Each request leaves its queue when its future is dropped.
#[cfg(debug_assertions)]
impl Drop for WaitQueues {
    fn drop(&mut self) {
        let waiting = self.queues.get_mut().waiting();
        assert!(waiting == 0 || std::thread::panicking(), "a request waits that no task polls");
    }
}

fn wake(queues: &mut Queues, ticket: Option<Ticket>) {
    if let Some(woken) = ticket.and_then(|ticket| queues.data(ticket)) {
        woken.notify_one();
    }
}
