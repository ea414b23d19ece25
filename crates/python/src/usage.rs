//! Usage of a key, whatever its policy: for `sluicegate.ext.limits`, whose interface queries without one.

use pyo3::prelude::*;
use sluicegate::{Applied, Store as _};
use sluicegate_core::{StoreStatus, Usage};

use crate::{errors, limiter::Limiter, runtime};

/// Usage of the first limit of a key: units in use, requests that pass, the time until nothing is in use and the time
/// of the store, in microseconds; and, for a sliding counter, the units in the window before and in the current one.
type PyUsage = (u64, u32, u64, u64, Option<(u64, u64)>);

/// The usage of `key`; `None` if it is unused.
#[pyfunction]
pub(crate) fn usage(
    py: Python<'_>,
    limiter: &Bound<'_, Limiter>,
    key: &Bound<'_, PyAny>,
) -> PyResult<Option<PyUsage>> {
    let (store, key) = (limiter.get().store(py)?, limiter.get().key(key)?);
    let mut found: Option<PyUsage> = None;
    let mut read = |entry: Option<&sluicegate_core::Entry>, now: sluicegate::Timestamp| {
        found = entry.and_then(|entry| {
            let (_, usage) = entry.usage(now).next()?;
            let reset_after = u64::try_from(usage.reset_after.as_micros()).unwrap_or(u64::MAX);
            let Usage { used, remaining, window_counts, .. } = usage;
            Some((used, remaining, reset_after, now.as_micros(), window_counts))
        });
    };
    let result = match store.read(key, &mut read) {
        Applied::Now(result) => result,
        Applied::Later(future) => runtime::block(py, future)?,
    };
    result.map_err(|error| errors::store(py, &error))?;
    Ok(found)
}

/// Number of keys of a limiter in this process.
#[pyfunction]
pub(crate) fn keys(py: Python<'_>, limiter: &Bound<'_, Limiter>) -> PyResult<usize> {
    Ok(match limiter.get().store(py)?.status() {
        StoreStatus::Local(usage) => usage.keys,
        StoreStatus::Remote(_) => 0,
    })
}
