//! A clock for tests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use crate::time::{Clock, Timestamp};

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
