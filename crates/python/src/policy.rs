//! Policies.

use std::{
    collections::{HashMap, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    sync::{LazyLock, Mutex, PoisonError},
    time::Duration,
};

use pyo3::{exceptions::PyTypeError, prelude::*, types::PyString};
use sluicegate::{LimitError, OnError, PolicyError, PreparedPolicy};
use sluicegate_core::Operation;

use crate::errors;

/// Maximum number of policies that are kept by their text.
const MAX_TEXTS: usize = 1024;

/// Policies by their text.
static BY_TEXT: LazyLock<Mutex<HashMap<String, PreparedPolicy>>> = LazyLock::new(Mutex::default);

/// One to eight limits, which are decided together.
#[pyclass(frozen, module = "sluicegate", subclass)]
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) prepared: PreparedPolicy,
    on_error: Option<String>,
    lease: u32,
}

#[pymethods]
impl Policy {
    #[new]
    #[pyo3(signature = (text, *, on_error = None, lease = 0))]
    fn new(py: Python<'_>, text: &str, on_error: Option<String>, lease: u32) -> PyResult<Self> {
        let policy: sluicegate::Policy =
            text.parse().map_err(|error| errors::policy(py, &error))?;
        let mut prepared = PreparedPolicy::new(&policy);
        if let Some(text) = &on_error {
            let on_error = text.parse::<OnError>();
            let invalid = |error: LimitError| errors::new(py, "PolicyError", error.to_string());
            prepared = prepared.on_error(on_error.map_err(invalid)?);
        }
        if lease > 0 {
            prepared = prepared.lease(lease).map_err(|error| errors::store(py, &error))?;
        }
        Ok(Self { prepared, on_error, lease })
    }

    fn __str__(&self) -> String {
        self.prepared.policy().to_string()
    }

    fn __repr__(&self) -> String {
        format!("Policy('{}')", self.prepared.policy())
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.key() == other.key()
    }

    fn __hash__(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.key().hash(&mut hasher);
        hasher.finish()
    }

    /// Both: a request must fit in all limits of the two. `on_error` is that of the one that sets it, and `lease` the
    /// larger one: an error if a limit of the other cannot have one.
    fn __and__<'py>(slf: &Bound<'py, Self>, other: &Self) -> PyResult<Bound<'py, PyAny>> {
        let own = slf.get();
        let text = format!("{},{}", own.prepared.policy(), other.prepared.policy());
        let settings = pyo3::types::PyDict::new(slf.py());
        if let (Some(left), Some(right)) = (&own.on_error, &other.on_error)
            && left != right
        {
            let text = format!("invalid on_error `{right}` beside `{left}`: expected one value");
            return Err(errors::new(slf.py(), "PolicyError", text));
        }
        settings.set_item("on_error", own.on_error.as_ref().or(other.on_error.as_ref()))?;
        settings.set_item("lease", own.lease.max(other.lease))?;
        slf.get_type().call((text,), Some(&settings))
    }

    /// The answer while the store is unavailable, if it is set.
    #[getter]
    fn on_error(&self) -> Option<String> {
        self.on_error.clone()
    }

    /// Maximum number of units that are taken from the store at once.
    #[getter]
    fn lease(&self) -> u32 {
        self.lease
    }

    /// Describes the policy in words.
    fn explain(&self) -> String {
        let limits = self.prepared.policy().limits().iter();
        let words = limits.map(|limit| {
            let it = limit.describe();
            format!("{limit}: at once {}; sustained {}; {}", it.at_once, it.sustained, it.denied)
        });
        words.collect::<Vec<_>>().join("\n")
    }
}

impl Policy {
    fn key(&self) -> (String, &Option<String>, u32) {
        (self.__str__(), &self.on_error, self.lease)
    }
}

/// The longest and default lifetime of a hold under the `concurrency` limits of a policy, if it has one.
#[pyfunction]
pub(crate) fn hold_ttl(policy: &Bound<'_, Policy>) -> Option<Duration> {
    let hold = Operation::Hold { id: b"id", cost: 1, ttl: None };
    policy.get().prepared.policy().check_operation(hold).ok().map(Duration::from_micros)
}

/// The policy of an argument: a `Policy` or its text.
pub(crate) fn prepared(value: &Bound<'_, PyAny>) -> PyResult<PreparedPolicy> {
    if let Ok(policy) = value.cast::<Policy>() {
        return Ok(policy.get().prepared.clone());
    }
    let Ok(text) = value.cast::<PyString>() else {
        let class = value.get_type().name()?;
        let text = format!("invalid policy of type `{class}`: expected a Policy or its text");
        return Err(PyTypeError::new_err(text));
    };
    let text = text.to_str()?;
    let mut by_text = BY_TEXT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(policy) = by_text.get(text) {
        return Ok(policy.clone());
    }
    let policy = text.parse::<PreparedPolicy>();
    let policy = policy.map_err(|error| errors::policy(value.py(), &error))?;
    if by_text.len() == MAX_TEXTS {
        by_text.clear();
    }
    by_text.insert(text.to_owned(), policy.clone());
    Ok(policy)
}

/// The policy of an argument behind `key`. If the two may be in the wrong order, the error says so.
pub(crate) fn policy_beside(
    key: &Bound<'_, PyAny>,
    policy: &Bound<'_, PyAny>,
) -> PyResult<PreparedPolicy> {
    prepared(policy).map_err(|error| {
        let is_policy = key.cast::<Policy>().is_ok()
            || key.cast::<PyString>().is_ok_and(|text| {
                text.to_str().is_ok_and(|text| text.parse::<sluicegate::Policy>().is_ok())
            });
        if !is_policy {
            return error;
        }
        let swapped = PolicyError::swapped(&key.to_string(), &policy.to_string());
        errors::policy(key.py(), &swapped)
    })
}

/// The text of one limit: `name:limit/period` and its options.
#[pyfunction]
#[pyo3(signature = (name, limit, per, options))]
pub(crate) fn limit_text(
    name: &str,
    limit: &Bound<'_, PyAny>,
    per: &Bound<'_, PyAny>,
    options: Vec<String>,
) -> PyResult<String> {
    let per = match per.cast::<PyString>() {
        Ok(text) => text.to_str()?.to_owned(),
        Err(_) => format!("{}us", crate::arguments::span("per", per)?.as_micros()),
    };
    let options: String = options.into_iter().map(|option| format!(":{option}")).collect();
    Ok(format!("{name}:{limit}/{per}{options}"))
}
