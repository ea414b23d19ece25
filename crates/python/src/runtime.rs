//! The runtimes of calls of stores in other processes, and their state after a fork.
//!
//! Calls of event loops run on a thread of their own. A call that blocks drives its runtime itself, so that its reply
//! needs no switch of threads, which takes longer than Redis. While no call waits, a keeper drives that runtime,
//! for tasks in the background: renewals of holds, and connections.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    process,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use pyo3::prelude::*;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Notify,
    time::timeout,
};

use crate::errors;

/// How long a call blocks before it checks for a signal, such as that of Ctrl-C.
const SIGNALS_EVERY: Duration = Duration::from_millis(50);
/// Time without calls that wait after which the keeper drives.
const IDLE: Duration = Duration::from_millis(50);

/// A value of this process. It is never dropped: in a child, the threads of the parent do not exist.
struct OfProcess<T: 'static>(Mutex<Option<(u32, &'static T)>>);

static TASKS: OfProcess<Runtime> = OfProcess(Mutex::new(None));
static CALLS: OfProcess<Calls> = OfProcess(Mutex::new(None));

impl<T> OfProcess<T> {
    /// The value, which `start` makes in each process.
    fn get(
        &self,
        py: Python<'_>,
        start: fn() -> std::io::Result<&'static T>,
    ) -> PyResult<&'static T> {
        // A fork happens while the interpreter is locked, as it is here: the mutex is never locked in a child.
        let mut value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match *value {
            Some((process, value)) if process == process::id() => Ok(value),
            _ => {
                let started = start().map_err(|error| {
                    errors::new(py, "StoreError", format!("cannot start a thread: {error}"))
                })?;
                *value = Some((process::id(), started));
                Ok(started)
            }
        }
    }
}

/// The runtime of calls that block.
struct Calls {
    runtime: Runtime,
    /// Number of calls that had to wait, and drove the runtime.
    waited: AtomicU64,
    /// Whether the keeper drives the runtime.
    kept: AtomicBool,
    /// Ends the driving of the keeper.
    wanted: Notify,
}

impl Calls {
    fn start() -> std::io::Result<&'static Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (waited, kept) = (AtomicU64::new(0), AtomicBool::new(false));
        let wanted = Notify::new();
        let calls: &'static Self = Box::leak(Box::new(Self { runtime, waited, kept, wanted }));
        thread::Builder::new().name("sluicegate-keeper".to_owned()).spawn(|| calls.drive())?;
        Ok(calls)
    }

    /// Drives the runtime while no call does.
    fn drive(&self) {
        loop {
            self.kept.store(true, Ordering::SeqCst);
            self.runtime.block_on(self.wanted.notified());
            self.kept.store(false, Ordering::SeqCst);
            let mut waited = self.waited.load(Ordering::Relaxed);
            loop {
                thread::sleep(IDLE);
                let now = self.waited.load(Ordering::Relaxed);
                if now == waited {
                    break;
                }
                waited = now;
            }
        }
    }

    /// Drives the runtime until `future` has ended. One that is ready at once, such as the answer of a lease or of a
    /// fallback, drives nothing: it leaves the runtime to the keeper.
    fn block_on<F: Future>(&self, future: F) -> F::Output {
        let (mut future, mut has_waited) = (pin!(future), false);
        self.runtime.block_on(poll_fn(|context| {
            let poll = future.as_mut().poll(context);
            if poll.is_pending() && !mem::replace(&mut has_waited, true) {
                self.waited.fetch_add(1, Ordering::Relaxed);
                if self.kept.load(Ordering::SeqCst) {
                    self.wanted.notify_one();
                }
            }
            poll
        }))
    }
}

fn tasks() -> std::io::Result<&'static Runtime> {
    let mut builder = Builder::new_multi_thread();
    let built = builder.worker_threads(1).thread_name("sluicegate").enable_all().build()?;
    Ok(Box::leak(Box::new(built)))
}

/// The runtime of the calls of event loops.
pub(crate) fn of_tasks(py: Python<'_>) -> PyResult<&'static Handle> {
    TASKS.get(py, tasks).map(Runtime::handle)
}

/// The runtime of calls that block.
pub(crate) fn of_calls(py: Python<'_>) -> PyResult<&'static Handle> {
    CALLS.get(py, Calls::start).map(|calls| calls.runtime.handle())
}

/// Blocks until `future` has ended, without the lock of the interpreter. A signal whose handler raises, such as that of
/// Ctrl-C, ends it: `future` is dropped.
pub(crate) fn block<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let calls = CALLS.get(py, Calls::start)?;
    let mut future = pin!(future);
    loop {
        let step = async { timeout(SIGNALS_EVERY, &mut future).await.ok() };
        if let Some(output) = py.detach(|| calls.block_on(step)) {
            return Ok(output);
        }
        py.check_signals()?;
    }
}
