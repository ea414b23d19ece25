//! Points in time, and who tells them.
//!
//! Time enters the core only as an argument. Whoever holds the state reads a clock and passes what
//! it said; spans of time are [`std::time::Duration`]s of whole microseconds.

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
/// The upper bound leaves room for the longest debt (2^50 µs) below 2^53, so that every time is
/// exact in Lua too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The last point in time that can be told.
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

/// A time that no [`Timestamp`] can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid time `{micros}us`: expected 0us to {}us", Timestamp::MAX.0)]
pub struct TimestampError {
    micros: u64,
}

/// Tells the time. The one implementation that asks the system lives with the in-memory store.
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

/// A clock that is moved by hand: for tests and for simulations.
#[derive(Debug, Default)]
pub struct ManualClock(AtomicU64);

impl ManualClock {
    /// A clock that stands at `now`.
    #[must_use]
    pub const fn new(now: Timestamp) -> Self {
        Self(AtomicU64::new(now.0))
    }

    /// Moves the clock to `now`, forwards or back.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.0, Ordering::SeqCst);
    }

    /// Moves the clock forwards by `span`.
    pub fn advance(&self, span: Duration) {
        self.set(self.now() + span);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.0.load(Ordering::SeqCst))
    }
}

/// A span in whole microseconds, rounded down; `u64::MAX` for one longer than that holds.
#[must_use]
pub fn as_micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_beyond_the_domain_are_refused_by_name() {
        assert_eq!(Timestamp::from_micros(1 << 52), Ok(Timestamp::MAX));
        let error = Timestamp::from_micros((1 << 52) + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid time `4503599627370497us`: expected 0us to 4503599627370496us"
        );
        assert_eq!(Timestamp::MAX + Duration::MAX, Timestamp::MAX);
    }

    #[test]
    fn a_manual_clock_moves_when_told() {
        let clock = ManualClock::new(Timestamp::EPOCH);
        clock.advance(Duration::from_millis(5));
        assert_eq!(clock.now().as_micros(), 5000);
        clock.set(Timestamp::EPOCH);
        assert_eq!(clock.now(), Timestamp::EPOCH);
    }
}
