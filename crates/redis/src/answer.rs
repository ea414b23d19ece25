//! A decision and its source.

use std::ops::Deref;

use sluicegate_core::Decision;

/// The source of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The denial cache: the store's last denial still applies.
    Cache,
    /// A lease of this process.
    Lease,
    /// `on_error`, because the store is unavailable.
    Fallback,
}

impl Source {
    /// Its name in logs and metrics.
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

/// A decision and its source. Dereferences to the [`Decision`].
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The decision.
    pub decision: Decision,
    /// Its source.
    pub source: Source,
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}
