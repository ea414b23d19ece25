//! The limiter: one class for stores in this process and in others. A call blocks, or is started on an event loop
//! (`start_...`), which returns its value if the store answers at once, and otherwise the number of the call. Beside it, a clock that users' tests move.

use std::{
    path::PathBuf,
    pin::{Pin, pin},
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
    time::Duration,
};

use pyo3::{
    IntoPyObjectExt as _,
    exceptions::{PyRuntimeError, PyTypeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use sluicegate::{
    Applied, Clock, Jitter, LocalLimiter, OnError, Operation, Store, Timestamp, WaitOptions,
};
use sluicegate_core::{Answer, Counters, Request as StoreRequest, wait::peeks_first};
use sluicegate_redis::{Options, RedisStore, TlsOptions};
use tokio::runtime::Handle;

use crate::{
    arguments::{self, Units, bytes, of_type, optional_span, span},
    bridge::{Bridge, Reply as _},
    decision::Decision,
    errors,
    fork::{self, Gated},
    hold::AnyStore,
    policy::policy_beside,
    request::{HoldRequest, Keyed, Replied, Request},
    runtime,
};

/// Limits in this process, or in a store that processes share.
#[pyclass(frozen, module = "sluicegate._native", weakref)]
#[derive(Debug)]
pub(crate) struct Limiter(Backend);

#[derive(Debug)]
enum Backend {
    Local {
        store: Arc<AnyStore>,
        /// The same store, for calls without the lock of the interpreter.
        gated: Arc<AnyStore>,
    },
    Remote(Box<Remote>),
}

/// A store in another process. Each process opens its own connection.
#[derive(Debug)]
struct Remote {
    url: String,
    options: Options,
    /// Whether its calls are those of event loops.
    tasks: bool,
    /// The store, and the process that has connected it.
    store: Mutex<Option<(u32, RedisStore)>>,
}

impl Remote {
    fn store(&self, py: Python<'_>) -> PyResult<RedisStore> {
        // Locked only while the interpreter is, and so never in a child.
        let mut store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((process, store)) = &*store
            && *process == fork::process()
        {
            return Ok(store.clone());
        }
        let runtime = if self.tasks { runtime::of_tasks(py)? } else { runtime::of_calls(py)? };
        let mut options = self.options.clone();
        options.runtime = Some(runtime.clone());
        let _guard = runtime.enter();
        let connected = RedisStore::new(&self.url, options);
        let connected = connected.map_err(|error| errors::store(py, &error))?;
        // The connections belong to the parent: closing them here would write to them.
        let old = store.replace((fork::process(), connected.clone()));
        std::mem::forget(old);
        Ok(connected)
    }
}

type Call = Pin<Box<dyn Future<Output = Replied> + Send>>;

/// A call of a store in this process that waits, for `Bridge`.
#[pyclass(frozen, module = "sluicegate._native")]
pub(crate) struct PendingCall(Mutex<Option<Call>>);

#[pymethods]
impl PendingCall {
    /// Continues the call on the event loop of `bridge`.
    fn start(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let call = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let call = call.ok_or_else(|| PyRuntimeError::new_err("the call has been started"))?;
        bridge.get().start(py, future, call)
    }
}

/// Keys with a policy and units each, as tuples of two or three.
type KeyedArguments<'py> = Vec<Bound<'py, PyAny>>;

#[pymethods]
impl Limiter {
    /// A limiter in this process, with up to `max_memory` bytes of state.
    #[staticmethod]
    #[pyo3(signature = (*, max_memory = 1 << 30, clock = None))]
    fn in_memory(max_memory: usize, clock: Option<&Bound<'_, ManualClock>>) -> Self {
        use sluicegate::{ClockedStore, MemoryStore, SystemClock, WhenFull};
        let store = MemoryStore::bounded(max_memory, WhenFull::Deny);
        let store: Arc<AnyStore> = match clock {
            Some(clock) => {
                let clock = clock.get().0.clone();
                Arc::new(LocalLimiter::from(ClockedStore::new(store, clock)))
            }
            None => Arc::new(LocalLimiter::from(ClockedStore::new(store, SystemClock::new()))),
        };
        let gated = Arc::new(Gated(Arc::clone(&store)));
        Self(Backend::Local { store, gated })
    }

    /// A limiter in the store at `url`. It connects at the first call.
    #[staticmethod]
    #[pyo3(signature = (
        url, *, timeout = None, connect_timeout = None, key_prefix = "", max_denial_cache = None, tls_ca = None,
        tls_cert = None, tls_key = None, use_module = true, clock = None, tasks = false
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords")]
    fn connect(
        py: Python<'_>,
        url: &str,
        timeout: Option<&Bound<'_, PyAny>>,
        connect_timeout: Option<&Bound<'_, PyAny>>,
        key_prefix: &str,
        max_denial_cache: Option<&Bound<'_, PyAny>>,
        tls_ca: Option<std::path::PathBuf>,
        tls_cert: Option<std::path::PathBuf>,
        tls_key: Option<std::path::PathBuf>,
        use_module: bool,
        clock: Option<&Bound<'_, ManualClock>>,
        tasks: bool,
    ) -> PyResult<Self> {
        let mut options = Options::default();
        options.prefix = key_prefix.as_bytes().to_vec();
        options.deadline = optional_span("timeout", timeout)?.unwrap_or(Duration::from_millis(500));
        if let Some(span) = optional_span("connect_timeout", connect_timeout)? {
            options.connect_timeout = span;
        }
        let spans = [("timeout", options.deadline), ("connect_timeout", options.connect_timeout)];
        if let Some((name, span)) = spans.into_iter().find(|it| it.1 < Duration::from_millis(1)) {
            let seconds = span.as_secs_f64();
            let text = format!("invalid {name} `{seconds}`: expected seconds from 0.001 on");
            return Err(errors::new(py, "SettingsError", text));
        }
        if let Some(span) = optional_span("max_denial_cache", max_denial_cache)? {
            options.max_denial_cache = span;
        }
        options.tls = tls_options(py, url, tls_ca, tls_cert, tls_key)?;
        if !use_module {
            options.look_for_module = None;
        }
        options.on_error = OnError::Fail;
        if let Some(clock) = clock {
            let clock = Arc::new(clock.get().0.clone());
            options.test_clock = Some(sluicegate_redis::TestClock::new(clock));
        }
        let store = Mutex::new(None);
        let remote = Remote { url: url.to_owned(), options, tasks, store };
        // An invalid URL is an error here, not at the first call.
        remote.store(py)?;
        Ok(Self(Backend::Remote(Box::new(remote))))
    }

    /// Whether calls are answered at once, by this process.
    #[getter]
    fn is_local(&self) -> bool {
        matches!(self.0, Backend::Local { .. })
    }

    /// Takes `cost` units, all or none.
    #[pyo3(signature = (key, policy, cost = Units(1)), text_signature = "($self, key, policy, cost=1)")]
    fn take(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
    ) -> PyResult<Decision> {
        self.apply(py, key, policy, Operation::Take(cost.0))
    }

    /// Returns what `take` would return, and changes nothing.
    #[pyo3(signature = (key, policy, cost = Units(1)), text_signature = "($self, key, policy, cost=1)")]
    fn peek(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
    ) -> PyResult<Decision> {
        self.apply(py, key, policy, Operation::Peek(cost.0))
    }

    /// Takes `cost` units whether or not they fit, for a cost that is known only afterwards.
    #[pyo3(signature = (key, policy, cost = Units(1)), text_signature = "($self, key, policy, cost=1)")]
    fn charge(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
    ) -> PyResult<Decision> {
        self.apply(py, key, policy, Operation::Charge(cost.0))
    }

    /// Gives back up to `cost` of the units in use.
    #[pyo3(signature = (key, policy, cost = Units(1)), text_signature = "($self, key, policy, cost=1)")]
    fn refund(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
    ) -> PyResult<Decision> {
        self.apply(py, key, policy, Operation::Refund(cost.0))
    }

    #[pyo3(signature = (key, policy, cost = Units(1), *, max_wait))]
    fn reserve(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
        max_wait: &Bound<'_, PyAny>,
    ) -> PyResult<Decision> {
        let max_wait = span("max_wait", max_wait)?;
        self.apply(py, key, policy, Operation::Reserve { cost: cost.0, max_wait })
    }

    #[pyo3(signature = (key, policy, cost = Units(1), *, timeout, jitter = None))]
    fn wait(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
        timeout: &Bound<'_, PyAny>,
        jitter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.block(py, self.wait_request(key, policy, &cost, timeout, jitter)?)
    }

    fn reset(&self, py: Python<'_>, key: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        self.run(py, Request::Reset { key: self.key(key)?.to_vec() })
    }

    fn take_many(&self, py: Python<'_>, takes: KeyedArguments<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, Request::TakeMany(self.keyed("takes", takes)?))
    }

    fn take_all(&self, py: Python<'_>, takes: KeyedArguments<'_>) -> PyResult<Py<PyAny>> {
        self.run(py, Request::TakeAll(self.keyed("takes", takes)?))
    }

    #[pyo3(signature = (holds, *, id = None, ttl = None, timeout = None, renew = false))]
    fn hold(
        &self,
        py: Python<'_>,
        holds: KeyedArguments<'_>,
        id: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        renew: bool,
    ) -> PyResult<Py<PyAny>> {
        let request = self.hold_request(holds, id, ttl, timeout, renew)?;
        if request.renews || !request.timeout.is_zero() {
            return self.block(py, Request::Hold(request));
        }
        self.run(py, Request::Hold(request))
    }

    /// Starts a call on the event loop of `bridge`: `operation` on `key`.
    #[expect(clippy::too_many_arguments, reason = "they are those of all operations")]
    fn start_apply(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        operation: &str,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
        max_wait: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let max_wait = optional_span("max_wait", max_wait)?.unwrap_or_default();
        let operation = match operation {
            "take" => Operation::Take(cost.0),
            "peek" => Operation::Peek(cost.0),
            "charge" => Operation::Charge(cost.0),
            "refund" => Operation::Refund(cost.0),
            _ => Operation::Reserve { cost: cost.0, max_wait },
        };
        let (key, policy) = (self.key(key)?.to_vec(), policy_beside(key, policy)?);
        self.start(py, bridge, future, Request::Apply { key, policy, operation })
    }

    /// Begins to wait in a store in this process. Returns the decision if it is made at once, and a `PendingCall` otherwise.
    fn poll_wait(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
        timeout: &Bound<'_, PyAny>,
        jitter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        let request = self.wait_request(key, policy, &cost, timeout, jitter)?;
        if let Request::Wait { keyed, .. } = &request
            && let Some(answer) = self.take_now(keyed)
        {
            return Decision::new(answer, keyed.policy.clone(), None).into_py_any(py);
        }
        self.poll(py, request)
    }

    /// As `poll_wait`, for a hold.
    fn poll_hold(
        &self,
        py: Python<'_>,
        holds: KeyedArguments<'_>,
        id: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        renew: bool,
    ) -> PyResult<Py<PyAny>> {
        self.poll(py, Request::Hold(self.hold_request(holds, id, ttl, timeout, renew)?))
    }

    #[expect(clippy::too_many_arguments, reason = "they are those of `wait`")]
    fn start_wait(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: Units,
        timeout: &Bound<'_, PyAny>,
        jitter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        self.start(py, bridge, future, self.wait_request(key, policy, &cost, timeout, jitter)?)
    }

    fn start_reset(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        key: &Bound<'_, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        self.start(py, bridge, future, Request::Reset { key: self.key(key)?.to_vec() })
    }

    fn start_take_many(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        takes: KeyedArguments<'_>,
    ) -> PyResult<Py<PyAny>> {
        self.start(py, bridge, future, Request::TakeMany(self.keyed("takes", takes)?))
    }

    fn start_take_all(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        takes: KeyedArguments<'_>,
    ) -> PyResult<Py<PyAny>> {
        self.start(py, bridge, future, Request::TakeAll(self.keyed("takes", takes)?))
    }

    #[expect(clippy::too_many_arguments, reason = "they are those of `hold`")]
    fn start_hold(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        holds: KeyedArguments<'_>,
        id: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        renew: bool,
    ) -> PyResult<Py<PyAny>> {
        let request = self.hold_request(holds, id, ttl, timeout, renew)?;
        self.start(py, bridge, future, Request::Hold(request))
    }

    /// Decisions by source, and other counts, of a store in another process.
    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = match &self.0 {
            Backend::Local { .. } => Counters::default(),
            Backend::Remote(remote) => sluicegate::Limiter::new(remote.store(py)?).counters(),
        };
        let dict = PyDict::new(py);
        for (name, value) in counters.iter() {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    /// Gives unused leased units back to the store. The limiter stays usable.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if let Backend::Remote(remote) = &self.0 {
            let store = remote.store(py)?;
            runtime::block(py, store.close().into_future())?;
        }
        Ok(())
    }
}

impl Limiter {
    /// The store for calls without the lock of the interpreter.
    pub(crate) fn store(&self, py: Python<'_>) -> PyResult<Arc<AnyStore>> {
        match &self.0 {
            Backend::Local { gated, .. } => Ok(Arc::clone(gated)),
            Backend::Remote(remote) => Ok(Arc::new(remote.store(py)?)),
        }
    }

    /// The store in another process.
    pub(crate) fn redis_store(&self, py: Python<'_>) -> PyResult<RedisStore> {
        match &self.0 {
            Backend::Local { .. } => Err(PyRuntimeError::new_err("the store is in this process")),
            Backend::Remote(remote) => remote.store(py),
        }
    }

    fn apply(
        &self,
        py: Python<'_>,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        operation: Operation,
    ) -> PyResult<Decision> {
        let (key, policy) = (self.key(key)?, policy_beside(key, policy)?);
        let answer = match &self.0 {
            Backend::Local { store, .. } => {
                match store.apply(StoreRequest::one(key, &policy, operation)) {
                    Applied::Now(answer) => answer,
                    Applied::Later(future) => runtime::block(py, future)?,
                }
            }
            Backend::Remote(remote) => {
                let store = remote.store(py)?;
                let applied = store.apply(StoreRequest::one(key, &policy, operation));
                match applied {
                    Applied::Now(answer) => answer,
                    Applied::Later(future) => runtime::block(py, future)?,
                }
            }
        };
        let answer = answer.map_err(|error| errors::store(py, &error))?;
        Ok(Decision::new(answer, policy, None))
    }

    /// Runs a request that waits for nothing in a store in this process.
    fn run(&self, py: Python<'_>, request: Request) -> PyResult<Py<PyAny>> {
        let Backend::Local { store, .. } = &self.0 else { return self.block(py, request) };
        let mut context = Context::from_waker(Waker::noop());
        let mut call = pin!(request.perform(Arc::clone(store)));
        match call.as_mut().poll(&mut context) {
            Poll::Ready(reply) => reply.into_python(py),
            Poll::Pending => {
                let reply: Replied = runtime::block(py, call)?;
                reply.into_python(py)
            }
        }
    }

    fn block(&self, py: Python<'_>, request: Request) -> PyResult<Py<PyAny>> {
        let mut call = pin!(request.perform(self.store(py)?));
        if self.is_local()
            && let Poll::Ready(reply) = poll_once(call.as_mut(), runtime::of_calls(py)?)
        {
            return reply.into_python(py);
        }
        runtime::block(py, call)?.into_python(py)
    }

    /// Takes units of a store in this process, if they are there and a denial changes nothing: a wait that need not wait then
    /// costs what a take does.
    fn take_now(&self, Keyed { key, policy, cost }: &Keyed) -> Option<Answer> {
        let Backend::Local { store, .. } = &self.0 else { return None };
        if peeks_first(policy.policy()) {
            return None;
        }
        let answer = store.take(key, policy, *cost).now()?.ok()?;
        answer.allowed().then_some(answer)
    }

    /// Starts a request that may wait, of a store in this process. Returns its reply if it need not wait.
    fn poll(&self, py: Python<'_>, request: Request) -> PyResult<Py<PyAny>> {
        let mut call: Call = Box::pin(request.perform(self.store(py)?));
        match poll_once(call.as_mut(), runtime::of_tasks(py)?) {
            Poll::Ready(reply) => reply.into_python(py),
            Poll::Pending => PendingCall(Mutex::new(Some(call))).into_py_any(py),
        }
    }

    fn start(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        request: Request,
    ) -> PyResult<Py<PyAny>> {
        bridge.get().start(py, future, request.perform(self.store(py)?))
    }

    /// The bytes of a key, which is valid for this limiter.
    pub(crate) fn key<'a>(&self, key: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
        let prefix = match &self.0 {
            Backend::Local { .. } => 0,
            Backend::Remote(remote) => remote.options.prefix.len(),
        };
        arguments::key(prefix, key)
    }

    /// The keys of a call with their policies and units: `name` is that of its argument.
    fn keyed(&self, name: &str, tuples: KeyedArguments<'_>) -> PyResult<Vec<Keyed>> {
        let expected = "expected a list of (key, policy) or (key, policy, cost)";
        let keyed = |tuple: Bound<'_, PyAny>| {
            let Ok(items) = tuple.extract::<Vec<Bound<'_, PyAny>>>() else {
                let text = format!("invalid {name} with an item {}: {expected}", of_type(&tuple));
                return Err(PyTypeError::new_err(text));
            };
            match &items[..] {
                [key, policy] => self.one(key, policy, 1),
                [key, policy, cost] => self.one(key, policy, cost.extract::<Units>()?.0),
                other => Err(PyValueError::new_err(format!(
                    "invalid {name} with a tuple of {} items: {expected}",
                    other.len()
                ))),
            }
        };
        tuples.into_iter().map(keyed).collect()
    }

    fn one(&self, key: &Bound<'_, PyAny>, policy: &Bound<'_, PyAny>, cost: u32) -> PyResult<Keyed> {
        let policy = policy_beside(key, policy)?;
        Ok(Keyed { key: self.key(key)?.to_vec(), policy, cost })
    }

    fn wait_request(
        &self,
        key: &Bound<'_, PyAny>,
        policy: &Bound<'_, PyAny>,
        cost: &Units,
        timeout: &Bound<'_, PyAny>,
        jitter: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Request> {
        let jitter = optional_span("jitter", jitter)?.map_or(Jitter::NONE, Jitter::up_to);
        let options = WaitOptions::up_to(span("timeout", timeout)?).jitter(jitter);
        Ok(Request::Wait { keyed: self.one(key, policy, cost.0)?, options })
    }

    fn hold_request(
        &self,
        holds: KeyedArguments<'_>,
        id: Option<&Bound<'_, PyAny>>,
        ttl: Option<&Bound<'_, PyAny>>,
        timeout: Option<&Bound<'_, PyAny>>,
        renews: bool,
    ) -> PyResult<HoldRequest> {
        let id = id.map(|id| bytes("id", id).map(<[u8]>::to_vec)).transpose()?;
        let timeout = optional_span("timeout", timeout)?.unwrap_or_default();
        let (keys, ttl) = (self.keyed("holds", holds)?, optional_span("ttl", ttl)?);
        if keys.is_empty() {
            return Err(PyValueError::new_err("invalid holds: expected at least one key"));
        }
        Ok(HoldRequest { keys, id, ttl, timeout, renews })
    }
}

