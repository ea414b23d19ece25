//! Clock and server of simulations in virtual time.

use std::{cell::Cell, time::Duration};

use futures_util::future::BoxFuture;
use sluicegate_core::{Decision, Operation, StoreError, Timestamp};
use tokio::time::Instant;

/// Decides instead of a server.
pub(crate) type VirtualServer =
    Box<dyn Fn(Operation) -> BoxFuture<'static, Result<Decision, StoreError>> + Send + Sync>;

/// The virtual time.
pub(crate) fn now() -> Timestamp {
    thread_local! {
        static BEGIN: Cell<Option<Instant>> = const { std::cell::Cell::new(None) };
    }
    // Runs follow each other on one thread, and time does not go back between them.
    let begin = BEGIN.get().filter(|begin| *begin <= Instant::now()).unwrap_or_else(Instant::now);
    BEGIN.set(Some(begin));
    Timestamp::EPOCH + Duration::from_secs(1_000_000) + begin.elapsed()
}
