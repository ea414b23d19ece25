//! The commands that decide: from a request to its reply.

use sluicegate_commands::{CommandError, Options, PolicyText, Request, Take, parse_at};
use sluicegate_core::Operation;

use super::{
    batch::{Gather, Gathered, Reply},
    job::Job,
    session::{Next, Session},
};
use crate::{budgets::turn::Turn, policies::policy_cache::Known, wait::Waiting};

/// Carries out the command that stands at `index` of the commands of `sluicegate_commands`: a
/// decision at the time of the batch is gathered; before anything else, what was gathered is
/// answered.
#[inline]
pub(super) fn call<'a>(
    session: &Session<'_>,
    index: usize,
    arguments: &[&'a [u8]],
    gathered: &mut Gathered<'a>,
    out: &mut Vec<u8>,
) -> Result<Next, CommandError> {
    let options = Options { test_clock: session.shared.test_clock };
    let request = parse_at(index, arguments, options, |text| rule(session, text))?;
    match request {
        Request::Throttle { key, policy: rule, operation } => {
            gathered.push(Gather { key, rule, operation, reply: Reply::Throttle });
        }
        Request::Decide { key, policy: rule, operation, at: None } => {
            gathered.push(Gather { key, rule, operation, reply: Reply::Decision });
        }
        Request::TakeMany { takes, at: None } => gather_all(&takes, gathered),
        request => {
            gathered.answer(session, out);
            return alone(session, request, arguments, out);
        }
    }
    Ok(Next::Go)
}

/// The rule that a text says, by the worker's table.
#[inline]
fn rule(session: &Session<'_>, text: PolicyText<'_>) -> Result<Known, CommandError> {
    session
        .worker
        .rules
        .borrow_mut()
        .known(text, &session.shared.decider.rules, |policy| session.shared.decider.prepare(policy))
}

fn gather_all<'a>(takes: &[Take<'a, Known>], gathered: &mut Gathered<'a>) {
    let mut reply = Reply::First(takes.len());
    for take in takes {
        let operation = Operation::Take(take.cost);
        gathered.push(Gather { key: take.key, rule: take.policy, operation, reply });
        reply = Reply::Decision;
    }
}

/// Carries out a request by itself.
fn alone(
    session: &Session<'_>,
    request: Request<'_, Known>,
    arguments: &[&[u8]],
    out: &mut Vec<u8>,
) -> Result<Next, CommandError> {
    // One that is decided at another time than that of the batch is a batch of its own.
    let turns = session.worker.turns();
    let at_its_time = |at| Session { now: at, turn: Turn::new(turns), ..*session };
    match request {
        Request::Decide { key, policy: rule, operation, at } => {
            let session = at_its_time(at.unwrap_or(session.now));
            let mut gathered = Gathered::new();
            gathered.push(Gather { key, rule, operation, reply: Reply::Decision });
            gathered.answer(&session, out);
        }
        Request::TakeMany { takes, at } => {
            let session = at_its_time(at.unwrap_or(session.now));
            let mut gathered = Gathered::new();
            gather_all(&takes, &mut gathered);
            gathered.answer(&session, out);
        }
        Request::Wait { key, policy, cost, timeout } => {
            let rule = session.worker.rules.borrow().get(policy).clone();
            return Ok(Next::Wait(Box::new(Waiting { key: key.into(), rule, cost, timeout })));
        }
        Request::Reset { key, at } => {
            at_its_time(at.unwrap_or(session.now)).job(Job::Reset(key.into()), out);
        }
        Request::Info { key, at } => {
            at_its_time(at.unwrap_or(session.now)).job(Job::Info(key.into()), out);
        }
        // The enum may grow; a request that this face does not know is a command it does not have.
        _ => return Err(CommandError::unknown_command(arguments[0], &arguments[1..])),
    }
    Ok(Next::Go)
}
