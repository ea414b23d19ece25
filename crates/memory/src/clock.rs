//! The time of the system: here its wall clock is read, and in `ticks` its monotonic one; nowhere else.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate_core::{Clock, Timestamp};

use crate::ticks;

/// The system's time, which never steps: the wall clock is read once, at the start, and what has
/// elapsed since is added from the monotonic clock. Where the processor's counter can be trusted, that is
/// asked in between (ADR 20): then a reading takes some 10 ns rather than 37, and is a few
/// microseconds off at the most, while the counter runs as it did a millisecond ago.
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
    /// In the nanoseconds of [`ticks`].
    started: u64,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now. A wall clock before 1970 counts as 1970.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { start: Timestamp::EPOCH + wall, started: ticks::nanos() }
    }

    /// How long the clock has run.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        Duration::from_nanos(ticks::nanos().saturating_sub(self.started))
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let micros = ticks::nanos().saturating_sub(self.started) / 1000;
        Timestamp::saturating_from_micros(self.start.as_micros().saturating_add(micros))
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
