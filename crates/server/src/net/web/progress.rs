//! Whether a connection gets on: what its client has begun and not finished, and what it does not
//! take.
//!
//! A request costs a few plain stores here and no look at the clock: a timer looks now and then
//! ([`patience`](super::patience)).

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use sluicegate_core::Timestamp;

use super::{
    chunks::Chunks,
    held::{ConnectionBuffers, Held},
    input::Input,
    limits::{MAX_STREAMS, SLOT},
};

/// Bytes of unfinished input, and of unsent output, up to which nothing is reserved: what a
/// connection is charged for covers them.
const FREE_INPUT: usize = 2 * 1024;
const FREE_OUTPUT: usize = 8 * 1024;

/// Requests at a time, on HTTP/2, for whose places nothing is reserved: the same.
const FREE_SLOTS: usize = 4;

/// What has passed over a connection.
#[derive(Debug)]
pub(super) struct Progress {
    connection: Arc<ConnectionBuffers>,
    input: RefCell<Input>,
    /// What is held of input that is not finished, and of output that was not sent.
    unfinished: RefCell<Held>,
    unsent: RefCell<Held>,
    /// What is held for replies that have ended and may not have left yet, as the client takes nothing.
    ended: RefCell<Held>,
    /// What is held for the places of requests on HTTP/2, as many as there ever were at a time: what
    /// grew for them does not shrink.
    slots: RefCell<Held>,
    /// Requests that may be in flight on HTTP/2, whether they are answered, refused or wrong.
    open: Cell<usize>,
    /// Parts of replies, on HTTP/2, that the client has not taken.
    chunks: RefCell<Chunks>,
    /// Changes with all that is begun.
    begun: Cell<u64>,
    /// Requests so far.
    requests: Cell<u64>,
    /// Requests that are not answered yet.
    flying: Cell<u64>,
    /// Whether the client takes nothing.
    stuck: Cell<bool>,
    /// Changes when the client takes something.
    taken: Cell<u64>,
}

/// A request whose reply is not made or not taken yet, until dropped.
#[derive(Debug)]
pub(super) struct Flight {
    progress: Rc<Progress>,
    held: Held,
}

/// A part of a reply that the client has not taken, until dropped.
#[derive(Debug)]
pub(super) struct SentChunk {
    progress: Rc<Progress>,
    at: usize,
}

impl Progress {
    pub(super) fn new(connection: Arc<ConnectionBuffers>) -> Rc<Self> {
        let held = || RefCell::new(connection.hold_nothing());
        Rc::new(Self {
            unfinished: held(),
            unsent: held(),
            ended: held(),
            slots: held(),
            open: Cell::default(),
            connection,
            input: RefCell::default(),
            chunks: RefCell::default(),
            begun: Cell::default(),
            requests: Cell::default(),
            flying: Cell::default(),
            stuck: Cell::default(),
            taken: Cell::default(),
        })
    }

    /// A request has come.
    #[inline]
    pub(super) fn begin(self: &Rc<Self>) -> Flight {
        self.requests.set(self.requests.get() + 1);
        self.flying.set(self.flying.get() + 1);
        self.input.borrow_mut().finished();
        Flight { progress: Rc::clone(self), held: self.connection.hold_nothing() }
    }

    /// These bytes have come. `false`: what is not finished is more than may be held.
    #[inline]
    #[must_use]
    pub(super) fn read(&self, bytes: &[u8]) -> bool {
        let mut input = self.input.borrow_mut();
        let before = input.begun();
        input.read(bytes);
        if !before {
            self.begun.set(self.begun.get() + 1);
        }
        // Bodies are counted by who reads them.
        let unfinished = match *input {
            Input::One { .. } if self.flying.get() > 0 => 0,
            ref input => input.unfinished(),
        };
        let new = input.take_new();
        hold(&self.unfinished, unfinished, FREE_INPUT) && (new == 0 || self.hold_slots(new))
    }

    /// Holds places for so many more requests on HTTP/2. `false`: they are more than may be held.
    /// To refuse such a request takes up a place as well.
    fn hold_slots(&self, new: usize) -> bool {
        let open = self.open.get() + new;
        self.open.set(open);
        let slots = open.min(MAX_STREAMS as usize).next_power_of_two();
        let mut held = self.slots.borrow_mut();
        let bytes = slots * SLOT;
        slots <= FREE_SLOTS || bytes <= held.bytes() || held.resize_for_slots(bytes)
    }

    /// Whether more is held than for a client with few requests at a time.
    pub(super) fn holds_slots(&self) -> bool {
        self.slots.borrow().bytes() > 0
    }

    /// Everything that came is looked at, and what is sent is sent as far as the client takes it.
    #[inline]
    pub(super) fn settle(&self) {
        if self.open.get() > 0 && !self.stuck.get() {
            self.open.set(usize::try_from(self.flying.get()).unwrap_or(usize::MAX));
        }
    }

