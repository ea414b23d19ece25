//! One to eight limits on the same key, and their text form.

pub mod builder;
mod parse;

use std::{fmt, str::FromStr, sync::Arc};

use crate::{
    algorithm::{FixedWindow, Gcra, Limit},
    share::Share,
    text::{MAX_LIMITS, PolicyError},
};

/// One to eight limits on the same key, decided together. Cheap to clone.
///
/// The text form is `ALGORITHM:N/PERIOD[:option[=value]]...`, limits joined by commas. [`Display`](fmt::Display)
/// writes the canonical form, which parses to an equal policy.
///
/// ```
/// use sluicegate_core::Policy;
///
/// let policy: Policy = "leaky-bucket:120/60s:burst=120,sliding-log:1000/1440m".parse()?;
/// assert_eq!(policy.to_string(), "leaky-bucket:120/1m,sliding-log:1000/1d");
///
/// // The same by calls, which cannot have the options of another algorithm.
/// use std::time::Duration;
///
/// let day = Policy::sliding_log(1000).per(Duration::from_hours(24));
/// assert_eq!(policy, Policy::leaky_bucket(120).per(Duration::from_mins(1)).and(day).build()?);
///
/// let error = "gcra:30/0s".parse::<Policy>().unwrap_err();
/// assert_eq!(error.to_string(), "invalid period `0s`: expected 1ms to 366d");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Policy(Arc<[Limit]>);

impl Policy {
    /// The limits, as written.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.0
    }

    /// Whether the state of a key grows with every request, up to the limit: a log does.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.limits().iter().any(Limit::keeps_log)
    }

    /// Whether every limit can compute the time of admission in advance, as
    /// [`Operation::Reserve`](crate::Operation::Reserve) needs.
    #[must_use]
    pub fn can_reserve(&self) -> bool {
        self.limits().iter().all(Limit::can_reserve)
    }

    /// Whether a limit counts open holds (`concurrency`): units are then taken by holds only.
    #[must_use]
    pub fn counts_holds(&self) -> bool {
        self.limits().iter().any(Limit::counts_holds)
    }

    /// Whether a limit counts denied requests, too (`count=all`).
    #[must_use]
    pub fn records_denials(&self) -> bool {
        self.limits().iter().any(Limit::count_all)
    }

    /// Whether all limits are `concurrency` limits.
    pub(crate) fn is_concurrency(&self) -> bool {
        self.limits().iter().all(Limit::counts_holds)
    }

    /// That share of every limit: never more than its fraction, except that a limit keeps at least one unit where
    /// its period cannot become longer.
    #[must_use]
    pub fn share(&self, share: Share) -> Self {
        let limits: Vec<_> = self.limits().iter().map(|limit| limit.share(share)).collect();
        Self::try_from(limits).expect("there are as many limits as in a policy")
    }

    /// Whether both are the same object: cheaper than comparing them, and enough to prove that they are equal.
    #[must_use]
    pub fn ptr_eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The only limit, where there is one and it is of the gcra family.
    #[must_use]
    pub fn as_gcra(&self) -> Option<&Gcra> {
        match &*self.0 {
            [Limit::Gcra(gcra)] => Some(gcra),
            _ => None,
        }
    }

    /// The only limit, where there is one and it is a fixed window.
    #[must_use]
    pub fn as_window(&self) -> Option<&FixedWindow> {
        match &*self.0 {
            [Limit::FixedWindow(window)] => Some(window),
            _ => None,
        }
    }

    /// Whether both decide alike: the same limits in the same order, names and defaults aside.
    #[must_use]
    pub fn decides_like(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || (self.0.len() == other.0.len()
                && self.0.iter().zip(&*other.0).all(|(a, b)| a.decides_like(b)))
    }
}

/// One limit makes a policy.
impl From<Limit> for Policy {
    fn from(limit: Limit) -> Self {
        Self(Arc::new([limit]))
    }
}

impl TryFrom<Vec<Limit>> for Policy {
    type Error = PolicyError;

    fn try_from(limits: Vec<Limit>) -> Result<Self, PolicyError> {
        if (1..=MAX_LIMITS).contains(&limits.len()) {
            Ok(Self(limits.into()))
        } else {
            Err(PolicyError::count(limits.len()))
        }
    }
}

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        Self::try_from(parse::limits(text)?)
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, limit) in self.0.iter().enumerate() {
            if index > 0 {
                formatter.write_str(",")?;
            }
            limit.fmt(formatter)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Policy({self})")
    }
}
