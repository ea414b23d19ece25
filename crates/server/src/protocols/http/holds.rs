//! Holds, and operations on several keys: from the body of a request to its response.

use futures_util::future::join_all;
use sluicegate_commands::RepeatedKeys;
use sluicegate_core::{KeyedOperation, Operation, Request, StoreError, Timestamp};

use super::{
    decide::find_policy,
    hold_request::{HoldRequest, SettleAllRequest, TakeAllRequest},
    key_request,
    problem::Problem,
    reply::{self, DecisionReply, visible_source},
    response::Reply,
    route::{HoldOperationKind, KeyOperationKind},
    worker::HttpWorker,
};
use crate::{
    net::web::RequestBody,
    stats::Cause,
    wait::{self, WaitingRequest},
};

/// One operation on one hold. A settle or renew of a hold that is not open is an answer, and not a denial by a limit.
pub(super) async fn one(
    worker: &HttpWorker,
    kind: HoldOperationKind,
    (text, body): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let request: HoldRequest<'_> = key_request::read(text)?;
    let (key, id) = (request.key()?, request.id()?);
    let operation = request.operation(kind, &id)?;
    let timeout = request.wait()?;
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    let style = request.headers.unwrap_or(context.settings.headers);
    let found = find_policy(worker, request.policy()?)?;
    let (policy, headers) = worker.policies.borrow_mut().pin(found);
    let keyed = KeyedOperation { key: &key, policy: &policy, operation };
    let (answer, now, waited) = match timeout {
        Some(timeout) => {
            let mut waiting = WaitingRequest::one(keyed, timeout);
            let bytes = waiting.reserved_bytes();
            let waited = wait::wait(&context.decider, &mut waiting, worker.stopping());
            (worker.wait(body, bytes, waited).await?, waiting.decided_at(), Some(waiting.waited()))
        }
        None => (context.decider.decide(keyed.into(), now).await?, now, None),
    };
    if kind == HoldOperationKind::Hold {
        let cause = Cause::policy(policy.policy());
        worker.record(&key, answer.source, &answer.decision, cause);
        context.decider.note(&keyed, answer.source, &answer.decision, now, waited);
    }
    let mut data = DecisionReply::new(worker, &answer.decision, answer.source, &headers, style);
    data.is_query = kind != HoldOperationKind::Hold;
    Ok(reply::decision(&data))
}

/// Takes from several keys, from all or from none, or holds.
pub(super) async fn take_all(
    worker: &HttpWorker,
    (text, body): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let request: TakeAllRequest<'_> = key_request::read(text)?;
    let given = request.takes()?;
    let id = request.id()?;
    let operation = request.operation(id.as_deref())?;
    let timeout = request.wait()?;
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    let style = request.headers.unwrap_or(context.settings.headers);
    let mut parsed = Vec::with_capacity(given.len());
    for (index, take) in given.iter().enumerate() {
        let one = || {
            take.one_of_many()?;
            take.operation(KeyOperationKind::Take)?;
            Ok(((take.key()?, take.cost()), find_policy(worker, take.policy()?)?))
        };
        parsed.push(one().map_err(|problem: Problem| problem.in_item("takes", index))?);
    }
    // Stores answer once for each distinct key.
    let repeated = RepeatedKeys::remove_from(&mut parsed, |((key, _), _)| key);
    let (keys, found): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
    let policies = worker.policies.borrow_mut().pin_all(found);
    let operations = keys.iter().zip(&policies).map(|((key, cost), (policy, _))| KeyedOperation {
        key,
        policy,
        operation: operation.with_cost(*cost),
    });
    let operations: Vec<_> = operations.collect();
    let (answer, now, waited) = match timeout {
        None => {
            let request = Request::all(&operations).map_err(StoreError::from)?;
            (context.decider.decide(request, now).await?, now, None)
        }
        Some(timeout) => {
            let mut waiting = WaitingRequest::all(&operations, timeout);
            let bytes = waiting.reserved_bytes();
            let waited = wait::wait(&context.decider, &mut waiting, worker.stopping());
            (worker.wait(body, bytes, waited).await?, waiting.decided_at(), Some(waiting.waited()))
        }
    };
    for (it, decision) in operations.iter().zip(answer.each()) {
        let cause = Cause::policy(it.policy.policy());
        worker.stats().record(it.key, answer.source, decision, cause);
    }
    context.decider.note_all(&operations, &answer, now, waited);
    // The headers are those of the key that binds.
    let headers = &policies[answer.key].1;
    let mut data = DecisionReply::new(worker, &answer.decision, answer.source, headers, style);
    data.bound = &answer.each()[answer.key];
    Ok(reply::all(&data, &answer, &repeated))
}

/// Settles a hold of several keys, each by itself.
pub(super) async fn settle_all(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let decider = &worker.context.decider;
    let request: SettleAllRequest<'_> = key_request::read(body)?;
    let given = request.settles()?;
    let id = &*request.id()?;
    let now = key_request::time(request.at_us, worker.context.test_clock)?.unwrap_or(now);
    let mut parsed = Vec::with_capacity(given.len());
    // All are validated before any is settled.
    for (index, settle) in given.iter().enumerate() {
        let one = || {
            let operation = Operation::Settle { id, used: settle.used_of_one()? };
            let (key, found) = (settle.key()?, find_policy(worker, settle.policy()?)?);
            decider.check_key(&key)?;
            let policies = worker.policies.borrow();
            policies.get(found).policy().check_operation(operation).map_err(StoreError::from)?;
            Ok(((key, operation), found))
        };
        parsed.push(one().map_err(|problem: Problem| problem.in_item("settles", index))?);
    }
    let (operations, found): (Vec<_>, Vec<_>) = parsed.into_iter().unzip();
    let policies = worker.policies.borrow_mut().pin_all(found);
    let settles = operations.iter().zip(&policies);
    let settles = settles.map(|((key, operation), (policy, _))| {
        decider.decide(Request::one(key, policy, *operation), now).into_future()
    });
    let answers = join_all(settles).await.into_iter().collect::<Result<Vec<_>, _>>()?;
    let decisions =
        answers.iter().map(|answer| (&answer.decision, visible_source(worker, answer.source)));
    Ok(reply::decisions(decisions))
}
