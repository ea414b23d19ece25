//! Units that are held until they are settled.

use std::{
    mem, process,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pyo3::{exceptions::PyValueError, prelude::*};
use sluicegate::{Answer, Outcome, PreparedPolicy, Retry, Store, StoreError};
use sluicegate_core::{BoxFuture, Source};
use sluicegate_holds::HoldGuard;

use crate::{
    arguments::Units,
    bridge::{Bridge, Reply as _},
    decision::{Decided, Decision},
    errors, runtime,
};

/// A store of any kind.
pub(crate) type AnyStore = dyn Store<Error = StoreError>;
pub(crate) type Guard = HoldGuard<AnyStore>;

/// Units of one key or of several, which are held until they are settled or expire; or the denial of a hold. It is
/// true if the units are held.
#[pyclass(frozen, module = "sluicegate", weakref)]
#[derive(Debug)]
pub(crate) struct Hold {
    decision: Py<Decision>,
    allowed: bool,
    /// The process that holds the units. A child has a copy, which it must not settle.
    process: u32,
    /// Whether the caller gave the id.
    is_given: bool,
    /// With the units to settle, if they are given; empty once they are settled. Never locked while a call blocks: `id` locks it with the
    /// lock of the interpreter, which the end of a call needs.
    guards: Mutex<Vec<(Guard, Option<u32>)>>,
}

/// Lets the drop of a guard cancel its hold. If the caller gave the id, another call may have made the hold: then it expires.
pub(crate) fn cancel_on_drop(guard: &mut Guard, is_given: bool) {
    guard.set_used(0);
    if is_given {
        guard.record(false, Source::Store);
    }
}

impl Hold {
    /// After a drop without a settle, each guard charges the units held.
    pub(crate) fn new(
        decision: Py<Decision>,
        source: Source,
        guards: Vec<Guard>,
        is_given: bool,
    ) -> Self {
        let guards = guards.into_iter().map(|mut guard| {
            guard.record(true, source);
            (guard, None)
        });
        let guards: Vec<_> = guards.collect();
        let (allowed, process) = (!guards.is_empty(), process::id());
        Self { decision, allowed, process, is_given, guards: Mutex::new(guards) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(Guard, Option<u32>)>> {
        self.guards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the guards, to settle them with `used` units. If those are invalid, nothing is taken.
    fn take(&self, used: Option<&Bound<'_, PyAny>>) -> PyResult<Vec<(Guard, Option<u32>)>> {
        self.leave_to_parent();
        let mut guards = self.lock();
        if let Some(used) = used {
            let each = match used.extract::<Units>() {
                Ok(Units(used)) => vec![used; guards.len()],
                Err(error) => match used.extract::<Vec<Units>>() {
                    Ok(each) => each.into_iter().map(|Units(used)| used).collect(),
                    Err(_) => return Err(error),
                },
            };
            let (found, expected) = (each.len(), guards.len());
            if found != expected && expected > 0 {
                return Err(PyValueError::new_err(format!(
                    "invalid used of {found} numbers: expected one number, or one for each of {expected} keys"
                )));
            }
            for ((guard, units), used) in guards.iter_mut().zip(each) {
                *units = Some(used);
                guard.set_used(used);
            }
        }
        Ok(mem::take(&mut *guards))
    }

    /// Forgets the guards in a child of the process that holds the units, unless the state is in the child, too.
    fn leave_to_parent(&self) {
        if self.process != process::id() {
            let (theirs, own) = mem::take(&mut *self.lock())
                .into_iter()
                .partition::<Vec<_>, _>(|(guard, _)| guard.is_remote());
            mem::forget(theirs);
            *self.lock() = own;
        }
    }

    /// The denial of a hold that is not open.
    fn not_open(&self) -> Decision {
        let decision = self.decision.get();
        decision.with_outcome(Outcome::Deny { retry: Retry::Never })
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.leave_to_parent();
    }
}

#[pymethods]
impl Hold {
    /// The decision on the hold.
    #[getter]
    fn decision(&self, py: Python<'_>) -> Py<Decision> {
        self.decision.clone_ref(py)
    }

    /// The id of the hold; empty once it is settled.
    #[getter]
    fn id(&self) -> std::borrow::Cow<'static, [u8]> {
        self.lock().first().map_or_else(Vec::new, |(guard, _)| guard.id().to_vec()).into()
    }

    /// Whether units are still held, as far as this process has seen.
    #[getter]
    fn open(&self) -> bool {
        !self.lock().is_empty()
    }

    fn __bool__(&self) -> bool {
        self.allowed
    }

    /// Ends the hold, and charges the units used: a number, one for each key, or as many as were held. The decision is
    /// a denial if the hold has expired, or was settled before: then nothing more is charged.
    #[pyo3(signature = (used = None))]
    fn settle(&self, py: Python<'_>, used: Option<&Bound<'_, PyAny>>) -> PyResult<Py<PyAny>> {
        let reply = match settle_now(self.take(used)?) {
            Settled::Now(None) => return Ok(Py::new(py, self.not_open())?.into_any()),
            Settled::Now(Some(reply)) => reply,
            Settled::Later(guards) => runtime::block(py, settle(guards))?,
        };
        reply.into_python(py)
    }

    /// Cancels the hold in the background: the task that waited for it was.
    fn cancel(&self) {
        self.leave_to_parent();
        let mut guards = mem::take(&mut *self.lock());
        guards.iter_mut().for_each(|(guard, _)| cancel_on_drop(guard, self.is_given));
    }

    /// Starts a settle on the event loop of `bridge`; see `Bridge`. Returns the decision if it is there now.
    fn start_settle(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        used: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Py<PyAny>> {
        match settle_now(self.take(used)?) {
            Settled::Now(None) => Ok(Py::new(py, self.not_open())?.into_any()),
            Settled::Now(Some(reply)) => reply.into_python(py),
            Settled::Later(guards) => bridge.get().start(py, future, settle(guards)),
        }
    }

    /// Prolongs the hold by its lifetime from now on. The decision is a denial if it is not open: it has expired, or was
    /// settled.
    fn renew(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.renewal() {
            Renewal::None => Ok(Py::new(py, self.not_open())?.into_any()),
            Renewal::Now(reply) => reply.into_python(py),
            Renewal::Later(renewals) => runtime::block(py, renew(renewals))?.into_python(py),
        }
    }

    /// Starts a renewal on the event loop of `bridge`; see `Bridge`.
    fn start_renew(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
    ) -> PyResult<Py<PyAny>> {
        match self.renewal() {
            Renewal::None => Ok(Py::new(py, self.not_open())?.into_any()),
            Renewal::Now(reply) => reply.into_python(py),
            Renewal::Later(renewals) => bridge.get().start(py, future, renew(renewals)),
        }
    }

    /// Raises `Denied` if the hold was denied.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        if self.allowed {
            return Ok(());
        }
        let class = py.import("sluicegate._errors")?.getattr("Denied")?;
        Err(PyErr::from_value(class.call1((self.decision.clone_ref(py),))?))
    }

    fn __enter__(slf: Py<Self>, py: Python<'_>) -> PyResult<Py<Self>> {
        slf.get().check(py)?;
        Ok(slf)
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _value: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        match self.settle(py, None) {
            // The body has run, and the settle is repeated in the background.
            Err(error) if errors::is_of_store(py, &error) => {}
            settled => drop(settled?),
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let state = if !self.allowed {
            "denied"
        } else if self.open() {
            "open"
        } else {
            "settled"
        };
        format!("<Hold: {state}>")
    }
}

type BoxedRenewal = BoxFuture<'static, Result<Answer, StoreError>>;

enum Renewal {
    /// There is nothing to renew.
    None,
    Now(Decided),
    Later(Vec<(BoxedRenewal, PreparedPolicy)>),
}

impl Hold {
    /// Renews in a store that answers now.
    fn renewal(&self) -> Renewal {
        self.leave_to_parent();
        let guards = self.lock();
        if guards.is_empty() {
            return Renewal::None;
        }
        let mut now = Vec::with_capacity(guards.len());
        for (guard, _) in guards.iter().filter(|(guard, _)| !guard.is_remote()) {
            now.extend(guard.renew().now().map(|answer| (answer, guard.policy().clone())));
        }
        if now.len() == guards.len() {
            return Renewal::Now(worst(now));
        }
        let later =
            |guard: &Guard| (Box::pin(guard.renewal()) as BoxedRenewal, guard.policy().clone());
        Renewal::Later(guards.iter().map(|(guard, _)| later(guard)).collect())
    }
}

/// Renews all.
async fn renew(renewals: Vec<(BoxedRenewal, PreparedPolicy)>) -> Decided {
    let mut answers = Vec::with_capacity(renewals.len());
    for (renewal, policy) in renewals {
        answers.push((renewal.await, policy));
    }
    worst(answers)
}

enum Settled {
    /// `None`: there was nothing to settle.
    Now(Option<Decided>),
    Later(Vec<(Guard, Option<u32>)>),
}

/// Settles in a store that answers now.
fn settle_now(guards: Vec<(Guard, Option<u32>)>) -> Settled {
    if guards.iter().any(|(guard, _)| guard.is_remote()) {
        return Settled::Later(guards);
    }
    let settled = guards.into_iter().filter_map(|(guard, used)| {
        let policy = guard.policy().clone();
        guard.settle_now(used).map(|answer| (answer, policy))
    });
    let answers: Vec<_> = settled.collect();
    Settled::Now((!answers.is_empty()).then(|| worst(answers)))
}

/// Settles all.
async fn settle(guards: Vec<(Guard, Option<u32>)>) -> Decided {
    let mut answers = Vec::with_capacity(guards.len());
    for (guard, used) in guards {
        let policy = guard.policy().clone();
        answers.push((guard.settle(used).await, policy));
    }
    worst(answers)
}

/// Of the answers on several keys: the first error, or else a denial, or else the one with the fewest units remaining.
fn worst(answers: Vec<(Result<Answer, StoreError>, PreparedPolicy)>) -> Decided {
    let mut answers = answers
        .into_iter()
        .map(|(answer, policy)| Ok((answer?, policy)))
        .collect::<Result<Vec<_>, StoreError>>()?;
    answers.sort_by_key(|(answer, _)| (answer.allowed(), answer.remaining));
    Ok(answers.swap_remove(0))
}
