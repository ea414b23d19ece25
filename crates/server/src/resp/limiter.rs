//! The commands that decide: from a request to its reply.

use sluicegate_commands::{CommandError, Description, Options, Request, parse, throttle_integers};
use sluicegate_core::{Decision, Operation, Policy, ReserveError, Timestamp};
use sluicegate_resp::Writer;

use super::session::{Next, Session};
use crate::{shared::Shared, wait::Waiting};

/// Carries out one of the commands of `sluicegate_commands`.
pub(super) fn call(
    session: &Session<'_>,
    arguments: &[&[u8]],
    writer: &mut Writer<'_>,
) -> Result<Next, CommandError> {
    let shared = session.shared;
    let options = Options { test_clock: shared.config.test_clock };
    match parse(arguments, options)? {
        Request::Throttle { key, policy, operation } => {
            let decision = decide(shared, key, &policy, session.now, operation)?;
            writer.integers(&throttle_integers(&decision));
        }
        Request::Decide { key, policy, operation, at } => {
            let now = at.unwrap_or(session.now);
            let decision = decide(shared, key, &policy, now, operation)?;
            writer.integers(&decision.to_integers());
        }
        Request::TakeMany { takes, at } => {
            let now = at.unwrap_or(session.now);
            writer.array(takes.len());
            for take in takes {
                let operation = Operation::Take(take.cost);
                let decision = decide(shared, take.key, &take.policy, now, operation)?;
                writer.integers(&decision.to_integers());
            }
        }
        Request::Wait { key, policy, cost, timeout } => {
            let key = key.into();
            return Ok(Next::Wait(Waiting { key, policy, cost, timeout }));
        }
        Request::Reset { key, at } => {
            let there = shared.store.reset(key, at.unwrap_or(session.now));
            shared.lines.changed(key);
            writer.integer(there.into());
        }
        Request::Info { key, at } => {
            let now = at.unwrap_or(session.now);
            let told = shared.store.with_entry(key, |entry| Description::of(entry, now));
            match told.flatten() {
                Some(description) => describe(&description, writer),
                None => writer.null(),
            }
        }
        // The enum may grow; a request that this face does not know is a command it does not have.
        _ => return Err(CommandError::unknown_command(arguments[0], &arguments[1..])),
    }
    Ok(Next::Go)
}

/// Decides, counts, and wakes who may have become able to pass.
fn decide(
    shared: &Shared,
    key: &[u8],
    policy: &Policy,
    now: Timestamp,
    operation: Operation,
) -> Result<Decision, ReserveError> {
    let decision = shared.store.apply(key, policy, now, operation)?;
    shared.stats.decided(&decision);
    match operation {
        Operation::Charge(_) | Operation::Refund(_) | Operation::Reset => shared.lines.changed(key),
        Operation::Take(_) | Operation::Reserve { .. } => shared.lines.taken(key, policy),
        Operation::Peek(_) => {}
    }
    Ok(decision)
}

fn describe(description: &Description, writer: &mut Writer<'_>) {
    writer.map(5);
    writer.bulk("policy");
    writer.bulk(&description.policy);
    writer.bulk("reset_after_us");
    writer.integer(description.reset_after_us);
    writer.bulk("lifetime_us");
    writer.integer(description.lifetime_us);
    writer.bulk("bytes");
    writer.integer(description.bytes);
    writer.bulk("limits");
    writer.array(description.limits.len());
    for limit in &description.limits {
        writer.map(5);
        writer.bulk("limit");
        writer.bulk(&limit.limit);
        for (name, value) in [
            ("capacity", limit.capacity),
            ("used", limit.used),
            ("remaining", limit.remaining),
            ("reset_after_us", limit.reset_after_us),
        ] {
            writer.bulk(name);
            writer.integer(value);
        }
    }
}
