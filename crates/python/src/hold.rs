//! Units that are held until they are settled.

use std::{
    mem,
    sync::{Mutex, PoisonError},
};

use pyo3::prelude::*;
use sluicegate::{Answer, StoreError};

use crate::{
    arguments::Units,
    bridge::Bridge,
    decision::Decision,
    errors,
    request::{Guard, Replied, Reply, Value},
    runtime,
};

/// Units of one key or of several, which are held until they are settled or expire; or the denial of a hold. It is true if
/// the units are held.
#[pyclass(frozen, module = "sluicegate", weakref)]
#[derive(Debug)]
pub(crate) struct Hold {
    decision: Py<Decision>,
    allowed: bool,
    /// With the units that each holds; empty once they are settled.
    guards: Mutex<Vec<(Guard, u32)>>,
}

impl Hold {
    pub(crate) fn new(decision: Py<Decision>, guards: Vec<(Guard, u32)>) -> Self {
        Self { decision, allowed: !guards.is_empty(), guards: Mutex::new(guards) }
    }

    fn take(&self) -> Vec<(Guard, u32)> {
        mem::take(&mut *self.guards.lock().unwrap_or_else(PoisonError::into_inner))
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
    fn id(&self) -> Vec<u8> {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        guards.first().map_or_else(Vec::new, |(guard, _)| guard.id().to_vec())
    }

    /// Whether units are held still, as far as this process knows.
    #[getter]
    fn open(&self) -> bool {
        !self.guards.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    fn __bool__(&self) -> bool {
        self.allowed
    }

    /// Ends the hold, and charges what was used: a number of units, one for each key, or as many as were held. Only the first
    /// settle counts.
    #[pyo3(signature = (used = None))]
    fn settle(&self, py: Python<'_>, used: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let guards = with_used(self.take(), used)?;
        if !guards.is_empty() {
            let settled = settle_now(guards);
            match settled {
                Settled::Now(reply) => Replied(reply).into_python(py)?,
                Settled::Later(guards) => {
                    Replied(runtime::block(py, settle(guards))?).into_python(py)?
                }
            };
        }
        Ok(())
    }

    /// Starts a settle on the event loop of `bridge`; see `Bridge`. `None` if nothing is left to do.
    fn start_settle(
        &self,
        py: Python<'_>,
        bridge: &Bound<'_, Bridge>,
        future: Py<PyAny>,
        used: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<u64>> {
        let guards = with_used(self.take(), used)?;
        if guards.is_empty() {
            return Ok(None);
        }
        match settle_now(guards) {
            Settled::Now(reply) => Replied(reply).into_python(py).map(|_| None),
            Settled::Later(guards) => bridge.get().start(py, future, settle(guards)).map(Some),
        }
    }

    /// Prolongs the hold by its lifetime from now on. False if it is not open: it has expired, or was settled.
    fn renew(&self, py: Python<'_>) -> PyResult<bool> {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        let mut renewed = !guards.is_empty();
        for (guard, _) in guards.iter() {
            let answer: Result<Answer, StoreError> = match guard.renew().now() {
                Some(answer) => answer,
                None => runtime::block(py, guard.renew().into_future())?,
            };
            renewed &= answer.map_err(|error| errors::store(py, &error))?.allowed();
        }
        Ok(renewed)
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
        self.settle(py, None)?;
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

/// Sets the units of each hold to settle.
fn with_used(
    mut guards: Vec<(Guard, u32)>,
    used: Option<&Bound<'_, PyAny>>,
) -> PyResult<Vec<(Guard, u32)>> {
    let Some(used) = used else { return Ok(guards) };
    match used.extract::<Vec<Units>>() {
        Ok(each) if each.len() == guards.len() => {
            guards.iter_mut().zip(each).for_each(|(guard, used)| guard.1 = used.0);
        }
        Ok(each) if !guards.is_empty() => {
            let (found, expected) = (each.len(), guards.len());
            return Err(pyo3::exceptions::PyValueError::new_err(format!(
                "invalid used of {found} numbers: expected one number, or one for each of {expected} keys"
            )));
        }
        Ok(_) => {}
        Err(_) => {
            let used: Units = used.extract()?;
            guards.iter_mut().for_each(|guard| guard.1 = used.0);
        }
    }
    Ok(guards)
}

enum Settled {
    Now(Reply),
    Later(Vec<(Guard, u32)>),
}

/// Settles in a store that answers now.
fn settle_now(mut guards: Vec<(Guard, u32)>) -> Settled {
    while let Some((guard, used)) = guards.pop() {
        if guard.is_remote() {
            guards.push((guard, used));
            return Settled::Later(guards);
        }
        if let Some(Err(error)) = guard.settle_now(used) {
            return Settled::Now(Err(error));
        }
    }
    Settled::Now(Ok(Value::Nothing))
}

/// Settles all. The first error is returned at the end.
async fn settle(guards: Vec<(Guard, u32)>) -> Reply {
    let mut result = Ok(Value::Nothing);
    for (guard, used) in guards {
        if let Err(error) = guard.settle(used).await
            && result.is_ok()
        {
            result = Err(error);
        }
    }
    result
}
