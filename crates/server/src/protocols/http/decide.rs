//! Decisions: from the body of a request to its response.

use std::rc::Rc;

use sluicegate_commands::PolicyText;
use sluicegate_core::{Answer, KeyedOperation, Operation, Policy, Timestamp};
use sluicegate_headers::RateLimitHeaders;

use super::{
    ask::{Ask, AskMany},
    problem::Problem,
    reply::{self, DecisionReply, shown},
    response::Reply,
    route::Verb,
    worker::HttpWorker,
};
use crate::{
    HttpHeaders,
    net::web::RequestBody,
    policies::policy_cache::PolicyId,
    stats::Cause,
    wait::{self, Waiting},
};

/// One decision. `now` is when the request was there.
pub(super) async fn one(
    worker: &HttpWorker,
    verb: Verb,
    (body, request): (&[u8], &RequestBody),
    now: Timestamp,
) -> Result<Reply, Problem> {
    let context = &worker.context;
    let ask = Ask::read(body)?;
    let key = ask.key()?;
    // The entry is fetched into the cache while the rest is parsed.
    context.decider.prefetch(&key);
    let operation = ask.operation(verb)?;
    let now = ask.at(context.test_clock)?.unwrap_or(now);
    let style = ask.headers().unwrap_or(context.settings.headers);
    let timeout = ask.wait()?;
    let known = rule(worker, ask.policy()?)?;
    if timeout.is_none()
        && let Some(answer) = decide_local(worker, &key, known, operation, now)
    {
        let answer = answer?;
        let mut policies = worker.policies.borrow_mut();
        let of = (policies.get(known).policy(), &**policies.fields(known));
        let reply = respond(worker, &key, answer, of, (style, verb));
        policies.evict();
        return Ok(reply);
    }
    // The policy is kept until the answer arrives, so that the response is about the policy that was charged, even if
    // the rules change meanwhile.
    let (held, policy, fields) = {
        let mut policies = worker.policies.borrow_mut();
        let held = policies.get(known);
        let kept = (held.clone(), held.policy().clone(), Rc::clone(policies.fields(known)));
        policies.evict();
        kept
    };
    // Boxed, because most requests are answered above and need no room for it.
    let answer = Box::pin(async {
        match timeout {
            None => {
                let answer = context.decider.decide(&key, &held, operation, now).await?;
                context.decider.queues.asked(&key, held.policy(), operation);
                Ok(answer)
            }
            Some(timeout) => {
                // A client that leaves withdraws its request.
                let _held_back = request.hold_back().ok_or_else(Problem::half_closed)?;
                let waiting = Waiting { key: (*key).into(), rule: held, cost: ask.cost(), timeout };
                Ok::<_, Problem>(
                    wait::wait(&context.decider, waiting, worker.web.port.worker.stop.subscribe())
                        .await?,
                )
            }
        }
    });
    Ok(respond(worker, &key, answer.await?, (&policy, &fields), (style, verb)))
}

/// The response to a decided request.
#[inline]
fn respond(
    worker: &HttpWorker,
    key: &[u8],
    Answer { decision, source }: Answer,
    (policy, fields): (&Policy, &RateLimitHeaders),
    (style, verb): (HttpHeaders, Verb),
) -> Reply {
    worker.stats().decided(source, &decision);
    worker.stats().sampler.note(key, &decision, Cause::policy(policy));
    let told = DecisionReply::new(worker, &decision, source, fields, style);
    reply::decision(&told.query(verb == Verb::Peek))
}

/// Several independent takes.
pub(super) async fn many(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let many = AskMany::read(body)?;
    let now = many.at(worker.context.test_clock)?.unwrap_or(now);
    // All are validated before any is decided.
    let mut takes = Vec::with_capacity(many.requests.len());
    for (index, ask) in many.requests.iter().enumerate() {
        let take = || {
            ask.one_of_many()?;
            let key = ask.key()?;
            worker.context.decider.prefetch(&key);
            Ok((key, rule(worker, ask.policy()?)?, ask.operation(Verb::Take)?))
        };
        takes.push(take().map_err(|problem: Problem| problem.at(index))?);
    }
    let mut answers = Vec::with_capacity(takes.len());
    // Slow decisions are made in turns, between which the cache may evict policies.
    let heavy = takes.iter().any(|(_, known, _)| known.is_heavy());
    if worker.context.decider.is_local() && !heavy {
        for (key, known, operation) in &takes {
            let answer = decide_local(worker, key, *known, *operation, now).transpose()?;
            if let Some(answer) = answer {
                let policies = worker.policies.borrow();
                let cause = Cause::policy(policies.get(*known).policy());
                worker.stats().sampler.note(key, &answer.decision, cause);
                answers.push(answer);
            }
        }
    } else {
        let prepared: Vec<_> = {
            let policies = worker.policies.borrow();
            takes.iter().map(|(_, known, _)| policies.get(*known).clone()).collect()
        };
        let questions = takes.iter().zip(&prepared);
        let questions: Vec<_> = questions
            .map(|((key, _, operation), policy)| KeyedOperation {
                key,
                policy,
                operation: *operation,
            })
            .collect();
        for (answer, question) in worker
            .context
            .decider
            .decide_many(&worker.web.port.worker.turns, &questions, now)
            .await
            .into_iter()
            .zip(&questions)
        {
            worker.context.decider.queues.asked(
                question.key,
                question.policy.policy(),
                question.operation,
            );
            let answer = answer?;
            let cause = Cause::policy(question.policy.policy());
            worker.stats().sampler.note(question.key, &answer.decision, cause);
            answers.push(answer);
        }
    }
    worker.policies.borrow_mut().evict();
    let told = answers.iter().map(|answer| {
        worker.stats().decided(answer.source, &answer.decision);
        (&answer.decision, shown(worker, answer.source))
    });
    Ok(reply::decisions(told))
}

/// Resets a key.
pub(super) async fn reset(
    worker: &HttpWorker,
    body: &[u8],
    now: Timestamp,
) -> Result<Reply, Problem> {
    let ask = Ask::read(body)?;
    ask.only_key()?;
    let key = ask.key()?;
    let context = &worker.context;
    let now = ask.at(context.test_clock)?.unwrap_or(now);
    let existed = context.decider.reset(&key, now).await?;
    context.decider.queues.changed(&key);
    Ok(reply::reset(existed))
}

/// The policy of a text or a name (`@name`), from the cache of the worker.
#[inline]
fn rule(worker: &HttpWorker, text: &[u8]) -> Result<PolicyId, Problem> {
    let decider = &worker.context.decider;
    let prepare = |policy: &Policy| decider.prepare(policy);
    Ok(worker.policies.borrow_mut().find(PolicyText::Text(text), &decider.rules, prepare)?)
}

/// Decides now, if the store is local.
#[inline]
fn decide_local(
    worker: &HttpWorker,
    key: &[u8],
    known: PolicyId,
    operation: Operation,
    now: Timestamp,
) -> Option<Result<Answer, Problem>> {
    let decider = &worker.context.decider;
    if !decider.is_local() {
        return None;
    }
    let policies = worker.policies.borrow();
    let policy = policies.get(known);
    let answer = decider.decide(key, policy, operation, now).now()?;
    if answer.is_ok() && decider.queues.waiting() > 0 {
        decider.queues.asked(key, policy.policy(), operation);
    }
    Some(answer.map_err(Problem::from))
}
