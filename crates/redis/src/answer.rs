//! A decision, and who made it.

use std::ops::Deref;

use sluicegate_core::Decision;

/// Who made a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// Nobody anew: the store's last denial still stands.
    Cache,
    /// This process, from what it has leased.
    Lease,
    /// This process, because the store is away: as `on_error` says.
    Fallback,
}

impl Source {
    /// The word for it in logs and metrics.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Cache => "cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
        }
    }
}

/// A decision, and who made it. Reads like the [`Decision`] itself.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What was decided.
    pub decision: Decision,
    /// Who decided it.
    pub source: Source,
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}
