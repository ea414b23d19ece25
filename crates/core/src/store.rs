//! The seam between decisions and state: what every store does.

use std::{fmt::Debug, sync::Arc};

use crate::{
    answer::{Answer, MultiKeyAnswer},
    applied::Applied,
    decision::Operation,
    entry::Entry,
    holds::HoldOperation,
    multi_key::MultiKeyOperation,
    prepared_policy::PreparedPolicy,
    store_status::StoreStatus,
    time::Timestamp,
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

/// One of several independent operations.
#[derive(Clone, Copy, Debug)]
pub struct KeyedOperation<'a> {
    /// The key: any bytes.
    pub key: &'a [u8],
    /// The policy.
    pub policy: &'a PreparedPolicy,
    /// The operation.
    pub operation: Operation,
}

/// One key of a take on several keys.
#[derive(Clone, Copy, Debug)]
pub struct KeyedTake<'a> {
    /// The key: any bytes.
    pub key: &'a [u8],
    /// The policy.
    pub policy: &'a PreparedPolicy,
    /// Units to take.
    pub cost: u32,
}

/// Reads the entry of a key, if there is one that has not recovered, and the time of the store. It may run under a
/// lock: it must neither take long nor call the store.
pub type ReadEntry<'a> = &'a mut (dyn FnMut(Option<&Entry>, Timestamp) + Send);

/// A store of state, which applies operations to keys, atomically, by its own clock.
///
/// A store makes whole decisions, not get and compare-and-swap, because a process, a script and a module
/// are atomic in different ways. Each method answers now or later ([`Applied`]).
///
/// ```
/// use sluicegate_core::{Operation, PreparedPolicy, Store};
///
/// async fn admit<S: Store>(store: &S, user: &[u8], policy: &PreparedPolicy) -> Result<bool, S::Error> {
///     Ok(store.apply(user, policy, Operation::Take(1)).await?.allowed())
/// }
/// ```
pub trait Store: Debug + Send + Sync {
    /// Reason for which no decision was made. A denial is an answer, never an error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Applies `operation` to `key`, which is any bytes, under `policy`.
    ///
    /// # Errors
    /// The store is unavailable and has no fallback ([`OnError`](crate::OnError)) for the operation, or the operation
    /// is invalid for the policy or the stored value.
    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, Self::Error>>;

    /// Takes `cost` units, all or none.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn take<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        cost: u32,
    ) -> Applied<'a, Result<Answer, Self::Error>> {
        self.apply(key, policy, Operation::Take(cost))
    }

    /// Applies independent operations, in order. The answers are in the same order.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        Applied::in_order(operations.iter().map(|it| self.apply(it.key, it.policy, it.operation)))
    }

    /// Applies `operation` to a hold of `key`, under `policy`. It may be repeated where the answer was lost.
    ///
    /// # Errors
    /// As [`Store::apply`]; also where the key has as many open holds as there can be.
    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, Self::Error>>;

    /// Takes from several keys, from all of them or from none, holds, or peeks. If a key is given twice, only the
    /// first take counts.
    ///
    /// # Errors
    /// As [`Store::apply`]; also without a key.
    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, Self::Error>>;

    /// Calls `read` with the entry of `key`, once.
    ///
    /// # Errors
    /// The store is unavailable, or the stored value is not an entry.
    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), Self::Error>>;

    /// Resets `key`, for every policy. Whether it had state that had not recovered.
    ///
    /// # Errors
    /// As [`Store::apply`].
    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, Self::Error>>;

    /// Checks whether an operation on units may have `key`. Each operation checks it as well; this is for several keys
    /// of which none may be charged before all are valid.
    ///
    /// # Errors
    /// The key is empty or too long for this store.
    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), Self::Error> {
        let _ = key;
        Ok(())
    }

    /// Brings the state of `key` near, for an operation that follows soon.
    fn prefetch(&self, key: &[u8]) {
        let _ = key;
    }

    /// The status of the store, without a call to it.
    fn status(&self) -> StoreStatus;

    /// Returns what this process holds of the store's units, such as leases. The store stays usable.
    fn close(&self) -> Applied<'_, ()> {
        Applied::Now(())
    }
}

/// A type with a store inside that it shares all operations with. It is thereby a [`Store`].
pub trait AsStore: Debug + Send + Sync {
    /// The type of the store inside.
    type Inner: Store + ?Sized;

    /// The store inside.
    fn as_store(&self) -> &Self::Inner;
}

impl<S: Store + ?Sized> AsStore for Arc<S> {
    type Inner = S;

    #[inline]
    fn as_store(&self) -> &S {
        self
    }
}

impl<T: AsStore + ?Sized> Store for T {
    type Error = <T::Inner as Store>::Error;

    #[inline(always)]
    fn apply<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: Operation,
    ) -> Applied<'a, Result<Answer, Self::Error>> {
        self.as_store().apply(key, policy, operation)
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        self.as_store().apply_many(operations)
    }

    fn apply_hold<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        operation: HoldOperation<'a>,
    ) -> Applied<'a, Result<Answer, Self::Error>> {
        self.as_store().apply_hold(key, policy, operation)
    }

    fn apply_multi_key<'a>(
        &'a self,
        operation: MultiKeyOperation<'a>,
        takes: &'a [KeyedTake<'a>],
    ) -> Applied<'a, Result<MultiKeyAnswer, Self::Error>> {
        self.as_store().apply_multi_key(operation, takes)
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), Self::Error>> {
        self.as_store().read(key, read)
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, Self::Error>> {
        self.as_store().reset(key)
    }

    #[inline]
    fn check_key(&self, key: &[u8]) -> Result<(), Self::Error> {
        self.as_store().check_key(key)
    }

    fn prefetch(&self, key: &[u8]) {
        self.as_store().prefetch(key);
    }

    fn status(&self) -> StoreStatus {
        self.as_store().status()
    }

    fn close(&self) -> Applied<'_, ()> {
        self.as_store().close()
    }
}
