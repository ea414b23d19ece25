//! Waiting until a hold fits: when the next attempt is made.
//!
//! A settle may free units at any time, and a store does not announce that. Therefore the request is repeated at a
//! pace that adapts: the longer it has waited, the longer it pauses.

use std::time::Duration;

use sluicegate_core::{PreparedPolicy, Retry, wait::peeks_first};

use crate::WaitOptions;

/// The shortest and the longest pause between two attempts.
const MIN_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// When a request that waits until a hold fits makes its next attempt, in time since its start.
///
/// ```
/// use std::time::Duration;
/// use sluicegate_core::Retry;
/// use sluicegate_holds::HoldWait;
///
/// let wait = HoldWait::new(Duration::from_secs(10).into());
/// let denied = Some(Retry::After(Duration::from_secs(60)));
/// assert_eq!(wait.pause(Duration::ZERO, denied), Some(Duration::from_millis(1)));
/// assert_eq!(wait.pause(Duration::from_secs(1), denied), Some(Duration::from_millis(125)));
/// assert_eq!(wait.pause(Duration::from_secs(10), denied), None);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HoldWait {
    options: WaitOptions,
}

impl HoldWait {
    /// A request that waits as `options` say. With a timeout of zero, it does not wait.
    #[must_use]
    pub const fn new(options: WaitOptions) -> Self {
        Self { options }
    }

    /// Whether a peek comes before the hold, because each denial is recorded: only the last one is to be.
    #[must_use]
    pub fn peeks(&self, waited: Duration, policy: &PreparedPolicy) -> bool {
        waited < self.options.timeout() && peeks_first(policy.policy())
    }

    /// How long to pause after a denial; `None` if that is the answer.
    #[must_use]
    pub fn pause(&self, waited: Duration, retry: Option<Retry>) -> Option<Duration> {
        let Some(Retry::After(after)) = retry else { return None };
        let left = self.options.timeout().checked_sub(waited).filter(|left| !left.is_zero())?;
        let pause = (waited / 8).clamp(MIN_PAUSE, MAX_PAUSE).min(after);
        Some((pause + self.options.random_delay()).min(left))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pause_grows_with_the_time_waited_and_ends_with_the_timeout() {
        let wait = HoldWait::new(Duration::from_secs(10).into());
        let pause = |millis, retry| wait.pause(Duration::from_millis(millis), Some(retry));
        let later = Retry::After(Duration::from_secs(5));
        for (waited, expected) in [(0, 1), (80, 10), (1_000, 125), (9_000, 250), (9_900, 100)] {
            assert_eq!(pause(waited, later), Some(Duration::from_millis(expected)), "{waited}");
        }
        let soon = Retry::After(Duration::from_millis(7));
        assert_eq!(pause(1_000, soon), Some(Duration::from_millis(7)), "then it passes");
        assert_eq!(pause(10_000, later), None);
        assert_eq!(pause(0, Retry::Never), None);
        let mut attempts = 0;
        let mut waited = Duration::ZERO;
        while let Some(pause) = wait.pause(waited, Some(later)) {
            (waited, attempts) = (waited + pause, attempts + 1);
        }
        assert_eq!((waited, attempts), (Duration::from_secs(10), 87));
    }
}
