//! The system clock. Only this file reads the wall clock, and only `tsc` the monotonic clock (ADR 20).

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sluicegate_core::{Clock, Timestamp};

use crate::tsc;

/// The system's time, without steps: the wall clock at the start, plus the time elapsed by the monotonic clock. If the
/// time stamp counter of the processor can be trusted, it is used between readings of the monotonic clock: a reading
/// then takes about 10 ns instead of 37 ns, and is at most a few microseconds off while the counter keeps its rate.
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
    /// The start in nanoseconds of [`tsc`].
    started: u64,
}

impl SystemClock {
    /// A clock that agrees with the wall clock now. A wall clock before 1970 counts as 1970.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn new() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Self { start: Timestamp::EPOCH + wall, started: tsc::nanos() }
    }

    /// Time since the clock was started.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        Duration::from_nanos(tsc::nanos().saturating_sub(self.started))
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
        let micros = tsc::nanos().saturating_sub(self.started) / 1000;
        Timestamp::saturating_from_micros(self.start.as_micros().saturating_add(micros))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_agrees_with_wall_clock_and_is_monotonic() {
        let clock = SystemClock::default();
        assert!(clock.now() > Timestamp::EPOCH + Duration::from_secs(1_500_000_000));
        let times: Vec<_> = (0..1000).map(|_| clock.now()).collect();
        assert!(times.is_sorted());
    }
}
