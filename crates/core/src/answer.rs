//! Decisions of a store, with their source.

use std::ops::Deref;

use crate::{decision::Decision, multi_key::MultiKeyDecision};

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
    /// [`OnError`](crate::OnError), because the store is unavailable.
    Fallback,
}

impl Source {
    /// All sources.
    pub const ALL: [Self; 4] = [Self::Store, Self::Cache, Self::Lease, Self::Fallback];

    /// Its name in logs and metrics.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
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

/// A decision that the store made.
impl From<Decision> for Answer {
    fn from(decision: Decision) -> Self {
        Self { decision, source: Source::Store }
    }
}

impl Deref for Answer {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

/// A decision on several keys, and its source. Dereferences to the [`MultiKeyDecision`].
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MultiKeyAnswer {
    /// The decision.
    pub multi_key: MultiKeyDecision,
    /// Its source; that of the binding key if the keys were taken one after the other.
    pub source: Source,
}

/// A decision that the store made.
impl From<MultiKeyDecision> for MultiKeyAnswer {
    fn from(multi_key: MultiKeyDecision) -> Self {
        Self { multi_key, source: Source::Store }
    }
}

impl Deref for MultiKeyAnswer {
    type Target = MultiKeyDecision;

    fn deref(&self) -> &MultiKeyDecision {
        &self.multi_key
    }
}
