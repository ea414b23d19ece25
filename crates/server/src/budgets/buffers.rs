//! One budget for the bytes that the server buffers for its clients.
//!
//! Unread input, request bodies and unsent replies of all connections are reserved here before they
//! are kept, so that all clients together occupy at most `--max-buffer-memory`. Each
//! connection has its own bound as well, [`MAX_PER_CONNECTION`], so that one cannot use up the budget.
//!
//! Only memory that stays while a connection waits for its client is counted, not that of ordinary requests (a read
//! buffer of the worker, a short reply).

use std::sync::{
    Arc,
    atomic::{AtomicU64, AtomicUsize, Ordering},
};

use sluicegate_core::reached;

/// The error reply of RESP when the budget is used up.
pub(crate) const NO_MEMORY: &str = "ERR max buffer memory reached";
/// Maximum number of buffered bytes of one connection of any protocol.
pub(crate) const MAX_PER_CONNECTION: usize = 4 * 1024 * 1024;
/// Released bytes after which freed memory is returned to the system.
const RELEASE_STEP: usize = 8 * 1024 * 1024;
/// The same if nothing more is released for a while.
const LAST_STEP: usize = 256 * 1024;
/// Smallest release that counts, because the memory of single requests is reused.
const RELEASE_UNIT: usize = 12 * 1024;

/// The bytes that all connections together may buffer, and the bytes that they do.
#[derive(Debug, Default)]
pub(crate) struct BufferBudget {
    /// Maximum number of bytes that may be reserved.
    pub(crate) max: usize,
    used: AtomicUsize,
    /// Bytes released since memory was last returned to the system, now and at the last check.
    freed: AtomicUsize,
    freed_before: AtomicUsize,
    rejected: AtomicU64,
}

/// Bytes that are reserved for one purpose, until dropped.
#[derive(Debug)]
pub(crate) struct BufferReservation {
    budget: Arc<BufferBudget>,
    bytes: usize,
}

impl BufferBudget {
    /// A budget of `max` bytes.
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            used: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            freed_before: AtomicUsize::new(0),
            rejected: AtomicU64::new(0),
        }
    }

    /// A reservation of no bytes, to be resized.
    pub(crate) fn reserve_nothing(self: &Arc<Self>) -> BufferReservation {
        BufferReservation { budget: Arc::clone(self), bytes: 0 }
    }

    /// The bytes that are reserved now.
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Reservations that did not fit.
    pub(crate) fn rejected(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Whether enough memory was freed to return it to the system: much, or a little and nothing since the
    /// last call.
    pub(crate) fn take_release_due(&self) -> bool {
        let freed = self.freed.load(Ordering::Relaxed);
        let before = self.freed_before.swap(freed, Ordering::Relaxed);
        let due = freed >= RELEASE_STEP || freed >= LAST_STEP && freed == before;
        if due {
            self.freed.fetch_sub(freed, Ordering::Relaxed);
        }
        due
    }

    /// Counts freed bytes that were never reserved.
    pub(crate) fn count_freed(&self, bytes: usize) {
        self.freed.fetch_add(bytes, Ordering::Relaxed);
    }

    fn try_add(&self, bytes: usize, max: usize) -> bool {
        let relaxed = Ordering::Relaxed;
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= max);
        match self.used.fetch_update(relaxed, relaxed, fits) {
            Ok(_) => true,
            Err(_) => {
                reached!(BufferBudgetIsExhausted);
                self.rejected.fetch_add(1, relaxed);
                false
            }
        }
    }
}

/// Each reservation keeps the budget, and releases its bytes before.
#[cfg(debug_assertions)]
impl Drop for BufferBudget {
    fn drop(&mut self) {
        assert!(self.used() == 0 || std::thread::panicking(), "bytes stay reserved");
    }
}

impl BufferReservation {
    /// The bytes that are reserved.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Resizes the reservation to `bytes`. `false`: they do not fit, and the reservation is unchanged. Fewer bytes
    /// always fit.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        self.resize_within(bytes, self.budget.max)
    }

    /// The same for input, unsent replies and requests that wait. A quarter of the budget is left for connections and short
    /// requests, so that a few long ones cannot keep others from being served.
    #[must_use]
    pub(crate) fn resize_for_payload(&mut self, bytes: usize) -> bool {
        self.resize_within(bytes, self.budget.max / 4 * 3)
    }

    /// The same while all reservations together stay within `max`.
    #[must_use]
    pub(crate) fn resize_within(&mut self, bytes: usize, max: usize) -> bool {
        if bytes > self.bytes && !self.budget.try_add(bytes - self.bytes, max) {
            return false;
        }
        if bytes < self.bytes {
            let fewer = self.bytes - bytes;
            let used = self.budget.used.fetch_sub(fewer, Ordering::Relaxed);
            debug_assert!(fewer <= used, "more bytes are released than are reserved");
            if fewer >= RELEASE_UNIT {
                self.budget.count_freed(fewer);
            }
        }
        self.bytes = bytes;
        true
    }

    /// As [`resize`](Self::resize), but only while half of the budget stays free: for optional
    /// buffers.
    #[must_use]
    pub(crate) fn resize_to_spare(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.budget.used() + more <= self.budget.max / 2 && self.resize(bytes)
    }

    /// Releases all bytes.
    pub(crate) fn release(&mut self) {
        if self.bytes > 0 {
            let _fewer = self.resize(0);
        }
    }
}

impl Drop for BufferReservation {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservation_beyond_the_budget_is_rejected_and_changes_nothing() {
        let budget = Arc::new(BufferBudget::new(100));
        let (mut first, mut second) = (budget.reserve_nothing(), budget.reserve_nothing());
        assert!(first.resize(60) && second.resize(40));
        assert!(!second.resize(41) && !first.resize(usize::MAX));
        assert_eq!((first.bytes(), second.bytes(), budget.used()), (60, 40, 100));
        assert!(first.resize(10) && second.resize(90));
        assert_eq!((budget.used(), budget.rejected()), (100, 2));
        drop(second);
        first.release();
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn release_is_due_once_much_was_freed_or_a_little_and_no_more() {
        let budget = Arc::new(BufferBudget::new(usize::MAX));
        let mut reservation = budget.reserve_nothing();
        for (bytes, expected) in [
            (RELEASE_STEP, [true, false]),
            (RELEASE_STEP - 1, [false, true]),
            (LAST_STEP - 1, [false, false]),
        ] {
            assert!(reservation.resize(bytes) && !budget.take_release_due());
            assert!(reservation.resize(0));
            assert_eq!([budget.take_release_due(), budget.take_release_due()], expected, "{bytes}");
            assert!(!budget.take_release_due());
        }
        for _ in 0..1_000 {
            assert!(reservation.resize(RELEASE_UNIT - 1) && reservation.resize(0));
        }
        assert!(!budget.take_release_due(), "what comes and goes is used again");
    }
}
