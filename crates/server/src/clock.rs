//! The clock of the server: the system clock, or in a simulation a function that returns virtual time; and the clock of its
//! store: the time of the request that a thread decides.
//!
//! A worker reads the clock of the server once for what it has read from a client, or takes the time that the client gives
//! (`--test-clock`). A store reads its clock when it is called, therefore on the same thread.

use std::{cell::Cell, time::Duration};

use sluicegate_core::{Applied, Clock, Timestamp};
use sluicegate_memory::SystemClock;

/// The clock of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ServerClock {
    System(SystemClock),
    /// Virtual time, and the time at which the server was started.
    Simulated(fn() -> Timestamp, Timestamp),
}

impl ServerClock {
    /// The system clock.
    pub(crate) fn system() -> Self {
        Self::System(SystemClock::new())
    }

    /// The virtual time that `now` returns. It must not go back.
    pub(crate) fn simulated(now: fn() -> Timestamp) -> Self {
        Self::Simulated(now, now())
    }

    /// Time since the clock was started.
    pub(crate) fn uptime(&self) -> Duration {
        match self {
            Self::System(clock) => clock.uptime(),
            Self::Simulated(now, start) => now().since(*start),
        }
    }
}

impl Clock for ServerClock {
    #[inline]
    fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Simulated(now, _) => now(),
        }
    }
}

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
