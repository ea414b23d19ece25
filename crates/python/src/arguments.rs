//! Arguments of calls: keys, spans, costs.

use std::time::Duration;

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDelta, PyInt, PyString},
};
use sluicegate_core::{KeyLengthError, MAX_KEY};

use crate::errors;

/// The bytes of a key: those of a `bytes`, or a `str` as UTF-8.
pub(crate) fn bytes<'a>(name: &str, value: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(text.to_str()?.as_bytes());
    }
    if let Ok(bytes) = value.cast::<PyBytes>() {
        return Ok(bytes.as_bytes());
    }
    Err(PyTypeError::new_err(format!("invalid {name} {}: expected str or bytes", of_type(value))))
}

/// The bytes of a key behind a prefix of this length. A store would reject an invalid one as well, but an error of the store may
/// lead to a fallback decision.
pub(crate) fn key<'a>(prefix: usize, value: &'a Bound<'_, PyAny>) -> PyResult<&'a [u8]> {
    let key = bytes("key", value)?;
    let length = prefix.saturating_add(key.len());
    if !key.is_empty() && length <= MAX_KEY {
        return Ok(key);
    }
    let error = KeyLengthError(if key.is_empty() { 0 } else { length });
    let with_prefix = if prefix > 0 && !key.is_empty() { " with its prefix" } else { "" };
    Err(errors::new(value.py(), "InvalidKey", format!("{error}{with_prefix}")))
}

/// A span: seconds as a number, or a `timedelta`.
pub(crate) fn span(name: &str, value: &Bound<'_, PyAny>) -> PyResult<Duration> {
    let expected = "expected seconds from 0 on, or a timedelta";
    let invalid = |shown: &dyn std::fmt::Display| format!("invalid {name} `{shown}`: {expected}");
    let Ok(seconds) = value.extract::<f64>() else {
        let Ok(span) = value.cast::<PyDelta>() else {
            let text = format!("invalid {name} {}: {expected}", of_type(value));
            return Err(PyTypeError::new_err(text));
        };
        return span.extract().map_err(|_| PyValueError::new_err(invalid(span)));
    };
    // Whole microseconds, so that 0.1 is 100 ms.
    let span = Duration::try_from_secs_f64(seconds);
    let span = span.map_err(|_| PyValueError::new_err(invalid(&seconds)))?;
    let nanos = span.as_nanos() + 500;
    let micros = u64::try_from(nanos / 1000);
    micros.map(Duration::from_micros).map_err(|_| PyValueError::new_err(invalid(&seconds)))
}

/// The type of a value, for errors. The text of the value could be an error, too.
pub(crate) fn of_type(value: &Bound<'_, PyAny>) -> String {
    let name = value.get_type().name();
    format!("of type `{}`", name.map(|it| it.to_string()).unwrap_or_default())
}

pub(crate) fn optional_span(
    name: &str,
    value: Option<&Bound<'_, PyAny>>,
) -> PyResult<Option<Duration>> {
    value.map(|value| span(name, value)).transpose()
}

/// A number of units.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Units(pub(crate) u32);

impl FromPyObject<'_, '_> for Units {
    type Error = PyErr;

    fn extract(value: Borrowed<'_, '_, PyAny>) -> PyResult<Self> {
        value.extract::<u32>().map(Self).map_err(|_| {
            let expected = "expected 0 to 4294967295";
            match value.cast::<PyInt>() {
                Ok(number) => {
                    let text = format!("invalid number of units `{}`: {expected}", *number);
                    PyValueError::new_err(text)
                }
                Err(_) => {
                    let text = format!("invalid number of units {}: {expected}", of_type(&value));
                    PyTypeError::new_err(text)
                }
            }
        })
    }
}
