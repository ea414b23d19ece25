//! The bytes that one connection uses, as a part of the memory budget of all.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::{
    budgets::buffers::{BufferBudget, BufferReservation, MAX_PER_CONNECTION},
    net::CONNECTION_BYTES,
};

/// Bytes of a connection that are left for unfinished input and unsent output, so that requests
/// that use all they may do not end it.
const SPARE_BYTES: usize = 512 * 1024;

/// Reservations grow and shrink in steps of this size, in bytes.
const STEP_BYTES: usize = 4 * 1024;
/// Bytes that may stay reserved without being used, so that few requests touch the shared budget.
const SLACK_BYTES: usize = 8 * 1024;

/// The bytes that a connection stores for its client, and the state that its requests share.
#[derive(Debug)]
pub(super) struct ConnectionBuffers {
    budget: Arc<BufferBudget>,
    usage: Mutex<Usage>,
    /// Whether the client has closed its side of the connection.
    read_closed: AtomicBool,
    /// Requests that wait for their key.
    waiting: AtomicUsize,
}

#[derive(Debug)]
struct Usage {
    used: usize,
    reservation: BufferReservation,
}

/// Bytes that are counted for one purpose, until dropped.
#[derive(Debug)]
pub(crate) struct ConnectionBytes {
    connection: Arc<ConnectionBuffers>,
    bytes: usize,
}

/// A text whose bytes are counted for a connection.
struct CountedText {
    text: String,
    _bytes: Arc<ConnectionBytes>,
}

/// Marks a request as waiting, until dropped.
#[derive(Debug)]
pub(crate) struct WaitingMark(Arc<ConnectionBuffers>);

impl ConnectionBuffers {
    pub(super) fn new(budget: &Arc<BufferBudget>) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            usage: Mutex::new(Usage { used: 0, reservation: budget.reserve_nothing() }),
            read_closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        })
    }

    /// An empty reservation, to be resized.
    pub(super) fn reserve_nothing(self: &Arc<Self>) -> ConnectionBytes {
        ConnectionBytes { connection: Arc::clone(self), bytes: 0 }
    }

    /// Whether half of the budget is in use: idle connections then release their buffers.
    pub(super) fn is_scarce(&self) -> bool {
        self.budget.used() > self.budget.max / 2
    }

    /// Whether seven eighths of the budget are in use: idle connections of HTTP/2 are then ended.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.budget.used() > self.budget.max / 8 * 7
    }

    /// The client has closed its side.
    pub(super) fn close_read(&self) {
        self.read_closed.store(true, Ordering::Relaxed);
    }

    /// Whether the client has closed its side.
    pub(super) fn is_read_closed(&self) -> bool {
        self.read_closed.load(Ordering::Relaxed)
    }

    /// Whether a request waits for its key.
    pub(super) fn is_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Counts `to` bytes in place of `from`, while the connection uses up to `max`, and all up to `max_of_all`.
    /// `false`: they are too many, and nothing has changed.
    fn change(&self, from: usize, to: usize, max: usize, max_of_all: usize) -> bool {
        let mut usage = self.usage.lock();
        let Usage { used, reservation } = &mut *usage;
        let sum = *used - from + to;
        if to > from && sum > reservation.bytes() {
            let wanted = sum.next_multiple_of(STEP_BYTES);
            if wanted > max || !reservation.resize_within(wanted, max_of_all) {
                return false;
            }
        } else if to < from && (sum == 0 || reservation.bytes() - sum > SLACK_BYTES) {
            let _fewer = reservation.resize(sum.next_multiple_of(STEP_BYTES));
        }
        *used = sum;
        true
    }
}

impl ConnectionBytes {
    /// An empty reservation of the same connection.
    pub(crate) fn reserve_nothing(&self) -> Self {
        self.connection.reserve_nothing()
    }

