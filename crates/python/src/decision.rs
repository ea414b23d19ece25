//! Decisions.

use crate::{bridge::Reply, errors, policy::prepared};
use pyo3::{IntoPyObjectExt as _, prelude::*, types::PyDelta};
use sluicegate::{Answer, Outcome, PreparedPolicy, Retry, Source, StoreError};
use sluicegate_headers::{RateLimitHeaders, problem, retry_after};
use std::time::Duration;

/// The answer to a request. It is true if the request is allowed.
#[pyclass(frozen, module = "sluicegate")]
#[derive(Debug)]
pub(crate) struct Decision {
    answer: Answer,
    policy: PreparedPolicy,
    /// For a decision on several keys: the index of the binding one.
    key: Option<usize>,
}

/// The policy, the integers, the source and the key of a decision.
type Pickled = (String, [i64; 7], &'static str, Option<usize>);

/// A decision under a policy, as a call replies it.
pub(crate) type Decided = Result<(Answer, PreparedPolicy), StoreError>;

impl Reply for Decided {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let (answer, policy) = self.map_err(|error| errors::store(py, &error))?;
        Decision::new(answer, policy, None).into_py_any(py)
    }
}

impl Decision {
    pub(crate) const fn new(answer: Answer, policy: PreparedPolicy, key: Option<usize>) -> Self {
        Self { answer, policy, key }
    }

    /// This decision with another outcome.
    pub(crate) fn with_outcome(&self, outcome: Outcome) -> Self {
        let decision = sluicegate::Decision { outcome, ..self.answer.decision };
        let answer = Answer::new(decision, self.answer.source);
        Self { answer, policy: self.policy.clone(), key: self.key }
    }
}

/// The source of a decision by its word.
fn source(word: &str) -> Option<Source> {
    [Source::Store, Source::Cache, Source::Lease, Source::Fallback]
        .into_iter()
        .find(|source| source.as_str() == word)
}

#[pymethods]
impl Decision {
    /// The decision of these integers, for `pickle`.
    #[staticmethod]
    fn _of(
        py: Python<'_>,
        policy: &Bound<'_, PyAny>,
        integers: [i64; 7],
        word: &str,
        key: Option<usize>,
    ) -> PyResult<Self> {
        let invalid = || errors::new(py, "OperationError", "invalid decision".to_owned());
        let decision = sluicegate::Decision::from_integers(&integers).ok_or_else(invalid)?;
        let source = source(word).ok_or_else(invalid)?;
        Ok(Self::new(Answer::new(decision, source), prepared(policy)?, key))
    }

    /// The content of a `pickle`.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<(Bound<'py, PyAny>, Pickled)> {
        let it = slf.get();
        let pickled = (it.policy(), it.integers(), it.source(), it.key);
        Ok((slf.get_type().getattr("_of")?, pickled))
    }

    fn __bool__(&self) -> bool {
        self.answer.allowed()
    }

    /// Whether the request is allowed.
    #[getter]
    fn allowed(&self) -> bool {
        self.answer.allowed()
    }

    /// Units that the binding limit admits at once.
    #[getter]
    fn limit(&self) -> u32 {
        self.answer.limit
    }

    /// Requests of cost 1 that would pass now.
    #[getter]
    fn remaining(&self) -> u32 {
        self.answer.remaining
    }

    /// The time after which the request passes; `None` if it is allowed, or never passes.
    #[getter]
    fn retry_after<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDelta>>> {
        match self.answer.retry() {
            Some(Retry::After(wait)) => delta(py, wait).map(Some),
            Some(Retry::Never) | None => Ok(None),
        }
    }

    /// Whether the request never passes, because its cost is more than the policy admits.
    #[getter]
    fn never(&self) -> bool {
        self.answer.retry() == Some(Retry::Never)
    }

    /// The time until nothing is in use, under all limits of the policy. `headers` has that of the binding limit.
    #[getter]
    fn reset_after<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDelta>> {
        delta(py, self.answer.reset_after)
    }

    /// The time after which the units that were taken are for use: of a reservation, or in a queue.
    #[getter]
    fn delay<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDelta>> {
        delta(py, self.answer.delay())
    }

    /// Index of the binding limit of the policy, from 0.
    #[getter]
    fn binding(&self) -> usize {
        self.answer.binding
    }

    /// For a decision on several keys: index of the binding key, from 0. Otherwise `None`.
    #[getter]
    fn key(&self) -> Option<usize> {
        self.key
    }

    /// What decided: `store`, `cache`, `lease` or `fallback`.
    #[getter]
    fn source(&self) -> &'static str {
        self.answer.source.as_str()
    }

    /// The text of the policy.
    #[getter]
    fn policy(&self) -> String {
        self.policy.policy().to_string()
    }

    /// The seven integers of the protocols: allowed, limit, remaining, retry after (-1: never), reset after, delay, binding;
    /// times in microseconds.
    fn integers(&self) -> [i64; 7] {
        self.answer.to_integers()
    }

    /// Headers for a response: `RateLimit-Policy`, `RateLimit`, and `Retry-After` if denied.
    #[pyo3(signature = (name = "default"))]
    fn headers(&self, name: &str) -> Vec<(&'static str, String)> {
        let fields = RateLimitHeaders::new(name, self.policy.policy());
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        let mut headers = vec![
            ("RateLimit-Policy", text(fields.policy().as_bytes())),
            ("RateLimit", text(fields.rate_limit(&self.answer).as_bytes())),
        ];
        headers.extend(retry_after(&self.answer).map(|it| ("Retry-After", it.to_string())));
        headers
    }

    /// The problem document (RFC 9457) of a denial, as JSON: the body of a response with status 429.
    #[pyo3(signature = (name = "default"))]
    fn problem(&self, name: &str) -> String {
        problem(&RateLimitHeaders::new(name, self.policy.policy()), &self.answer)
    }

    fn __repr__(&self) -> String {
        let decision = self.answer.decision;
        let state = match decision.retry() {
            None if decision.delay().is_zero() => "allowed".to_owned(),
            None => format!("allowed after {:?}", decision.delay()),
            Some(Retry::After(wait)) => format!("denied, retry after {wait:?}"),
            Some(Retry::Never) => "denied, never passes".to_owned(),
        };
        format!("<Decision: {state}, {} of {} remaining>", decision.remaining, decision.limit)
    }
}

fn delta(py: Python<'_>, span: Duration) -> PyResult<Bound<'_, PyDelta>> {
    let days = i32::try_from(span.as_secs() / 86_400).unwrap_or(i32::MAX);
    let seconds = i32::try_from(span.as_secs() % 86_400).unwrap_or_default();
    let micros = i32::try_from(span.subsec_micros()).unwrap_or_default();
    PyDelta::new(py, days, seconds, micros, false)
}
