//! From what is asked to what is answered.

use sluicegate_commands::PolicyText;
use sluicegate_core::{Decision, Operation, Timestamp};
use sluicegate_memory::Request;

use super::{
    Reply,
    ask::{Ask, AskMany},
    problem::Problem,
    reply::{self, Told},
    route::Verb,
};
use crate::{
    HttpHeaders,
    face::Face,
    rules::Known,
    wait::{self, Waiting},
    worker::Worker,
};

/// One decision.
pub(super) async fn one(worker: &Worker, verb: Verb, body: &[u8]) -> Result<Reply, Problem> {
    let ask = Ask::read(body)?;
    let key = ask.key()?;
    let operation = ask.operation(verb)?;
    let at = ask.at(worker.shared.config.test_clock)?;
    let now = at.unwrap_or_else(|| worker.shared.now());
    let style = ask.headers().unwrap_or(worker.shared.config.http_headers);
    let known = rule(worker, ask.policy()?, now)?;
    let Some(timeout) = ask.wait()? else {
        let decision = decide(worker, &key, known, operation, now)?;
        return Ok(tell(worker, &decision, known, style));
    };
    let rule_held = worker.rules.borrow().get(known).clone();
    let waiting = Waiting { key: (*key).into(), rule: rule_held, cost: ask.cost(), timeout };
    let answer = wait::wait(&worker.shared, waiting, worker.stop.subscribe()).await;
    let decision = answer.map_err(|refusal| Problem::unavailable(refusal.to_string()))?;
    // Others were looked up while it waited.
    let known = rule(worker, ask.policy()?, now)?;
    Ok(tell(worker, &decision, known, style))
}

/// The reply to a request that was decided. Nothing that was looked up is held any more.
#[inline]
fn tell(worker: &Worker, decision: &Decision, known: Known, style: HttpHeaders) -> Reply {
    worker.stats().decided(Face::Http, decision);
    let mut rules = worker.rules.borrow_mut();
    let reply = reply::decision(&Told { decision, fields: rules.fields(known), style });
    rules.settle();
    reply
}

/// Several takes, each for itself.
pub(super) async fn many(worker: &Worker, body: &[u8]) -> Result<Reply, Problem> {
    let many = AskMany::read(body)?;
    let at = many.at(worker.shared.config.test_clock)?;
    let now = at.unwrap_or_else(|| worker.shared.now());
    // All are looked at before any is decided: what is wrong in one stops all.
    let mut takes = Vec::with_capacity(many.requests.len());
    for (index, ask) in many.requests.iter().enumerate() {
        let take = || {
            ask.one_of_many()?;
            Ok((ask.key()?, rule(worker, ask.policy()?, now)?, ask.operation(Verb::Take)?))
        };
        takes.push(take().map_err(|problem: Problem| problem.at(index))?);
    }
    let mut decisions = Vec::with_capacity(takes.len());
    for (key, known, operation) in &takes {
        let decision = decide(worker, key, *known, *operation, now)?;
        worker.stats().decided(Face::Http, &decision);
        decisions.push(decision);
    }
    worker.rules.borrow_mut().settle();
    Ok(reply::decisions(&decisions))
}

/// Makes a key as if never used.
pub(super) async fn reset(worker: &Worker, body: &[u8]) -> Result<Reply, Problem> {
    let ask = Ask::read(body)?;
    ask.only_key()?;
    let key = ask.key()?;
    let shared = &worker.shared;
    let now = ask.at(shared.config.test_clock)?.unwrap_or_else(|| shared.now());
    let existed = shared.store.reset(&key, now);
    shared.lines.changed(&key);
    Ok(reply::reset(existed))
}

/// The rule that a text says, by the worker's table.
#[inline]
fn rule(worker: &Worker, text: &[u8], now: Timestamp) -> Result<Known, Problem> {
    let make = |text: PolicyText<'_>| Ok(worker.shared.store.rule(&text.parse()?, now));
    Ok(worker.rules.borrow_mut().find(PolicyText::Text(text), make)?)
}

/// Decides.
#[inline]
fn decide(
    worker: &Worker,
    key: &[u8],
    known: Known,
    operation: Operation,
    now: Timestamp,
) -> Result<Decision, Problem> {
    let shared = &worker.shared;
    let rules = worker.rules.borrow();
    let rule = rules.get(known);
    let decision = shared.store.ask(Request { key, rule, operation }, now);
    let decision = decision.map_err(|error| Problem::unprocessable(error.to_string()))?;
    if shared.lines.waiting() > 0 {
        shared.lines.asked(key, rule.policy(), operation);
    }
    Ok(decision)
}
