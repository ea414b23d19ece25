//! The exceptions of `sluicegate._errors`, for errors of the library.

use pyo3::{
    prelude::*,
    sync::PyOnceLock,
    types::{PyDict, PyType},
};
use sluicegate::{HoldError, PolicyError, StoreError};

static CLASSES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// An exception of the class `name` with this text.
pub(crate) fn new(py: Python<'_>, name: &str, text: String) -> PyErr {
    match class(py, name) {
        Ok(class) => PyErr::from_type(class, text),
        Err(error) => error,
    }
}

fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyType>> {
    let classes = CLASSES
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("sluicegate._errors")?.dict().unbind()))?;
    classes.bind(py).as_any().get_item(name)?.cast_into::<PyType>().map_err(PyErr::from)
}

/// Whether it says that the store made no decision.
pub(crate) fn is_of_store(py: Python<'_>, error: &PyErr) -> bool {
    class(py, "StoreError").is_ok_and(|class| error.is_instance(py, &class))
}

pub(crate) fn policy(py: Python<'_>, error: &PolicyError) -> PyErr {
    new(py, "PolicyError", error.to_string())
}

pub(crate) fn store(py: Python<'_>, error: &StoreError) -> PyErr {
    let name = match error {
        StoreError::Unavailable(_) => "StoreUnavailable",
        StoreError::Timeout(_) => "StoreTimeout",
        StoreError::Corrupt(..) => "CorruptState",
        StoreError::Key(_) => "InvalidKey",
        StoreError::Operation(_) | StoreError::Hold(_) | StoreError::Arguments(_) => {
            "OperationError"
        }
        StoreError::Settings(_) => "SettingsError",
        _ => "StoreError",
    };
    new(py, name, text(error))
}

/// The text of an error. Lifetimes are in seconds here, as in the calls.
fn text(error: &StoreError) -> String {
    match error {
        StoreError::Hold(HoldError::Ttl { ttl, max }) => {
            let (ttl, max) = (ttl.as_secs_f64(), max.as_secs_f64());
            format!("invalid ttl `{ttl}`: expected 0.001 to {max} seconds")
        }
        StoreError::Hold(HoldError::MissingTtl) => {
            let expected = "expected seconds or a timedelta";
            format!("missing ttl: {expected}; only a policy with `concurrency` has a default")
        }
        error => error.to_string(),
    }
}