/// Polls a call, whose timers are those of `runtime`.
fn poll_once(
    call: Pin<&mut (impl Future<Output = Replied> + ?Sized)>,
    runtime: &Handle,
) -> Poll<Replied> {
    let _guard = runtime.enter();
    call.poll(&mut Context::from_waker(Waker::noop()))
}

/// A clock that does not advance until it is set.
#[pyclass(frozen, module = "sluicegate")]
#[derive(Debug)]
pub(crate) struct ManualClock(pub(crate) sluicegate::ManualClock);

#[pymethods]
impl ManualClock {
    /// `now`: seconds since the Unix epoch, as of `time.time()`.
    #[new]
    #[pyo3(signature = (now = 1_700_000_000.0))]
    fn new(now: f64) -> PyResult<Self> {
        Ok(Self(sluicegate::ManualClock::new(timestamp(now)?)))
    }

    /// Moves the clock forward, by seconds or a `timedelta`.
    fn advance(&self, by: &Bound<'_, PyAny>) -> PyResult<()> {
        self.0.advance(span("span", by)?);
        Ok(())
    }

    /// Sets the clock to seconds since the Unix epoch.
    fn set(&self, now: f64) -> PyResult<()> {
        self.0.set(timestamp(now)?);
        Ok(())
    }

    /// Seconds since the Unix epoch.
    fn now(&self) -> f64 {
        self.0.now().as_micros() as f64 / 1e6
    }

