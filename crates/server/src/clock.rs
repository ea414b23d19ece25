//! The clock of the server: the system clock, or in a simulation a function that returns virtual time.

use std::time::Duration;

use sluicegate_core::{Clock, Timestamp};
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
