//! State of keys, for `sluicegate.ext.limits`: its interface queries usage without a policy, and resets all keys.

use pyo3::prelude::*;
use sluicegate::{Applied, Store as _};
use sluicegate_core::{Entry, Operation, Retry, StoreStatus, Timestamp, Usage, as_micros};

use crate::{errors, limiter::Limiter, policy::prepared, runtime};

/// Usage of the first limit of a key: units in use, its capacity, the time until nothing is in use and the time
/// of the store, in microseconds; and, for a sliding counter, the units in the window before and in the current one.
type PyUsage = (u64, u32, u64, u64, Option<(u64, u64)>);

/// The usage of `key`; `None` if it is unused.
#[pyfunction]
pub(crate) fn usage(
    py: Python<'_>,
    limiter: &Bound<'_, Limiter>,
    key: &Bound<'_, PyAny>,
) -> PyResult<Option<PyUsage>> {
    read(py, limiter, key, |entry, now| {
        let (limit, usage) = entry?.usage(now).next()?;
        let Usage { used, reset_after, window_counts, .. } = usage;
        Some((used, limit.capacity(), as_micros(reset_after), now.as_micros(), window_counts))
    })
}

/// The requests of `key` that pass under `policy`, and the microseconds after which one more would pass; `None` if more never
/// pass. Both are of one time.
#[pyfunction]
pub(crate) fn window(
    py: Python<'_>,
    limiter: &Bound<'_, Limiter>,
    key: &Bound<'_, PyAny>,
    policy: &Bound<'_, PyAny>,
) -> PyResult<(u32, Option<u64>)> {
    let policy = prepared(policy)?;
    let window = read(py, limiter, key, |entry, now| {
        let mut entry = entry.cloned();
        let mut peek =
            |cost| sluicegate_core::apply(policy.policy(), &mut entry, now, Operation::Peek(cost));
        let remaining = peek(1)?.remaining;
        let wait = match peek(remaining.saturating_add(1))?.retry() {
            Some(Retry::After(wait)) => Some(as_micros(wait)),
            _ => None,
        };
        Ok::<_, sluicegate_core::OperationError>((remaining, wait))
    })?;
    window.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string()))
}

/// Calls `convert` with the entry of `key`, in one round trip.
fn read<T: Send>(
    py: Python<'_>,
    limiter: &Bound<'_, Limiter>,
    key: &Bound<'_, PyAny>,
    convert: impl Fn(Option<&Entry>, Timestamp) -> T + Send + Sync,
) -> PyResult<T> {
    let (store, key) = (limiter.get().store(py)?, limiter.get().key(key)?);
    let mut found = None;
    let mut read = |entry: Option<&Entry>, now: Timestamp| found = Some(convert(entry, now));
    let result = match store.read(key, &mut read) {
        Applied::Now(result) => result,
        Applied::Later(future) => runtime::block(py, future)?,
    };
    result.map_err(|error| errors::store(py, &error))?;
    Ok(found.expect("a store calls `read` once"))
}

/// Number of keys of a limiter in this process.
#[pyfunction]
pub(crate) fn keys(py: Python<'_>, limiter: &Bound<'_, Limiter>) -> PyResult<usize> {
    Ok(match limiter.get().store(py)?.status() {
        StoreStatus::Local(usage) => usage.keys,
        StoreStatus::Remote(_) => 0,
    })
}

/// Deletes the keys of a store in another process that match `pattern`. Their number; `None` if the store cannot list
/// its keys.
#[pyfunction]
pub(crate) fn delete_matching(
    py: Python<'_>,
    limiter: &Bound<'_, Limiter>,
    pattern: &str,
) -> PyResult<Option<u64>> {
    let store = limiter.get().redis_store(py)?;
    let deleted = runtime::block(py, store.delete_matching(pattern))?;
    deleted.map_err(|error| errors::store(py, &error))
}
