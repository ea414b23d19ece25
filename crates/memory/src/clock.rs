//! The one place that asks the system for the time.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluicegate_core::{Clock, Timestamp};

/// The system's time, which never steps: the wall clock is read once, at the start, and what has
/// elapsed since is added from the monotonic clock.
///
/// ```
/// use sluicegate_core::Clock;
/// use sluicegate_memory::SystemClock;
///
/// let clock = SystemClock::new();
/// let earlier = clock.now();
/// assert!(earlier <= clock.now());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// The time at which it was started.
    start: Timestamp,
    started: Instant,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now. A wall clock before 1970 counts as 1970.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the system's clocks")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { start: Timestamp::EPOCH + wall, started: Instant::now() }
    }

    /// How long the clock has run.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.start + self.uptime()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_agrees_with_the_wall_clock_and_never_runs_back() {
        let clock = SystemClock::default();
        assert!(clock.now() > Timestamp::EPOCH + Duration::from_secs(1_500_000_000));
        let times: Vec<_> = (0..1000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
    }
}
