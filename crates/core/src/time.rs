//! Points in time, and clocks.
//!
//! Time enters the core only as an argument: the owner of the state reads a clock and passes the time. Spans
//! of time are [`std::time::Duration`]s of whole microseconds.

use std::{
    fmt,
    ops::Add,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A point in time: whole microseconds since the Unix epoch, `0..=2^52` (until the year 2112).
///
/// The upper bound keeps the sum with the longest debt (2^50 µs) below 2^53, so that every time is exact in Lua too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last point in time.
    pub const MAX: Self = Self(1 << 52);

    /// The point `micros` microseconds after the Unix epoch.
    ///
    /// # Errors
    /// [`TimestampError`] beyond [`Timestamp::MAX`].
    pub const fn from_micros(micros: u64) -> Result<Self, TimestampError> {
        if micros <= Self::MAX.0 { Ok(Self(micros)) } else { Err(TimestampError { micros }) }
    }

    /// The point `micros` microseconds after the Unix epoch, or [`Timestamp::MAX`] beyond it.
    #[must_use]
    pub const fn saturating_from_micros(micros: u64) -> Self {
        if micros <= Self::MAX.0 { Self(micros) } else { Self::MAX }
    }

    /// A point that a look-ahead from another one reaches: it may lie beyond [`Timestamp::MAX`].
    pub(crate) const fn ahead(micros: u64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if that is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// Adds a span, at most up to [`Timestamp::MAX`].
impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self::saturating_from_micros(self.0.saturating_add(as_micros(span)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}us", self.0)
    }
}

/// A time beyond [`Timestamp::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid time `{micros}us`: expected 0us to {}us", Timestamp::MAX.0)]
pub struct TimestampError {
    micros: u64,
}

/// A source of the current time. The system clock is in the crate `sluicegate-memory`; tests use
/// [`ManualClock`](crate::ManualClock).
pub trait Clock {
    /// The time now.
    fn now(&self) -> Timestamp;
}

/// A shared clock.
impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        C::now(self)
    }
}

/// A span in whole microseconds, rounded down; `u64::MAX` for one longer than that holds.
#[must_use]
pub fn as_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A span in whole seconds, rounded up; `u64::MAX` for one longer than that holds.
///
/// ```
/// use std::time::Duration;
///
/// use sluicegate_core::whole_seconds;
///
/// assert_eq!(whole_seconds(Duration::from_micros(1_000_001)), 2);
/// assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
/// ```
#[must_use]
pub fn whole_seconds(span: Duration) -> u64 {
    span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0))
}

/// A clock for tests and simulations, which moves only when it is set or advanced. All clones share one time.
///
/// ```
/// use std::time::Duration;
/// use sluicegate_core::{Clock, ManualClock, Timestamp};
///
/// let clock = ManualClock::default(); // at the Unix epoch
/// let shared = clock.clone();
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(shared.now().as_micros(), 5000);
/// shared.set(Timestamp::EPOCH);
/// assert_eq!(clock.now(), Timestamp::EPOCH);
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<AtomicU64>);

impl ManualClock {
    /// A clock that shows `now`.
    #[must_use]
    pub fn new(now: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(now.as_micros())))
    }

    /// Sets the time, forwards or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_micros(), Ordering::SeqCst);
    }

    /// Adds `span`, in whole microseconds, at most up to [`Timestamp::MAX`]. Concurrent calls all count.
    pub fn advance(&self, span: Duration) {
        let later = |micros| Some((Timestamp::saturating_from_micros(micros) + span).as_micros());
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).expect("it never refuses");
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::saturating_from_micros(self.0.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_beyond_its_domain_is_an_error() {
        assert_eq!(Timestamp::from_micros(1 << 52), Ok(Timestamp::MAX));
        let error = Timestamp::from_micros((1 << 52) + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid time `4503599627370497us`: expected 0us to 4503599627370496us"
        );
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
    }
}

#[cfg(test)]
mod manual_clock_tests {
    use super::*;

    #[test]
    fn advance_clone_adds_up_to_the_maximum() {
        let clock = ManualClock::default();
        for _ in 0..3 {
            clock.clone().advance(Duration::from_micros(5));
        }
        assert_eq!(clock.now().as_micros(), 15);
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
