//! Where state lives.

use std::{future::Future, sync::Arc};

use crate::{Decision, Operation, Policy};

/// Where state lives: applies one operation to one key, atomically, by the store's own time.
///
/// The seam is the decision, not get and compare-and-swap: a process, a script and a module can each
/// be atomic in their own way.
pub trait Store {
    /// Why nothing was decided. A refusal is an answer, never an error.
    type Error: std::error::Error;

    /// Applies `operation` to `key`, which is any bytes, under `policy`.
    ///
    /// # Errors
    /// What the store says when it cannot be asked, or the question cannot be answered.
    fn apply(
        &self,
        key: &[u8],
        policy: &Policy,
        operation: Operation,
    ) -> impl Future<Output = Result<Decision, Self::Error>> + Send;

    /// The same at once, by a store that waits for nobody; `None` from one that may have to, and then
    /// nothing was done. It spares whoever asks a future: a place to keep it, and one more thing to poll.
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
