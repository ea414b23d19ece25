//! From calls on the runtime to the futures of one event loop.
//!
//! A call that has ended writes its result to a queue, and the first result of a queue writes a byte to a socket that
//! the event loop reads. Therefore no thread of the runtime ever waits for the interpreter, and one wake-up serves
//! all pending results.

use std::{
    collections::HashMap,
    future::Future,
    io::{Read as _, Write as _},
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    process,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use pyo3::{IntoPyObjectExt as _, prelude::*};
use tokio::task::AbortHandle;

use crate::runtime;

/// The reply to a call: an object or an exception in Python.
pub(crate) trait Reply: Send + 'static {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>>;
}

type BoxedReply = Box<dyn FnOnce(Python<'_>) -> PyResult<Py<PyAny>> + Send>;

/// The calls of one event loop that have not ended.
#[pyclass(frozen, module = "sluicegate._native")]
pub(crate) struct Bridge {
    ended: Arc<Ended>,
    reader: UnixStream,
    open: Mutex<HashMap<u64, OpenCall>>,
    next: AtomicU64,
    /// The process whose calls these are.
    process: u32,
}

struct OpenCall {
    future: Py<PyAny>,
    task: AbortHandle,
}

/// The results of calls that have ended, and whose futures do not have them yet.
struct Ended {
    /// `None` after the event loop was closed.
    replies: Mutex<Option<Vec<(u64, BoxedReply)>>>,
    writer: UnixStream,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ended {
    fn push(&self, call: u64, reply: BoxedReply) {
        let mut lock = lock(&self.replies);
        let Some(replies) = &mut *lock else { return };
        replies.push((call, reply));
        let is_first = replies.len() == 1;
        drop(lock);
        if is_first {
            // A full socket has a byte already.
            let _ = (&self.writer).write(&[0]);
        }
    }
}

#[pymethods]
impl Bridge {
    #[new]
    fn new() -> PyResult<Self> {
        let (reader, writer) = UnixStream::pair()?;
        reader.set_nonblocking(true)?;
        writer.set_nonblocking(true)?;
        let ended = Arc::new(Ended { replies: Mutex::new(Some(Vec::new())), writer });
        Ok(Self {
            ended,
            reader,
            open: Mutex::default(),
            next: AtomicU64::new(0),
            process: process::id(),
        })
    }

    /// The descriptor that is readable when a call has ended.
    fn fileno(&self) -> i32 {
        self.reader.as_raw_fd()
    }

    /// Sets the results of the futures whose calls have ended.
    fn drain(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(1..)) {}
        let replies = lock(&self.ended.replies).as_mut().map(std::mem::take).unwrap_or_default();
        for (call, reply) in replies {
            // Without a future, the call was cancelled: a hold is settled as its reply is dropped.
            let Some(call) = lock(&self.open).remove(&call) else { continue };
            let future = call.future.bind(py);
            if future.call_method0("done")?.is_truthy()? {
                continue;
            }
            match reply(py) {
                Ok(value) => future.call_method1("set_result", (value,))?,
                Err(error) => future.call_method1("set_exception", (error,))?,
            };
        }
        Ok(())
    }

    /// Ends a call whose future was cancelled.
    fn abort(&self, call: u64) {
        if let Some(call) = lock(&self.open).remove(&call) {
            call.task.abort();
        }
    }

    /// Ends all calls: their event loop is closed, and no future will have their results.
    fn abort_all(&self) {
        // The calls of a parent are not those of its child.
        if self.process != process::id() {
            return;
        }
        // Dropped without a lock: a reply of a hold cancels it, and a future runs code of Python.
        let replies = lock(&self.ended.replies).take();
        let calls = std::mem::take(&mut *lock(&self.open));
        calls.values().for_each(|call| call.task.abort());
        drop((calls, replies));
    }

    /// Number of calls that have not ended.
    fn __len__(&self) -> usize {
        lock(&self.open).len()
    }
}

impl Bridge {
    /// Runs `call`, and sets its reply as the result of `future`. Returns the number of the call: no reply is a number.
    pub(crate) fn start<R: Reply>(
        &self,
        py: Python<'_>,
        future: Py<PyAny>,
        call: impl Future<Output = R> + Send + 'static,
    ) -> PyResult<Py<PyAny>> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let ended = Arc::clone(&self.ended);
        let task = runtime::of_tasks(py)?.spawn(async move {
            let reply = call.await;
            ended.push(number, Box::new(|py| reply.into_python(py)));
        });
        lock(&self.open).insert(number, OpenCall { future, task: task.abort_handle() });
        number.into_py_any(py)
    }
}
