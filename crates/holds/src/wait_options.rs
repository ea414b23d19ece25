//! How long a request waits, and the random delays of its waits.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// How long to wait, and with which jitter. A [`Duration`] is a timeout without jitter.
///
/// ```
/// # use sluicegate_holds::{Jitter, WaitOptions};
/// use std::time::Duration;
///
/// let jitter = Jitter::up_to(Duration::from_millis(5));
/// let wait = WaitOptions::up_to(Duration::from_secs(60)).jitter(jitter);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitOptions {
    timeout: Duration,
    jitter: Jitter,
}

impl WaitOptions {
    /// Waits up to `timeout`, without jitter.
    #[must_use]
    pub const fn up_to(timeout: Duration) -> Self {
        Self { timeout, jitter: Jitter::NONE }
    }

    /// Sets the jitter.
    #[must_use]
    pub const fn jitter(self, jitter: Jitter) -> Self {
        Self { jitter, ..self }
    }

    /// How long to wait.
    #[must_use]
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A delay of the jitter.
    pub(crate) fn random_delay(&self) -> Duration {
        self.jitter.delay()
    }
}

/// A timeout without jitter.
impl From<Duration> for WaitOptions {
    fn from(timeout: Duration) -> Self {
        Self::up_to(timeout)
    }
}

/// A random delay that is added to each wait, so that requests that wait for the same moment do not return at once. It
/// never exceeds the timeout, and a request that need not wait is not delayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter {
    max: Duration,
    seed: Option<u64>,
}

impl Jitter {
    /// No delay.
    pub const NONE: Self = Self { max: Duration::ZERO, seed: None };

    /// A delay from zero to just below `max`, in whole nanoseconds, all equally likely; at most 584 years.
    #[must_use]
    pub const fn up_to(max: Duration) -> Self {
        Self { max, seed: None }
    }

    /// The same delay each time, determined by `seed`: for tests.
    #[must_use]
    pub const fn seeded(self, seed: u64) -> Self {
        Self { seed: Some(seed), ..self }
    }

    /// A delay.
    #[must_use]
    pub fn delay(&self) -> Duration {
        if self.max.is_zero() {
            return Duration::ZERO;
        }
        // Each `RandomState` has keys of its own, the first ones from the operating system.
        let random = self.seed.map_or_else(|| RandomState::new().build_hasher().finish(), mix);
        let max = u64::try_from(self.max.as_nanos()).unwrap_or(u64::MAX);
        let nanos = (u128::from(max) * u128::from(random)) >> 64;
        Duration::from_nanos(u64::try_from(nanos).expect("it is less than the maximum"))
    }
}

/// A number with the bits of `seed` mixed (the finalizer of SplitMix64).
const fn mix(seed: u64) -> u64 {
    let mut bits = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}
