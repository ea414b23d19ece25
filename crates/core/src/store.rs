//! Where state lives.

use std::future::Future;

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
}
