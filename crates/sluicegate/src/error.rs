//! One error for functions that use several parts of the library.

use sluicegate_core::{
    LimitError, OperationError, PolicyError, RequestError, StoreError, TimestampError,
};

use crate::PushError;

/// Every error of this library: each converts to it, so that `?` works in a function that parses a policy, decides, and
/// queues items. A denial is an answer, never an error.
///
/// One does not convert: [`SnapshotError`](crate::SnapshotError), which has an [`io::Error`](std::io::Error).
///
/// ```
/// use sluicegate::{Limiter, PreparedPolicy};
///
/// async fn admit(limiter: &Limiter, user: &str) -> Result<bool, sluicegate::Error> {
///     let policy: PreparedPolicy = "gcra:30/1m".parse()?;
///     Ok(limiter.take(user, &policy, 1).await?.allowed())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Text or values that are not a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// A value outside of its domain, such as a [`Share`](crate::Share) of 2/1.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The store made no decision, or a setting is invalid.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A time beyond [`Timestamp::MAX`](crate::Timestamp::MAX).
    #[error(transparent)]
    Timestamp(#[from] TimestampError),
    /// The queue of a [`Shaper`](crate::Shaper) is full.
    #[error("the queue is full")]
    QueueFull,
    /// The queue of a [`Shaper`](crate::Shaper) is closed.
    #[error("the queue is closed")]
    QueueClosed,
}

impl From<OperationError> for Error {
    fn from(error: OperationError) -> Self {
        Self::Store(error.into())
    }
}

impl From<RequestError> for Error {
    fn from(error: RequestError) -> Self {
        Self::Store(error.into())
    }
}

/// Drops the item.
impl<T> From<PushError<T>> for Error {
    fn from(error: PushError<T>) -> Self {
        match error {
            PushError::Full(_) => Self::QueueFull,
            PushError::Closed(_) => Self::QueueClosed,
        }
    }
}
