//! The clock of the store: the time of the request that a thread decides.
//!
//! A worker reads the system clock once for what it has read from a client, or takes the time that the client gives
//! (`--test-clock`). A store reads its clock when it is called, therefore on the same thread.

use std::cell::Cell;

use sluicegate_core::{Applied, Clock, Timestamp};

/// The time that was [`set`] on this thread.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestClock;

thread_local! {
    static REQUEST_TIME: Cell<Timestamp> = const { Cell::new(Timestamp::EPOCH) };
}

impl Clock for RequestClock {
    #[inline]
    fn now(&self) -> Timestamp {
        REQUEST_TIME.get()
    }
}

/// Sets the time of the request that this thread decides.
#[inline]
pub(crate) fn set(now: Timestamp) {
    REQUEST_TIME.set(now);
}

/// Calls an operation of a store at `now`.
#[inline]
pub(crate) fn call_at<'a, T>(
    now: Timestamp,
    call: impl FnOnce() -> Applied<'a, T>,
) -> Applied<'a, T> {
    set(now);
    call()
}
