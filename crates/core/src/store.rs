//! The seam between decisions and state: what every store does.

use std::{fmt::Debug, sync::Arc};

use crate::{
    answer::Answer,
    applied::Applied,
    decision::Operation,
    entry::Entry,
    prepared_policy::PreparedPolicy,
    request::{KeyedOperation, Request},
    store_status::StoreStatus,
    time::Timestamp,
};

/// Reads the entry of a key, if there is one that has not recovered, and the time of the store. It may run under a
/// lock: it must neither take long nor call the store.
pub type ReadEntry<'a> = &'a mut (dyn FnMut(Option<&Entry>, Timestamp) + Send);

/// A store of state, which decides requests, each atomically, by its own clock.
///
/// A store makes whole decisions, not get and compare-and-swap, because a process, a script and a module
/// are atomic in different ways. Each method answers now or later ([`Applied`]).
///
/// ```
/// use sluicegate_core::{Operation, PreparedPolicy, Request, Store};
///
/// async fn admit<S: Store>(store: &S, user: &[u8], policy: &PreparedPolicy) -> Result<bool, S::Error> {
///     Ok(store.apply(Request::one(user, policy, Operation::Take(1))).await?.allowed())
/// }
/// ```
pub trait Store: Debug + Send + Sync {
    /// Reason for which no decision was made. A denial is an answer, never an error.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Decides a request. A hold, a settle and a renew may be repeated where the answer was lost. If a key is given twice,
    /// only its first operation counts.
    ///
    /// # Errors
    /// The store is unavailable and has no fallback ([`OnError`](crate::OnError)) for the operation; the operation is
    /// invalid for the policy or the stored value; or the key has as many open holds as there can be.
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, Self::Error>>;

    /// Takes `cost` units of `key`, all or none.
    ///
    /// # Errors
    /// As [`Store::apply`].
    #[inline(always)]
    fn take<'a>(
        &'a self,
        key: &'a [u8],
        policy: &'a PreparedPolicy,
        cost: u32,
    ) -> Applied<'a, Result<Answer, Self::Error>> {
        self.apply(Request::one(key, policy, Operation::Take(cost)))
    }

    /// Applies independent operations, in order. The answers are in the same order.
    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        Applied::in_order(operations.iter().map(|it| self.apply((*it).into())))
    }

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
    fn apply<'a>(&'a self, request: Request<'a>) -> Applied<'a, Result<Answer, Self::Error>> {
        self.as_store().apply(request)
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, Self::Error>>> {
        self.as_store().apply_many(operations)
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
