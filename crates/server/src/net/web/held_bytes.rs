//! The bytes that one connection holds, as a part of the memory budget of all.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::budgets::buffers::{BufferBudget, MAX_PER_CONNECTION, Reservation};

/// Bytes of a connection that are left for unfinished input and unsent output, so that requests
/// that hold all they may do not end it.
const SPARE: usize = 512 * 1024;

/// Reservations grow and shrink in steps of this size, in bytes.
const STEP: usize = 4 * 1024;
/// Bytes that may stay reserved without being held, so that few requests touch the shared budget.
const SLACK: usize = 8 * 1024;

/// Memory of an idle connection, about; it is not reserved.
const CONNECTION: usize = 3 * 1024;

/// The bytes that a connection holds for its client, and the state that its requests share.
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
    held: usize,
    reservation: Reservation,
}

/// Bytes that are held for one purpose, until dropped.
#[derive(Debug)]
pub(crate) struct Held {
    connection: Arc<ConnectionBuffers>,
    bytes: usize,
}

/// A text that is held for a connection.
struct HeldText {
    text: String,
    _held: Arc<Held>,
}

/// Marks a request as waiting, until dropped.
#[derive(Debug)]
pub(crate) struct HeldBack(Arc<ConnectionBuffers>);

impl ConnectionBuffers {
    pub(super) fn new(budget: &Arc<BufferBudget>) -> Arc<Self> {
        Arc::new(Self {
            budget: Arc::clone(budget),
            usage: Mutex::new(Usage { held: 0, reservation: budget.reserve_nothing() }),
            read_closed: AtomicBool::new(false),
            waiting: AtomicUsize::new(0),
        })
    }

    /// An empty reservation, to be resized.
    pub(super) fn hold_nothing(self: &Arc<Self>) -> Held {
        Held { connection: Arc::clone(self), bytes: 0 }
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

    /// Holds `to` bytes in place of `from`, while the connection holds up to `max`, and all up to `max_of_all`.
    /// `false`: they are too many, and nothing has changed.
    fn change(&self, from: usize, to: usize, max: usize, max_of_all: usize) -> bool {
        let mut usage = self.usage.lock();
        let Usage { held, reservation } = &mut *usage;
        let sum = *held - from + to;
        if to > from && sum > reservation.bytes() {
            let wanted = sum.next_multiple_of(STEP);
            if wanted > max || !reservation.resize_within(wanted, max_of_all) {
                return false;
            }
        } else if to < from && (sum == 0 || reservation.bytes() - sum > SLACK) {
            let _fewer = reservation.resize(sum.next_multiple_of(STEP));
        }
        *held = sum;
        true
    }
}

impl Held {
    /// An empty reservation of the same connection.
    pub(crate) fn hold_nothing(&self) -> Self {
        self.connection.hold_nothing()
    }

    /// `text` as bytes, which keep this reservation until the last of them is dropped.
    pub(crate) fn bytes_of(held: &Arc<Self>, text: String) -> Bytes {
        Bytes::from_owner(HeldText { text, _held: Arc::clone(held) })
    }

    /// Resizes the reservation to `bytes`. `false`: they are too many, for the connection or for the
    /// process, and nothing has changed.
    ///
    /// A quarter of the budget is left to connections as such, so that a few with long bodies cannot
    /// keep others from being served.
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        self.resize_within(bytes, MAX_PER_CONNECTION - SPARE, self.connection.budget.max / 4 * 3)
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
    pub(crate) fn hold_back(&self) -> Option<HeldBack> {
        if self.connection.is_read_closed() {
            return None;
        }
        self.connection.waiting.fetch_add(1, Ordering::Relaxed);
        Some(HeldBack(Arc::clone(&self.connection)))
    }
}

impl AsRef<[u8]> for HeldText {
    fn as_ref(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

impl Drop for ConnectionBuffers {
    fn drop(&mut self) {
        self.budget.count_freed(CONNECTION);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _fewer = self.resize(0);
    }
}

impl Drop for HeldBack {
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
        let (mut first, mut second) = (one.hold_nothing(), one.hold_nothing());
        assert!(first.resize(MAX_PER_CONNECTION - SPARE) && !second.resize(1));
        assert!(second.resize_for_connection(SPARE) && !second.resize_for_connection(SPARE + 1));
        assert_eq!((second.bytes(), budget.used()), (SPARE, MAX_PER_CONNECTION));
        let other = ConnectionBuffers::new(&budget);
        let mut third = other.hold_nothing();
        assert!(third.resize(2 * 1024 * 1024) && !third.resize(2 * 1024 * 1024 + 1));
        assert!(third.resize_for_connection(4 * 1024 * 1024));
        drop((first, second, third));
        assert_eq!(budget.used(), 0);
    }

    #[test]
    fn resize_reserves_in_steps() {
        let budget = Arc::new(BufferBudget::new(1 << 20));
        let connection = ConnectionBuffers::new(&budget);
        let mut held = connection.hold_nothing();
        for (bytes, reserved) in [(1, 4096), (4097, 8192), (20_000, 20_480), (13_000, 20_480)] {
            assert!(held.resize(bytes));
            assert_eq!(budget.used(), reserved, "{bytes}");
        }
        assert!(held.resize(5_000));
        assert_eq!(budget.used(), 8192);
        assert!(held.resize(0));
        assert_eq!(budget.used(), 0);
    }
}
