//! Stores of state.

use std::{future::Future, sync::Arc};

use crate::{Decision, Operation, Policy};

/// A store of state, which applies one operation to one key, atomically, by its own clock.
///
/// A store makes whole decisions, not get and compare-and-swap, because a process, a script and a module
/// are atomic in different ways.
pub trait Store {
    /// Reason for which no decision was made. A denial is an answer, never an error.
    type Error: std::error::Error;

    /// Applies `operation` to `key`, which is any bytes, under `policy`.
    ///
    /// # Errors
    /// The store is unavailable, or the operation is invalid for the policy or the stored value.
    fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> impl Future<Output = Result<Decision, Self::Error>> + Send;

    /// Lets a synchronous store answer without creating a future. Other stores return `None`, and have
    /// changed nothing.
    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, Self::Error>> {
        let _ = (key, policy, operation);
        None
    }
}

/// A shared store is a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    type Error = S::Error;

    fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> impl Future<Output = Result<Decision, Self::Error>> + Send {
        S::apply(self, key, policy, operation)
    }

    fn apply_now(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> Option<Result<Decision, Self::Error>> {
        S::apply_now(self, key, policy, operation)
    }
}
