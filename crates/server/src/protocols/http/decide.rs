//! Decisions: from the body of a request to its response.

use sluicegate_commands::PolicyText;
use sluicegate_core::{Answer, KeyedOperation, Operation, Policy, Request, StoreError, Timestamp};
use sluicegate_headers::RateLimitHeaders;
use tracing::Span;

use super::{
    key_request::{self, KeyRequest, TakeManyRequest},
    problem::{Problem, Reply},
    reply::{self, DecisionReply, visible_source},
    route::KeyOperationKind,
    worker::HttpWorker,
};
use crate::{
    HeaderStyle,
    denial_log::Waited,
    net::web::RequestBody,
    policies::policy_cache::PolicyId,
    stats::Cause,
    wait::{self, WaitingRequest},
};

/// One decision. `now` is when the request was there.
pub(super) async fn one(
    worker: &HttpWorker,
    kind: KeyOperationKind,
    (text, body): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let request: KeyRequest<'_> = key_request::read(text)?;
    let key = request.key()?;
    // The entry is fetched into the cache while the rest is parsed.
    context.decider.prefetch(&key);
    let operation = request.operation(kind)?;
    if context.telemetry.is_some() {
        Span::current().record("sluicegate.cost", i64::from(request.cost()));
    }
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    let style = request.headers.unwrap_or(context.settings.headers);
    let timeout = request.wait()?;
    let id = find_policy(worker, request.policy()?)?;
    if timeout.is_none()
        && let Some(answer) = decide_local(worker, &key, id, operation, now)
    {
        let answer = answer?;
        let policies = worker.policies.borrow();
        let keyed = KeyedOperation { key: &key, policy: policies.get(id), operation };
        let headers = policies.headers(id);
        return Ok(respond(worker, &keyed, &answer, headers, (style, kind), (now, None)));
    }
    let (prepared, headers) = worker.policies.borrow_mut().pin(id);
    let keyed = KeyedOperation { key: &key, policy: &prepared, operation };
    // Boxed, because most requests are answered above and need no space for it.
    let (answer, now, waited) = Box::pin(async {
        match timeout {
            None => Ok((context.decider.decide(keyed.into(), now).await?, now, None)),
            Some(timeout) => {
                let mut waiting = WaitingRequest::one(keyed, timeout);
                let bytes = waiting.reserved_bytes();
                let waited = wait::wait(&context.decider, &mut waiting, worker.stopping());
                let answer = worker.wait(body, bytes, waited).await?;
                Ok::<_, Problem>((answer, waiting.decided_at(), Some(waiting.waited())))
            }
        }
    })
    .await?;
    Ok(respond(worker, &keyed, &answer, &headers, (style, kind), (now, waited)))
}

/// The response to a request that was decided at `now`, after it had `waited`.
#[inline]
fn respond(
    worker: &HttpWorker,
    keyed: &KeyedOperation<'_>,
    Answer { decision, source, .. }: &Answer,
    headers: &RateLimitHeaders,
    (style, kind): (HeaderStyle, KeyOperationKind),
    (now, waited): (Timestamp, Option<Waited>),
) -> Reply {
    worker.record(keyed.key, *source, decision, Cause::policy(keyed.policy.policy()));
    worker.context.decider.note(keyed, *source, decision, now, waited);
    let mut data = DecisionReply::new(worker, decision, *source, headers, style);
    data.is_query = kind == KeyOperationKind::Peek;
    reply::decision(&data)
}

/// Several independent takes.
pub(super) async fn many(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let many: TakeManyRequest<'_> = key_request::read(body)?;
    let requests = many.requests()?;
    let now = key_request::time(many.at_us, worker.context.test_clock)?.unwrap_or(now);
    // All are validated before any is decided.
    let mut takes = Vec::with_capacity(requests.len());
    for (index, request) in requests.iter().enumerate() {
        let take = || {
            request.one_of_many()?;
            let key = request.key()?;
            worker.context.decider.check_key(&key)?;
            worker.context.decider.prefetch(&key);
            let operation = request.operation(KeyOperationKind::Take)?;
            let id = find_policy(worker, request.policy()?)?;
            let policies = worker.policies.borrow();
            policies.get(id).policy().check_operation(operation).map_err(StoreError::from)?;
            Ok((key, id, operation))
        };
        takes.push(take().map_err(|problem: Problem| problem.in_item("requests", index))?);
    }
    // Kept until all are decided, between which the cache may evict policies.
    let prepared: Vec<_> = {
        let mut policies = worker.policies.borrow_mut();
        let prepared = takes.iter().map(|(_, id, _)| policies.get(*id).clone()).collect();
        policies.evict();
        prepared
    };
    let questions = takes.iter().zip(&prepared);
    let questions: Vec<_> = questions
        .map(|((key, _, operation), policy)| KeyedOperation { key, policy, operation: *operation })
        .collect();
    let decider = &worker.context.decider;
    let decided = decider.decide_many(&worker.web.port.worker.turns, &questions, now).await;
    let answers = decided.into_iter().collect::<Result<Vec<_>, _>>()?;
    let data = answers.iter().zip(&questions).map(|(answer, question)| {
        let cause = Cause::policy(question.policy.policy());
        worker.stats().record(question.key, answer.source, &answer.decision, cause);
        decider.note(question, answer.source, &answer.decision, now, None);
        (&answer.decision, visible_source(worker, answer.source))
    });
    Ok(reply::decisions(data))
}

/// Resets a key.
pub(super) async fn reset(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let request: KeyRequest<'_> = key_request::read(body)?;
    request.only_key()?;
    let key = request.key()?;
    let context = &worker.context;
    let now = key_request::time(request.at_us, context.test_clock)?.unwrap_or(now);
    Ok(reply::reset(context.decider.reset(&key, now).await?))
}

/// The policy of a text or a name (`@name`), from the cache of the worker.
#[inline]
pub(super) fn find_policy(worker: &HttpWorker, text: &[u8]) -> Result<PolicyId, Problem> {
    let decider = &worker.context.decider;
    let prepare = |policy: &Policy, lease| decider.prepare(policy, lease);
    Ok(worker.policies.borrow_mut().find(PolicyText::Text(text), &decider.rules, prepare)?)
}

/// Decides now, if the store is local. The policy is not cloned for it: workers share its reference count, which would
/// move between their caches with every request.
#[inline]
fn decide_local(
    worker: &HttpWorker,
    key: &[u8],
    id: PolicyId,
    operation: Operation<'static>,
    now: Timestamp,
) -> Option<Result<Answer, Problem>> {
    let decider = &worker.context.decider;
    if !decider.is_local() {
        return None;
    }
    let policies = worker.policies.borrow();
    let policy = policies.get(id);
    let answer = decider.decide(Request::one(key, policy, operation), now).now()?;
    Some(answer.map_err(Problem::from))
}
