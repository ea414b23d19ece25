//! A request to a store: one operation on one key, or one on several keys, all or none.

use std::slice;

use crate::{
    decision::{Operation, RequestError},
    prepared_policy::PreparedPolicy,
};

/// Upper bound on the length of a key in bytes, in commands, rules and remote stores, with the prefix of the store.
/// Stores in memory take keys of any length.
pub const MAX_KEY: usize = 65_536;

/// A key is empty, or longer than [`MAX_KEY`]. Holds its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid key: expected 1 to {MAX_KEY} bytes, found {0}")]
pub struct KeyLengthError(pub usize);

impl KeyLengthError {
    /// Checks the length of a key of an operation on units. An empty key is an error, because it is nearly always a
    /// missing value, and all clients would share one limit.
    ///
    /// # Errors
    /// `length` is not 1 to [`MAX_KEY`].
    #[inline]
    pub const fn check(length: usize) -> Result<(), Self> {
        if length == 0 { Err(Self(0)) } else { Self::check_or_empty(length) }
    }

    /// The same for a key that is only read or reset: it may be empty, because redis-cell allows that.
    ///
    /// # Errors
    /// `length` is more than [`MAX_KEY`].
    #[inline]
    pub const fn check_or_empty(length: usize) -> Result<(), Self> {
        if length > MAX_KEY { Err(Self(length)) } else { Ok(()) }
    }
}

/// An operation on a key under a policy.
#[derive(Clone, Copy, Debug)]
pub struct KeyedOperation<'a> {
    /// The key: any bytes.
    pub key: &'a [u8],
    /// The policy.
    pub policy: &'a PreparedPolicy,
    /// The operation.
    pub operation: Operation<'a>,
}

/// What a store decides at once: an operation on one key; or takes, peeks or holds of several keys, of all of them or of
/// none.
///
/// ```
/// use sluicegate_core::{KeyedOperation, Operation, PreparedPolicy, Request};
///
/// let policy: PreparedPolicy = "gcra:30/1m".parse()?;
/// let one = Request::one(b"user7", &policy, Operation::Take(1));
/// assert_eq!(one.operations().len(), 1);
///
/// let take = |key| KeyedOperation { key, policy: &policy, operation: Operation::Take(1) };
/// let takes = [take(b"user7"), take(b"everybody")];
/// assert_eq!(Request::all(&takes)?.operations().len(), 2);
///
/// let mixed = [takes[0], KeyedOperation { operation: Operation::Reset, ..takes[1] }];
/// let error = Request::all(&mixed).unwrap_err().to_string();
/// assert_eq!(error, "invalid operations on several keys: expected only takes, only peeks, or only holds with one id and ttl");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Request<'a>(Keys<'a>);

#[derive(Clone, Copy, Debug)]
enum Keys<'a> {
    One(KeyedOperation<'a>),
    Several(&'a [KeyedOperation<'a>]),
}

impl<'a> Request<'a> {
    /// `operation` on `key`, which is any bytes, under `policy`.
    #[must_use]
    #[inline(always)]
    pub const fn one(key: &'a [u8], policy: &'a PreparedPolicy, operation: Operation<'a>) -> Self {
        Self(Keys::One(KeyedOperation { key, policy, operation }))
    }

    /// Operations that are all applied or none is: 1 to [`MAX_KEYS_PER_TAKE`](crate::MAX_KEYS_PER_TAKE). If a key is given twice, only
    /// its first operation counts.
    ///
    /// # Errors
    /// [`RequestError`]: there is no key, there are too many, or the operations are not the same except for their cost.
    pub fn all(operations: &'a [KeyedOperation<'a>]) -> Result<Self, RequestError> {
        RequestError::check_count(operations.len())?;
        Self::of_rules(operations)
    }

    /// The same for what rules charge together, which is any number of keys.
    ///
    /// # Errors
    /// [`RequestError`]: there is no key, or the operations are not the same except for their cost.
    pub fn of_rules(operations: &'a [KeyedOperation<'a>]) -> Result<Self, RequestError> {
        RequestError::check(operations.iter().map(|it| it.operation))?;
        Ok(Self(Keys::Several(operations)))
    }

    /// The operation on the only key; `None` for a request of [`all`](Self::all).
    #[must_use]
    #[inline(always)]
    pub const fn single(self) -> Option<KeyedOperation<'a>> {
        match self.0 {
            Keys::One(operation) => Some(operation),
            Keys::Several(_) => None,
        }
    }

    /// The operation on each key, at least one.
    #[must_use]
    #[inline]
    pub const fn operations(&self) -> &[KeyedOperation<'a>] {
        match &self.0 {
            Keys::One(operation) => slice::from_ref(operation),
            Keys::Several(operations) => operations,
        }
    }
}

impl<'a> From<KeyedOperation<'a>> for Request<'a> {
    #[inline(always)]
    fn from(operation: KeyedOperation<'a>) -> Self {
        Self(Keys::One(operation))
    }
}