    /// So many bytes were not sent when the client was to take some. `false`: they are more than may
    /// be held.
    #[inline]
    #[must_use]
    pub(super) fn wrote(&self, stuck: bool, unsent: usize) -> bool {
        self.stuck.set(stuck);
        if !stuck {
            self.taken.set(self.taken.get() + 1);
            hold(&self.ended, 0, 0);
        }
        hold(&self.unsent, unsent, FREE_OUTPUT)
    }

    /// Whether no more than one request is in flight.
    pub(super) fn is_alone(&self) -> bool {
        self.flying.get() <= 1
    }

    /// What was written waits for the client to take it.
    pub(super) fn flush_waits(&self) {
        self.stuck.set(true);
    }

    /// Whether the client takes nothing.
    pub(super) fn is_stuck(&self) -> bool {
        self.stuck.get()
    }

    /// So many bytes of a request have come already.
    pub(super) fn has_begun(&self, bytes: usize) {
        *self.input.borrow_mut() = Input::One { begun: true, bytes };
        self.begun.set(self.begun.get() + 1);
    }

    /// Which version of HTTP is spoken; `None`: the first bytes do not tell yet.
    pub(super) fn is_http2(&self) -> Option<bool> {
        match *self.input.borrow() {
            Input::Unknown(_) => None,
            Input::One { .. } => Some(false),
            Input::Two(_) => Some(true),
        }
    }

    /// Whether nothing has begun, on HTTP/1.1, nor is to be sent.
    pub(super) fn is_at_rest(&self) -> bool {
        self.rests() && matches!(*self.input.borrow(), Input::One { begun: false, .. })
    }

    /// While the client takes nothing: what changes when it does.
    pub(super) fn stuck(&self) -> Option<u64> {
        self.stuck.get().then(|| self.taken.get())
    }

    /// Since when the oldest part of a reply is not taken that is there at a look at `now`.
    pub(super) fn oldest_chunk(&self, now: Timestamp) -> Option<Timestamp> {
        self.chunks.borrow_mut().look(now)
    }

    /// Whether no request is in flight, nor anything to be sent.
    pub(super) fn rests(&self) -> bool {
        self.flying.get() == 0 && !self.stuck.get()
    }

    /// While something has begun that is not whole: what changes with each that begins.
    pub(super) fn begun(&self) -> Option<u64> {
        self.input.borrow().begun().then(|| self.begun.get())
    }

    /// How many requests there were.
    pub(super) fn requests(&self) -> u64 {
        self.requests.get()
    }

    /// The client has ended its side. Whether that may be passed over for now, since a request is to
    /// be answered. One whose answer is held back is taken back by it.
    pub(super) fn close_read(&self) -> bool {
        let is_answered = self.flying.get() > 0
            && !self.connection.is_waiting()
            && self.is_http2() == Some(false);
        if is_answered {
            self.connection.close_read();
        }
        is_answered
    }
}

/// Holds so many bytes, unless they are few. `false`: they do not fit.
#[inline]
fn hold(held: &RefCell<Held>, bytes: usize, free: usize) -> bool {
    let mut held = held.borrow_mut();
    let bytes = if bytes > free { bytes } else { 0 };
    held.bytes() == bytes || held.resize_for_connection(bytes)
}

impl Flight {
    /// Holds so many bytes more for the request. `false`: they do not fit.
    #[must_use]
    pub(super) fn hold(&mut self, bytes: usize) -> bool {
        bytes == 0 || self.held.resize(self.held.bytes() + bytes)
    }

    /// Nothing yet, to be held for the body of the request.
    pub(super) fn hold_nothing(&self) -> Held {
        self.progress.connection.hold_nothing()
    }

    /// A part of the reply is handed to the connection.
    pub(super) fn send_chunk(&self) -> SentChunk {
        let at = self.progress.chunks.borrow_mut().add();
        SentChunk { progress: Rc::clone(&self.progress), at }
    }

    /// Whether the client takes nothing.
    pub(super) fn is_stuck(&self) -> bool {
        self.progress.is_stuck()
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        let progress = &self.progress;
        progress.flying.set(progress.flying.get() - 1);
        progress.input.borrow_mut().finished();
        let bytes = self.held.bytes();
        if bytes > 0 && progress.stuck.get() && self.held.resize(0) {
            let mut ended = progress.ended.borrow_mut();
            let _fits = {
                let sum = ended.bytes() + bytes;
                ended.resize_for_connection(sum)
            };
        }
    }
}

impl Drop for SentChunk {
    fn drop(&mut self) {
        self.progress.chunks.borrow_mut().remove(self.at);
    }
}
