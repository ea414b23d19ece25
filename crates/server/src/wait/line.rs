//! The waiters of each key, in line, as tasks that sleep.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use sluicegate_commands::wait_queue::{ObservedEntry, QueueFull, QueuedRequest, WaitQueues};
use sluicegate_core::{Policy, Timestamp};
use tokio::sync::Notify;

/// The lines of all keys.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    inner: Mutex<WaitQueues<Arc<[u8]>, Waiter>>,
    /// How many wait in all: to see without a lock that nobody does.
    total: AtomicUsize,
}

#[derive(Debug)]
struct Waiter {
    request: QueuedRequest,
    turn: Arc<Notify>,
}

impl AsRef<QueuedRequest> for Waiter {
    fn as_ref(&self) -> &QueuedRequest {
        &self.request
    }
}

impl Lines {
    /// A place for one that has a departure.
    pub(super) fn hold(&self, key: &Arc<[u8]>) -> Result<Place<'_>, QueueFull> {
        self.enter(key, None)
    }

    /// A place at the end of the line.
    pub(super) fn join(
        &self,
        key: &Arc<[u8]>,
        request: QueuedRequest,
    ) -> Result<Place<'_>, QueueFull> {
        self.enter(key, Some(request))
    }

    fn enter(
        &self,
        key: &Arc<[u8]>,
        request: Option<QueuedRequest>,
    ) -> Result<Place<'_>, QueueFull> {
        let mut inner = self.inner.lock();
        inner.check_capacity(&**key)?;
        let turn = Arc::<Notify>::default();
        let number = match request {
            Some(request) => {
                inner.enqueue(Arc::clone(key), Waiter { request, turn: Arc::clone(&turn) })
            }
            None => inner.reserve(Arc::clone(key)),
        };
        self.total.store(inner.waiting(), Ordering::SeqCst);
        Ok(Place { lines: self, key: Arc::clone(key), number, turn })
    }

    /// How many wait.
    pub(crate) fn waiting(&self) -> usize {
        self.total.load(Ordering::SeqCst)
    }

    /// Less may be in use of `key` than before: its head asks again.
    pub(crate) fn changed(&self, key: &[u8]) {
        self.wake(key, |_| true);
    }

    /// `key` was asked under `policy`: if the head asks under another, what it waits for changed.
    pub(crate) fn taken(&self, key: &[u8], policy: &Policy) {
        self.wake(key, |head| !head.same_rule(policy));
    }

    fn wake(&self, key: &[u8], concerns: impl FnOnce(&Policy) -> bool) {
        if self.waiting() == 0 {
            return;
        }
        let mut inner = self.inner.lock();
        inner.invalidate(key);
        if let Some((_, head)) = inner.head(key)
            && concerns(&head.request.policy)
        {
            head.turn.notify_one();
        }
    }
}

/// A place among those that wait for a key; given up when dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    lines: &'a Lines,
    key: Arc<[u8]>,
    number: u64,
    turn: Arc<Notify>,
}

impl Place<'_> {
    /// Whether nobody stands before it.
    pub(super) fn is_head(&self) -> bool {
        self.lines.inner.lock().head(&*self.key).is_some_and(|(head, _)| *head == self.number)
    }

    /// Ready when it has become the head, or as the head should ask again.
    pub(super) async fn turn(&self) {
        self.turn.notified().await;
    }

    /// When `request`, which is its own, would pass if those before it went first: see
    /// [`earliest_pass`](WaitQueues::earliest_pass).
    pub(super) fn projected(
        &self,
        request: &QueuedRequest,
        observed: ObservedEntry,
    ) -> Option<Timestamp> {
        self.lines.inner.lock().earliest_pass(&*self.key, Some(self.number), request, observed)
    }

    /// It has passed: out of the line, which moves up, but not gone. It still counts.
    pub(super) fn step_out(&mut self) {
        let mut inner = self.lines.inner.lock();
        tell(inner.leave(&*self.key, self.number));
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut inner = self.lines.inner.lock();
        tell(inner.remove(&*self.key, self.number));
        self.lines.total.store(inner.waiting(), Ordering::SeqCst);
    }
}

/// Tells a new head that it is.
fn tell(head: Option<&(u64, Waiter)>) {
    if let Some((_, head)) = head {
        head.turn.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use sluicegate_commands::wait_queue::MAX_WAITERS_OF_KEY;
    use sluicegate_core::Timestamp;

    use super::*;

    fn request() -> QueuedRequest {
        let policy = "gcra:1/1s".parse().unwrap();
        QueuedRequest { policy, cost: 1, deadline: Timestamp::EPOCH }
    }

    #[test]
    fn refused_places_leave_no_line() {
        let (lines, key) = (Lines::default(), Arc::from(&b"a"[..]));
        let held: Vec<_> = (0..MAX_WAITERS_OF_KEY).map(|_| lines.hold(&key).unwrap()).collect();
        assert_eq!(lines.join(&key, request()).unwrap_err(), QueueFull::Key);
        assert_eq!(lines.waiting(), MAX_WAITERS_OF_KEY);
        drop(held);
        assert_eq!(lines.waiting(), 0);
    }

    #[tokio::test]
    async fn the_next_is_told_when_the_head_leaves() {
        let (lines, key) = (Lines::default(), Arc::from(&b"a"[..]));
        let first = lines.join(&key, request()).unwrap();
        let second = lines.join(&key, request()).unwrap();
        let third = lines.join(&key, request()).unwrap();
        assert!(first.is_head() && !second.is_head());
        drop(second);
        assert!(tokio::time::timeout(Duration::ZERO, third.turn()).await.is_err());
        drop(first);
        third.turn().await;
        assert!(third.is_head());
        let mut fourth = lines.join(&key, request()).unwrap();
        fourth.step_out();
        fourth.step_out();
        assert_eq!((lines.waiting(), third.is_head(), fourth.is_head()), (2, true, false));
        drop(fourth);
        assert_eq!(lines.waiting(), 1);
        lines.changed(b"a");
        third.turn().await;
    }
}
