//! The activity of a connection: input that its client has not finished, and replies that it does not read.
//!
//! A request costs a few plain stores here and no clock read: a timer checks the activity from time to time
//! ([`timeouts`](super::timeouts)).

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use slab::Slab;
use sluicegate_core::Timestamp;

use super::{
    connection_bytes::{ConnectionBuffers, ConnectionBytes},
    input::Input,
    limits::{MAX_STREAMS, SLOT},
};

/// Bytes of unfinished input, and of unsent output, up to which nothing is reserved: what a
/// connection is charged for covers them.
const FREE_INPUT: usize = 2 * 1024;
const FREE_OUTPUT: usize = 8 * 1024;

/// Concurrent requests on HTTP/2 whose slots are covered by that charge as well.
const FREE_SLOTS: usize = 4;

/// The activity of a connection.
#[derive(Debug)]
pub(super) struct ConnectionActivity {
    connection: Arc<ConnectionBuffers>,
    input: RefCell<Input>,
    /// Bytes counted for unfinished input, and for unsent output.
    unfinished: RefCell<ConnectionBytes>,
    unsent: RefCell<ConnectionBytes>,
    /// Bytes counted for complete replies that may be unsent, because the client reads nothing.
    ended: RefCell<ConnectionBytes>,
    /// Bytes counted for the slots of requests on HTTP/2. They never shrink, because the tables of h2 do not.
    slots: RefCell<ConnectionBytes>,
    /// Upper bound on the requests in flight on HTTP/2, rejected and malformed ones included.
    open: Cell<usize>,
    /// Chunks of replies, on HTTP/2, that the client has not read.
    chunks: RefCell<Chunks>,
    /// Changes whenever a request starts to arrive.
    begun: Cell<u64>,
    /// Requests so far.
    pub(super) requests: Cell<u64>,
    /// Requests without a complete reply.
    in_flight: Cell<u64>,
    /// Whether the client reads nothing.
    write_blocked: Cell<bool>,
    /// Changes when the client reads something.
    taken: Cell<u64>,
}

/// Keeps a request in flight until dropped: its reply is incomplete, or the client has not read it.
#[derive(Debug)]
pub(super) struct InFlightGuard {
    activity: Rc<ConnectionActivity>,
    bytes: ConnectionBytes,
}

/// A chunk of a reply that the client has not read, until dropped.
#[derive(Debug)]
pub(super) struct SentChunk {
    activity: Rc<ConnectionActivity>,
    at: usize,
}

impl ConnectionActivity {
    pub(super) fn new(connection: Arc<ConnectionBuffers>) -> Rc<Self> {
        let empty = || RefCell::new(connection.reserve_nothing());
        Rc::new(Self {
            unfinished: empty(),
            unsent: empty(),
            ended: empty(),
            slots: empty(),
            open: Cell::default(),
            connection,
            input: RefCell::default(),
            chunks: RefCell::default(),
            begun: Cell::default(),
            requests: Cell::default(),
            in_flight: Cell::default(),
            write_blocked: Cell::default(),
            taken: Cell::default(),
        })
    }

    /// A request has arrived.
    #[inline]
    pub(super) fn begin(self: &Rc<Self>) -> InFlightGuard {
        self.requests.set(self.requests.get() + 1);
        self.in_flight.set(self.in_flight.get() + 1);
        self.input.borrow_mut().finished();
        InFlightGuard { activity: Rc::clone(self), bytes: self.connection.reserve_nothing() }
    }

    /// These bytes have arrived. `false`: more is unfinished than may be stored.
    #[inline]
    #[must_use]
    pub(super) fn read(&self, bytes: &[u8]) -> bool {
        let mut input = self.input.borrow_mut();
        let before = input.begun();
        input.read(bytes);
        if !before {
            self.begun.set(self.begun.get() + 1);
        }
        // The reader of a body counts its bytes.
        let unfinished = match *input {
            Input::One { .. } if self.in_flight.get() > 0 => 0,
            ref input => input.unfinished(),
        };
        let new = input.take_new();
        count_bytes(&self.unfinished, unfinished, FREE_INPUT) && (new == 0 || self.count_slots(new))
    }

    /// Counts slots for `new` more requests on HTTP/2. `false`: they are more than allowed.
    /// A rejected request takes up a slot as well.
    fn count_slots(&self, new: usize) -> bool {
        let open = self.open.get() + new;
        self.open.set(open);
        let slots = open.min(MAX_STREAMS as usize).next_power_of_two();
        let mut counted = self.slots.borrow_mut();
        let bytes = slots * SLOT;
        slots <= FREE_SLOTS || bytes <= counted.bytes() || counted.resize_for_slots(bytes)
    }

    /// Whether more is reserved than for a client with few requests at a time.
    pub(super) fn uses_slots(&self) -> bool {
        self.slots.borrow().bytes() > 0
    }

    /// All input is processed, and output is sent as far as the client reads it.
    #[inline]
    pub(super) fn update_open(&self) {
        if self.open.get() > 0 && !self.write_blocked.get() {
            self.open.set(usize::try_from(self.in_flight.get()).unwrap_or(usize::MAX));
        }
    }

    /// A write has left `unsent` bytes. `false`: they are more than allowed.
    #[inline]
    #[must_use]
    pub(super) fn wrote(&self, write_blocked: bool, unsent: usize) -> bool {
        self.write_blocked.set(write_blocked);
        if !write_blocked {
            self.taken.set(self.taken.get() + 1);
            count_bytes(&self.ended, 0, 0);
        }
        count_bytes(&self.unsent, unsent, FREE_OUTPUT)
    }

    /// Whether no more than one request is in flight.
    pub(super) fn is_alone(&self) -> bool {
        self.in_flight.get() <= 1
    }

