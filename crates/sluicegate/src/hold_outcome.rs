//! The results of holds.

use sluicegate_core::Answer;

use crate::Permit;

/// The result of a hold: a guard of the units, or a denial. On several keys, it is a permit of each key, in the order of
/// the keys, or the denial of all.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{HoldOutcome, LocalLimiter, PreparedPolicy};
///
/// let limiter = LocalLimiter::new();
/// let policy: PreparedPolicy = "concurrency:1/30s".parse()?;
/// let HoldOutcome::Allowed(permit) = limiter.hold("report", &policy, 1, None)? else {
///     panic!("the key is unused");
/// };
/// match limiter.hold("report", &policy, 1, None)? {
///     HoldOutcome::Allowed(_) => panic!("one report is in progress"),
///     HoldOutcome::Denied(answer) => println!("retry after {:?} at the latest", answer.retry()),
/// }
/// drop(permit);
/// assert!(limiter.hold("report", &policy, 1, None)?.allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[must_use = "units are held only until the permit is dropped"]
#[derive(Debug)]
pub enum HoldOutcome<P = Permit, D = Answer> {
    /// The units are held.
    Allowed(P),
    /// The units are not available.
    Denied(D),
}

impl<P, D> HoldOutcome<P, D> {
    /// Whether the units are held.
    #[must_use]
    pub const fn allowed(&self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    /// The permit; `None` if denied.
    pub fn permit(self) -> Option<P> {
        match self {
            Self::Allowed(permit) => Some(permit),
            Self::Denied(_) => None,
        }
    }
}