    /// Microseconds since the Unix epoch.
    fn now_us(&self) -> u64 {
        self.0.now().as_micros()
    }

    /// Sets the clock to microseconds since the Unix epoch.
    fn set_us(&self, now: u64) -> PyResult<()> {
        let now = Timestamp::from_micros(now);
        let now = now.map_err(|error| PyValueError::new_err(error.to_string()))?;
        self.0.set(now);
        Ok(())
    }

    fn __repr__(&self) -> String {
        format!("ManualClock({})", self.now())
    }
}

fn timestamp(seconds: f64) -> PyResult<Timestamp> {
    let span = std::time::Duration::try_from_secs_f64(seconds).ok();
    let micros = span.and_then(|span| u64::try_from((span.as_nanos() + 500) / 1000).ok());
    micros.and_then(|it| Timestamp::from_micros(it).ok()).ok_or_else(|| {
        let expected = "expected seconds since the Unix epoch";
        PyValueError::new_err(format!("invalid time `{seconds}`: {expected}"))
    })
}

/// The options of TLS for the store at `url`. Settings that would have no effect are an error, because their user relies on them.
fn tls_options(
    py: Python<'_>,
    url: &str,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
) -> PyResult<TlsOptions> {
    let invalid = |name: &str, path: &PathBuf, expected: &str| {
        let text = format!("invalid {name} `{}`: expected {expected}", path.display());
        Err(errors::new(py, "SettingsError", text))
    };
    if !["rediss", "valkeys"].iter().any(|scheme| url.starts_with(scheme)) {
        for (name, path) in [("tls_ca", &ca), ("tls_cert", &cert), ("tls_key", &key)] {
            if let Some(path) = path {
                return invalid(name, path, "a URL with TLS such as `rediss://HOST`");
            }
        }
    }
    let mut options = TlsOptions::default();
    options.ca = ca;
    options.client = match (cert, key) {
        (Some(cert), Some(key)) => Some((cert, key)),
        (None, None) => None,
        (Some(cert), None) => return invalid("tls_cert", &cert, "tls_key beside it"),
        (None, Some(key)) => return invalid("tls_key", &key, "tls_cert beside it"),
    };
    Ok(options)
}