    /// A flush waits for the client to read.
    pub(super) fn block_flush(&self) {
        self.write_blocked.set(true);
    }

    /// The first bytes of a request have already arrived.
    pub(super) fn has_begun(&self, bytes: usize) {
        *self.input.borrow_mut() = Input::One { begun: true, bytes };
        self.begun.set(self.begun.get() + 1);
    }

    /// Whether HTTP/2 is spoken; `None`: the first bytes leave it open.
    pub(super) fn is_http2(&self) -> Option<bool> {
        match *self.input.borrow() {
            Input::Unknown(_) => None,
            Input::One { .. } => Some(false),
            Input::Two(_) => Some(true),
        }
    }

    /// Whether a connection of HTTP/1.1 is idle.
    pub(super) fn is_at_rest(&self) -> bool {
        self.rests() && matches!(*self.input.borrow(), Input::One { begun: false, .. })
    }

    /// While the client reads nothing: a number that changes once it does.
    pub(super) fn write_blocked(&self) -> Option<u64> {
        self.write_blocked.get().then(|| self.taken.get())
    }

    /// The time since which the oldest unread chunk of a reply waits, by the checks so far and one at `now`.
    pub(super) fn oldest_chunk(&self, now: Timestamp) -> Option<Timestamp> {
        self.chunks.borrow_mut().check(now)
    }

    /// Whether no request is in flight and nothing is to be sent.
    pub(super) fn rests(&self) -> bool {
        self.in_flight.get() == 0 && !self.write_blocked.get()
    }

    /// While a request is incomplete: a number that changes with the next one.
    pub(super) fn begun(&self) -> Option<u64> {
        self.input.borrow().begun().then(|| self.begun.get())
    }

    /// The client has closed its side. Whether that can be ignored for now, because a request will
    /// be answered. A request that waits is withdrawn instead.
    pub(super) fn close_read(&self) -> bool {
        let is_answered = self.in_flight.get() > 0
            && !self.connection.is_waiting()
            && self.is_http2() == Some(false);
        if is_answered {
            self.connection.close_read();
        }
        is_answered
    }
}

/// Holds `bytes`, unless they are at most `free`. `false`: they do not fit.
#[inline]
fn count_bytes(counted: &RefCell<ConnectionBytes>, bytes: usize, free: usize) -> bool {
    let mut counted = counted.borrow_mut();
    let bytes = if bytes > free { bytes } else { 0 };
    counted.bytes() == bytes || counted.resize_for_connection(bytes)
}

impl InFlightGuard {
    /// Holds `bytes` more for the request. `false`: they do not fit.
    #[must_use]
    pub(super) fn add_bytes(&mut self, bytes: usize) -> bool {
        bytes == 0 || self.bytes.resize(self.bytes.bytes() + bytes)
    }

    /// A reservation for the body of the request, still empty.
    pub(super) fn reserve_nothing(&self) -> ConnectionBytes {
        self.activity.connection.reserve_nothing()
    }

    /// Hands a chunk of the reply to the connection.
    pub(super) fn send_chunk(&self) -> SentChunk {
        let at = self.activity.chunks.borrow_mut().add();
        SentChunk { activity: Rc::clone(&self.activity), at }
    }

    /// Whether the client reads nothing.
    pub(super) fn is_write_blocked(&self) -> bool {
        self.activity.write_blocked.get()
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        let activity = &self.activity;
        activity.in_flight.set(activity.in_flight.get() - 1);
        activity.input.borrow_mut().finished();
        let bytes = self.bytes.bytes();
        if bytes > 0 && activity.write_blocked.get() && self.bytes.resize(0) {
            let mut ended = activity.ended.borrow_mut();
            let sum = ended.bytes() + bytes;
            let _fits = ended.resize_for_connection(sum);
        }
    }
}

impl Drop for SentChunk {
    fn drop(&mut self) {
        self.activity.chunks.borrow_mut().remove(self.at);
    }
}

// Chunks of replies that a client of HTTP/2 has not read, and since when.

/// The unread chunks, each in a slot, with the first check that found it unread.
#[derive(Debug, Default)]
pub(super) struct Chunks(Slab<Option<Timestamp>>);

impl Chunks {
    /// Adds a chunk, and returns its slot.
    pub(super) fn add(&mut self) -> usize {
        self.0.insert(None)
    }

    /// Removes the chunk in this slot: it was read, or its request is gone.
    pub(super) fn remove(&mut self, slot: usize) {
        self.0.remove(slot);
    }

    /// The first check that found the oldest chunk unread, this one at `now` included.
    pub(super) fn check(&mut self, now: Timestamp) -> Option<Timestamp> {
        if self.0.is_empty() {
            // Its memory is released, too.
            self.0 = Slab::new();
        }
        self.0.iter_mut().map(|(_, since)| *since.get_or_insert(now)).min()
    }
}

#[cfg(test)]
mod chunks_tests {
    use super::*;

    #[test]
    fn check_oldest_chunk_waits_since_the_first_check() {
        let at = |micros| Timestamp::from_micros(micros).unwrap();
        let mut chunks = Chunks::default();
        assert_eq!(chunks.check(at(1)), None);
        let (first, second) = (chunks.add(), chunks.add());
        assert_eq!(chunks.check(at(2)), Some(at(2)));
        chunks.remove(first);
        let third = chunks.add();
        assert_eq!((third, chunks.check(at(3))), (first, Some(at(2))));
        chunks.remove(second);
        assert_eq!(chunks.check(at(4)), Some(at(3)));
        chunks.remove(third);
        assert_eq!(chunks.check(at(5)), None);
    }
}
