//! The runtime of calls of stores in other processes, and what a fork does to it.

use std::{
    future::Future,
    pin::pin,
    process,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pyo3::prelude::*;
use tokio::{
    runtime::{Builder, Runtime},
    time::timeout,
};

use crate::errors;

/// How long a call blocks before it looks for a signal, such as that of Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);

/// The runtime, and the process that it is of. It is never dropped: in a child, its threads do not exist.
static RUNTIME: Mutex<Option<(u32, &Runtime)>> = Mutex::new(None);

/// The runtime of this process.
pub(crate) fn get(py: Python<'_>) -> PyResult<&'static Runtime> {
    // A fork happens while the interpreter is locked, as it is here: the mutex is never locked in a child.
    let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
    match *runtime {
        Some((process, runtime)) if process == process::id() => Ok(runtime),
        _ => {
            let built = Builder::new_multi_thread()
                .worker_threads(1)
                .thread_name("sluicegate")
                .enable_all()
                .build()
                .map_err(|error| {
                    errors::new(py, "StoreError", format!("cannot start a thread: {error}"))
                })?;
            let built: &'static Runtime = Box::leak(Box::new(built));
            *runtime = Some((process::id(), built));
            Ok(built)
        }
    }
}

/// Blocks until `future` has ended, without the lock of the interpreter. A signal whose handler raises, such as that of
/// Ctrl-C, ends it: `future` is dropped.
pub(crate) fn block<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let runtime = get(py)?;
    let mut future = pin!(future);
    loop {
        let step = timeout_of(&mut future);
        if let Some(output) = py.detach(|| runtime.block_on(step)) {
            return Ok(output);
        }
        py.check_signals()?;
    }
}

async fn timeout_of<F: Future + Unpin>(future: F) -> Option<F::Output> {
    timeout(SIGNALS_EVERY, future).await.ok()
}
