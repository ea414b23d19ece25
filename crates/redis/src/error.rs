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
    #[error("{what}: {0}", what = what(.0))]
    Unavailable(String),
    /// There was no answer in time. The server may still do what was asked.
    #[error("the store is unavailable: no reply within {0:?}")]
    Timeout(Duration),
    /// What the key holds cannot be used: another type, a state that a later version wrote, or something
    /// else. The text is the server's error, and names the key. Nothing was changed.
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
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Timeout(_))
    }
}

/// What an error reply is about: a user that may not, or a store that cannot.
fn what(reason: &str) -> &'static str {
    let has = |classes: &[&str]| classes.iter().any(|class| reason.contains(class));
    if has(&["WRONGPASS"]) {
        "invalid user or password of the store"
    } else if has(&["NOAUTH"]) {
        "missing password of the store"
    } else if has(&["NOPERM", "ACL failure", "user executing the script"]) {
        "missing permission in the store"
    } else {
        "the store is unavailable"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_and_permissions_are_not_called_unavailable() {
        for (reason, expected) in [
            (
                "h:1: WRONGPASS invalid",
                "invalid user or password of the store: h:1: WRONGPASS invalid",
            ),
            ("h:1: NOAUTH x", "missing password of the store: h:1: NOAUTH x"),
            ("h:1: NOPERM x", "missing permission in the store: h:1: NOPERM x"),
            ("h:1: connection refused", "the store is unavailable: h:1: connection refused"),
        ] {
            let error = StoreError::Unavailable(reason.to_owned());
            assert_eq!(error.to_string(), expected);
            assert!(error.is_unavailable());
        }
    }
}
