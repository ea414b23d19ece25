//! A call with its arguments, and its reply.

use std::{sync::Arc, time::Duration};

use pyo3::{IntoPyObjectExt as _, prelude::*};
use sluicegate::{
    Answer, KeyedOperation, Limiter, Operation, PreparedPolicy, Request as StoreRequest, Store,
    StoreError, WaitOptions,
};
use sluicegate_holds::{Guards, HoldId, PendingRequest};

use crate::{
    bridge::Reply,
    decision::Decision,
    errors,
    hold::{AnyStore, Guard, Hold, cancel_on_drop},
};

pub(crate) type Replied = Result<Value, StoreError>;

/// A key with its policy and its units.
#[derive(Debug)]
pub(crate) struct Keyed {
    pub(crate) key: Vec<u8>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) cost: u32,
}

/// The operation of a call.
#[derive(Debug)]
pub(crate) enum Request {
    Apply { key: Vec<u8>, policy: PreparedPolicy, operation: Operation<'static> },
    Wait { keyed: Keyed, options: WaitOptions },
    Reset { key: Vec<u8> },
    TakeMany(Vec<Keyed>),
    TakeAll(Vec<Keyed>),
    Hold(HoldRequest),
}

/// A hold of one key or of several.
#[derive(Debug)]
pub(crate) struct HoldRequest {
    pub(crate) keys: Vec<Keyed>,
    pub(crate) id: Option<Vec<u8>>,
    pub(crate) ttl: Option<Duration>,
    /// How long to wait until the units are available.
    pub(crate) timeout: Duration,
    /// Whether the holds are renewed while they are open.
    pub(crate) renews: bool,
}

/// The result of a call.
#[derive(Debug)]
pub(crate) enum Value {
    Decision(Answer, PreparedPolicy),
    Flag(bool),
    Decisions(Vec<(Result<Answer, StoreError>, PreparedPolicy)>),
    /// The decision on several keys, under the policy of the binding one.
    All(Answer, PreparedPolicy),
    Held {
        decision: Answer,
        key: Option<usize>,
        policy: PreparedPolicy,
        guards: Vec<Guard>,
        /// Whether the caller gave the id.
        is_given: bool,
    },
}

impl Reply for Replied {
    fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.map_err(|error| errors::store(py, &error))? {
            Value::Decision(answer, policy) => Decision::new(answer, policy, None).into_py_any(py),
            Value::Flag(flag) => flag.into_py_any(py),
            Value::Decisions(answers) => {
                let decisions = answers.into_iter().map(|(answer, policy)| {
                    let answer = answer.map_err(|error| errors::store(py, &error))?;
                    Ok(Decision::new(answer, policy, None))
                });
                decisions.collect::<PyResult<Vec<_>>>()?.into_py_any(py)
            }
            Value::All(answer, policy) => {
                let key = Some(answer.key);
                Decision::new(answer, policy, key).into_py_any(py)
            }
            Value::Held { decision, key, policy, guards, is_given } => {
                let source = decision.source;
                let decision = Py::new(py, Decision::new(decision, policy, key))?;
                Hold::new(decision, source, guards, is_given).into_py_any(py)
            }
        }
    }
}

impl Request {
    /// Sends it to the store, and waits for up to its timeout.
    pub(crate) async fn perform(self, store: Arc<AnyStore>) -> Replied {
        match self {
            Self::Apply { key, policy, operation } => {
                let answer = store.apply(StoreRequest::one(&key, &policy, operation)).await?;
                Ok(Value::Decision(answer, policy))
            }
            Self::Wait { keyed: Keyed { key, policy, cost }, options } => {
                let waiting = Limiter::new(Arc::clone(&store));
                let answer = waiting.until_ready(&key, &policy, cost, options).await?;
                Ok(Value::Decision(answer, policy))
            }
            Self::Reset { key } => Ok(Value::Flag(store.reset(&key).await?)),
            Self::TakeMany(takes) => {
                let operations = keyed(Operation::Take(0), &takes);
                let answers = store.apply_many(&operations).await;
                let policies = takes.iter().map(|it| it.policy.clone());
                Ok(Value::Decisions(answers.into_iter().zip(policies).collect()))
            }
            Self::TakeAll(takes) => {
                let operations = keyed(Operation::Take(0), &takes);
                let mut answer = store.apply(StoreRequest::all(&operations)?).await?;
                answer.key = distinct(&takes)[answer.key];
                let policy = takes[answer.key].policy.clone();
                Ok(Value::All(answer, policy))
            }
            Self::Hold(request) => request.perform(&store).await,
        }
    }
}

impl HoldRequest {
    /// Holds, and waits until the units are available.
    async fn perform(self, store: &Arc<AnyStore>) -> Replied {
        let id = self.id.as_deref().map_or_else(HoldId::random, HoldId::given);
        let (mut guards, mut costs) = (Guards::<AnyStore>::new(), Vec::new());
        let distinct = distinct(&self.keys);
        for &index in &distinct {
            let Keyed { key, policy, cost } = &self.keys[index];
            guards.push(Guard::new(store, key, policy, id.clone(), self.ttl));
            costs.push(*cost);
        }
        // A hold with an id of its own may be open already, which only an attempt finds out.
        let is_given = self.id.is_some();
        let pending = PendingRequest::hold(store, guards, costs, self.timeout.into(), is_given);
        let (mut decision, guards) = pending.wait().await?;
        decision.key = distinct[decision.key];
        let guards = guards.into_iter().filter(|_| decision.allowed()).map(|it| self.kept(it));
        let guards = guards.collect();
        let key = (self.keys.len() > 1).then_some(decision.key);
        let policy = self.keys[decision.key].policy.clone();
        Ok(Value::Held { decision, key, policy, guards, is_given })
    }

    /// The guard of units that are held. Until Python has it, a drop cancels the hold: its task was.
    fn kept(&self, mut guard: Guard) -> Guard {
        if self.renews {
            guard.keep_alive();
        }
        cancel_on_drop(&mut guard, self.id.is_some());
        guard
    }
}

/// The indices of the keys of a decision on several: of a key that is given twice, the first.
fn distinct(keys: &[Keyed]) -> Vec<usize> {
    let is_first = |index: &usize| keys[..*index].iter().all(|it| it.key != keys[*index].key);
    (0..keys.len()).filter(is_first).collect()
}

/// `operation` on each key, with the cost there.
fn keyed<'a>(operation: Operation<'a>, keys: &'a [Keyed]) -> Vec<KeyedOperation<'a>> {
    let keyed = |it: &'a Keyed| KeyedOperation {
        key: &it.key,
        policy: &it.policy,
        operation: operation.with_cost(it.cost),
    };
    keys.iter().map(keyed).collect()
}
