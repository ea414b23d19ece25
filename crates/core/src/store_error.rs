//! Errors of stores.

use std::time::Duration;

use crate::{apply::HoldError, apply::OperationError, decision::RequestError};

/// Why the state of a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateFault {
    /// The key holds another type than a string.
    WrongType,
    /// A newer version of Sluicegate has written it.
    Version,
    /// It holds a value that Sluicegate did not write, or a damaged state.
    Damaged,
}

impl StateFault {
    /// The fault that an error reply names, if any: `WRONGTYPE` and `SGSTATE` are the classes
    /// of such errors.
    #[must_use]
    pub fn of(error: &str) -> Option<Self> {
        match error.split_once(' ')? {
            ("WRONGTYPE", _) => Some(Self::WrongType),
            ("SGSTATE", rest) => {
                let newer = rest
                    .rsplit_once("` holds ")
                    .is_some_and(|(_, what)| what.starts_with("state of version "));
                Some(if newer { Self::Version } else { Self::Damaged })
            }
            _ => None,
        }
    }
}

/// An error of the store. A denial is a decision, never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The server cannot be reached, or replies that it cannot apply the operation now (`READONLY`, `OOM`,
    /// `NOPERM`, ...). If the connection broke, the server may have applied it.
    #[error("{what}: {0}", what = what(.0))]
    Unavailable(String),
    /// There was no reply in time. The server may still apply the operation.
    #[error("the store is unavailable: no reply within {0:?}")]
    Timeout(Duration),
    /// The value of the key cannot be used: another type, a state of a later version, or something else. The text
    /// is the error of the server, and names the key. Nothing was changed.
    #[error("the key's state cannot be used: {1}")]
    Corrupt(StateFault, String),
    /// The key is invalid: it is empty, or too long, with the prefix of the store. Nothing was sent.
    #[error("{0}")]
    Key(String),
    /// The store rejects the arguments of the operation; a repeated call fails as well. The text says why. Nothing was changed.
    #[error("{0}")]
    Arguments(String),
    /// The policy does not support the operation.
    #[error(transparent)]
    Operation(OperationError),
    /// An operation on a hold is invalid, or the policy does not support it.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// An invalid URL or option.
    #[error("{0}")]
    Settings(String),
}

impl StoreError {
    /// Whether the store is unavailable, so that the fallback applies.
    #[must_use]
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Timeout(_))
    }
}

impl From<OperationError> for StoreError {
    fn from(error: OperationError) -> Self {
        match error {
            OperationError::Hold(error) => Self::Hold(error),
            OperationError::Request(error) => error.into(),
            OperationError::Reserve | OperationError::Concurrency => Self::Operation(error),
        }
    }
}

impl From<RequestError> for StoreError {
    fn from(error: RequestError) -> Self {
        Self::Arguments(error.to_string())
    }
}

/// The cause of an error reply: a missing permission, or an unavailable store.
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
    fn store_error_names_credentials_and_permissions() {
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

    #[test]
    fn state_fault_of_error_text_names_the_fault() {
        for (error, fault) in [
            ("WRONGTYPE key `k` does not hold a string", Some(StateFault::WrongType)),
            ("SGSTATE key `k` holds state of version 3, and ...", Some(StateFault::Version)),
            (
                "SGSTATE key ` holds state of version ` holds damaged state: x",
                Some(StateFault::Damaged),
            ),
            ("SGSTATE key `k` holds damaged state: it ends too early", Some(StateFault::Damaged)),
            (
                "SGSTATE key `k` holds a value that Sluicegate did not write",
                Some(StateFault::Damaged),
            ),
            ("OOM command not allowed", None),
            ("SGSTATE", None),
        ] {
            assert_eq!(StateFault::of(error), fault);
        }
    }
}
