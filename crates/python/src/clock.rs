//! A clock that users' tests move.

use pyo3::{exceptions::PyValueError, prelude::*};
use sluicegate::{Clock, Timestamp};

use crate::arguments::span;

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
