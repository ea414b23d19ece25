//! The time of the tokio runtime as a clock.

use sluicegate_core::{Clock, Timestamp};
use tokio::time::Instant;

/// The time of the tokio runtime, for tests under paused time. Sleeping then advances the clock of the limiter, so
/// that calls that wait take no real time.
///
/// It starts at the Unix epoch, so that each run of a test has the same windows. Read it on tasks of one runtime: outside
/// of it, tokio has the real time.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{LocalLimiter, PreparedPolicy, RuntimeClock};
///
/// #[tokio::main(flavor = "current_thread", start_paused = true)] // in a test: #[tokio::test(start_paused = true)]
/// async fn main() -> Result<(), sluicegate::Error> {
///     let limiter = LocalLimiter::with_clock(RuntimeClock::new());
///     let policy: PreparedPolicy = "fixed-window:1/1h".parse()?;
///     let timeout = Duration::from_hours(2);
///     assert!(limiter.until_ready("user7", &policy, 1, timeout).await.allowed());
///     assert!(!limiter.take("user7", &policy, 1).allowed());
///     // An hour of virtual time.
///     assert!(limiter.until_ready("user7", &policy, 1, timeout).await.allowed());
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RuntimeClock {
    start: Timestamp,
    started: Instant,
}

impl RuntimeClock {
    /// A clock that shows the Unix epoch now.
    #[must_use]
    pub fn new() -> Self {
        Self::starting_at(Timestamp::EPOCH)
    }

    /// A clock that shows `start` now: for windows of the calendar.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { start, started: Instant::now() }
    }
}

/// As [`RuntimeClock::new`].
impl Default for RuntimeClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for RuntimeClock {
    fn now(&self) -> Timestamp {
        self.start + self.started.elapsed()
    }
}
