//! The results of holds.

use sluicegate_core::{Answer, MultiKeyAnswer};

use crate::Permit;

/// The result of a hold: a guard of the units, or a denial.
///
/// ```
/// use std::time::Duration;
/// use sluicegate::{Hold, LocalLimiter, PreparedPolicy};
///
/// let limiter = LocalLimiter::new();
/// let policy: PreparedPolicy = "concurrency:1/30s".parse()?;
/// let Hold::Allowed(permit) = limiter.hold("report", &policy, 1, None)? else {
///     panic!("the key is unused");
/// };
/// match limiter.hold("report", &policy, 1, None)? {
///     Hold::Allowed(_) => panic!("one report is in progress"),
///     Hold::Denied(answer) => println!("retry after {:?} at the latest", answer.retry()),
/// }
/// drop(permit);
/// assert!(limiter.hold("report", &policy, 1, None)?.allowed());
/// # Ok::<(), sluicegate::Error>(())
/// ```
#[must_use = "units are held only until the permit is dropped"]
#[derive(Debug)]
pub enum Hold<P = Permit, D = Answer> {
    /// The units are held.
    Allowed(P),
    /// The units are not available.
    Denied(D),
}

/// The result of a hold on several keys: a permit of each key, in the order of the keys, or a denial of all.
pub type MultiKeyHold<P = Permit> = Hold<Vec<P>, MultiKeyAnswer>;

impl<P, D> Hold<P, D> {
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