    /// `text` as bytes, which keep this reservation until the last of them is dropped.
    pub(crate) fn bytes_of(bytes: &Arc<Self>, text: String) -> Bytes {
        Bytes::from_owner(CountedText { text, _bytes: Arc::clone(bytes) })
    }

    /// Resizes the reservation to `bytes`. `false`: they are too many, for the connection or for the
    /// process, and nothing has changed.
    ///
    /// A quarter of the budget is left to connections as such, so that a few with long bodies cannot
    /// keep others from being served.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        self.resize_within(
            bytes,
            MAX_PER_CONNECTION - SPARE_BYTES,
            self.connection.budget.max / 4 * 3,
        )
    }

    /// The same, for bytes without which a connection cannot be served at all.
    #[must_use]
    pub(super) fn resize_for_connection(&mut self, bytes: usize) -> bool {
        self.resize_within(bytes, MAX_PER_CONNECTION, self.connection.budget.max)
    }

    /// The same, for slots of concurrent requests: within the share of bodies.
    #[must_use]
    pub(super) fn resize_for_slots(&mut self, bytes: usize) -> bool {
        self.resize_within(bytes, MAX_PER_CONNECTION, self.connection.budget.max / 4 * 3)
    }

    fn resize_within(&mut self, bytes: usize, max: usize, max_of_all: usize) -> bool {
        let fits =
            bytes == self.bytes || self.connection.change(self.bytes, bytes, max, max_of_all);
        if fits {
            self.bytes = bytes;
        }
        fits
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the client has closed its side of the connection.
    pub(super) fn is_read_closed(&self) -> bool {
        self.connection.is_read_closed()
    }

    /// Marks a request as waiting. `None`: the client has closed its side, so that a client which leaves
    /// later would not be noticed.
    pub(crate) fn mark_waiting(&self) -> Option<WaitingMark> {
        if self.connection.is_read_closed() {
            return None;
        }
        self.connection.waiting.fetch_add(1, Ordering::Relaxed);
        Some(WaitingMark(Arc::clone(&self.connection)))
    }
}

impl AsRef<[u8]> for CountedText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for ConnectionBuffers {
    fn drop(&mut self) {
        self.budget.count_freed(CONNECTION_BYTES);
    }
}

impl Drop for ConnectionBytes {
    fn drop(&mut self) {
        let _fewer = self.resize(0);
    }
}

impl Drop for WaitingMark {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resize_is_bounded_and_leaves_a_quarter_to_others() {
        let budget = Arc::new(BufferBudget::new(8 * 1024 * 1024));
        let one = ConnectionBuffers::new(&budget);
        let (mut first, mut second) = (one.reserve_nothing(), one.reserve_nothing());
        assert!(first.resize(MAX_PER_CONNECTION - SPARE_BYTES) && !second.resize(1));
        assert!(
            second.resize_for_connection(SPARE_BYTES)
                && !second.resize_for_connection(SPARE_BYTES + 1)
        );
        assert_eq!((second.bytes(), budget.used()), (SPARE_BYTES, MAX_PER_CONNECTION));
        let other = ConnectionBuffers::new(&budget);
        let mut third = other.reserve_nothing();
        assert!(third.resize(2 * 1024 * 1024) && !third.resize(2 * 1024 * 1024 + 1));
        assert!(third.resize_for_connection(4 * 1024 * 1024));
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn resize_reserves_in_steps() {
        let budget = Arc::new(BufferBudget::new(1 << 20));
        let connection = ConnectionBuffers::new(&budget);
        let mut bytes_used = connection.reserve_nothing();
        for (bytes, reserved) in [(1, 4096), (4097, 8192), (20_000, 20_480), (13_000, 20_480)] {
            assert!(bytes_used.resize(bytes));
            assert_eq!(budget.used(), reserved, "{bytes}");
        }
        assert!(bytes_used.resize(5_000));
        assert_eq!(budget.used(), 8192);
        assert!(bytes_used.resize(0));
        assert_eq!(budget.used(), 0);
    }
}
