//! The clocks. Other files of this crate read none, except for `replay/process.rs`.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use sluicegate_core::{Clock, Timestamp};

/// The processor's time stamp counter, as points in time and as nanoseconds between two readings.
#[derive(Debug)]
pub(crate) struct TscClock {
    clock: quanta::Clock,
    /// Time of the wall clock at the start, in microseconds.
    start: u64,
    /// The counter at the start.
    started: u64,
    /// Microseconds of a step of the counter, in 1/2^64.
    step: u64,
}

impl TscClock {
    pub(crate) fn new() -> Self {
        let clock = quanta::Clock::new();
        let since = wall().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let start = u64::try_from(since.as_micros()).expect("the year is not yet 2112");
        // From the nanoseconds of 2^44 steps, about an hour.
        let step = (clock.delta_as_nanos(0, 1 << 44) / 1000) << 20;
        Self { start, started: clock.raw(), step, clock }
    }

    /// The counter itself.
    #[inline]
    pub(crate) fn raw(&self) -> u64 {
        self.clock.raw()
    }

    /// Nanoseconds between two readings of the counter.
    #[inline]
    pub(crate) fn nanos(&self, from: u64, to: u64) -> u64 {
        self.clock.delta_as_nanos(from, to)
    }
}

impl Clock for TscClock {
    #[inline]
    fn now(&self) -> Timestamp {
        let steps = u128::from(self.raw().wrapping_sub(self.started));
        let micros = (steps * u128::from(self.step)) >> 64;
        // The counter does not reach 2^64 microseconds.
        Timestamp::saturating_from_micros(self.start + u64::try_from(micros).unwrap_or_default())
    }
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures time")]
pub(crate) fn instant() -> Instant {
    Instant::now()
}

/// The wall clock, for a peer that takes it as an argument.
#[expect(clippy::disallowed_methods, reason = "a peer takes the time as an argument of this type")]
pub(crate) fn wall() -> SystemTime {
    SystemTime::now()
}

/// Mean nanoseconds of one of `calls` calls.
pub(crate) fn per_call(calls: u64, mut call: impl FnMut()) -> f64 {
    let start = instant();
    for _ in 0..calls {
        call();
    }
    start.elapsed().as_secs_f64() * 1e9 / calls as f64
}
