//! Why a question got no answer.

use std::time::Duration;

use sluicegate_core::ReserveError;

use crate::script::StateFault;

/// Why a question got no answer. A refusal is an answer, never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The server cannot be reached, or says that it cannot or will not answer now (`READONLY`, `OOM`,
    /// `NOPERM`, ...). Whether it has done what was asked is not known when a connection broke.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// There was no answer in time. The server may still do what was asked.
    #[error("the store has not answered within {0:?}")]
    Timeout(Duration),
    /// What the key holds cannot be used: another type, a state that a later version wrote, or something
    /// else. The text is the server's error, and says what would do. Nothing was changed.
    #[error("the key's state cannot be used: {1}")]
    Corrupt(StateFault, String),
    /// The policy cannot be reserved from.
    #[error(transparent)]
    Reserve(#[from] ReserveError),
    /// A URL or an option that is none.
    #[error("{0}")]
    Settings(String),
}

impl StoreError {
    /// Whether it is the store that is away, so that what a rule says about that applies.
    #[must_use]
    pub const fn is_absence(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Timeout(_))
    }
}
