//! The commands of the module, used instead of scripts if a server has it: the same keys, bytes and replies,
//! several times faster.
//!
//! Each new connection checks for the module, and a server without it is checked again periodically. A server
//! that has unloaded it replies with an unknown command, and has changed nothing: the client repeats the command
//! as a script, and uses scripts from then on.

use std::time::Duration;

use redis::{Cmd, Value, aio::MultiplexedConnection};
use sluicegate_commands::MAX_SPAN;
use sluicegate_core::{Decision, Operation, OperationError, as_micros};

use crate::{
    planned_policy::PlannedKey,
    reply::{MissingPermission, ReplyKind, one_decision, parse_general},
    script::Plan,
};

/// Whether the server has the module. A user without the permission to check most likely may not use it either.
pub(crate) async fn has_module(connection: &mut MultiplexedConnection) -> bool {
    connection
        .send_packed_command(&probe_command())
        .await
        .is_ok_and(|actual| lists_command(&actual))
}

/// The command that checks for the module.
pub(crate) fn probe_command() -> Cmd {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("SG.TAKE");
    command
}

/// Whether the reply to [`probe_command`] lists the command.
pub(crate) fn lists_command(answer: &Value) -> bool {
    matches!(answer, Value::Array(found) if matches!(&found[..], [Value::Array(_)]))
}

/// Whether the reply to a script is that of a server without scripts, such as one of Sluicegate.
pub(crate) fn is_without_scripts(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    error.code() == "ERR"
        && error.details().is_some_and(|it| it.starts_with("unknown command 'EVAL"))
}

/// Takes or holds of several keys as a command.
pub(crate) fn command_for_all(operations: &[PlannedKey<'_>]) -> Cmd {
    let mut command = redis::cmd("SG.TAKEALL");
    command.arg(operations.len());
    for PlannedKey { key, policy, operation } in operations {
        command.arg(&**key).arg(&policy.plan.text).arg(operation.cost());
    }
    if let Some(PlannedKey { operation: Operation::Hold { id, ttl, .. }, .. }) = operations.first()
    {
        let (id, ttl) = (*id, *ttl);
        command.arg("ID").arg(id);
        add_ttl(&mut command, ttl);
    }
    command
}

/// The decision on each key, in the reply to [`command_for_all`].
pub(crate) fn decisions(elements: &[Value]) -> Option<Vec<Decision>> {
    let one = |element: &Value| match element {
        Value::Array(integers) => one_decision(integers),
        _ => None,
    };
    let (_together, each) = elements.split_first()?;
    each.iter().map(one).collect()
}

fn add_ttl(command: &mut Cmd, ttl: Option<Duration>) {
    if let Some(ttl) = ttl {
        command.arg("TTL").arg(as_micros(ttl));
    }
}

/// The operation as a command of the module.
pub(crate) fn command(
    plan: &Plan,
    key: &[u8],
    operation: Operation,
) -> Result<Cmd, OperationError> {
    plan.policy.check_operation(operation)?;
    let name = match operation {
        Operation::Take(_) => "SG.TAKE",
        Operation::Peek(_) => "SG.PEEK",
        Operation::Charge(_) => "SG.CHARGE",
        Operation::Refund(_) => "SG.REFUND",
        Operation::Reserve { .. } => "SG.RESERVE",
        Operation::Hold { .. } => "SG.HOLD",
        Operation::Settle { .. } => "SG.SETTLE",
        Operation::Renew { .. } => "SG.RENEW",
        Operation::Reset => {
            let mut command = redis::cmd("SG.RESET");
            command.arg(key);
            return Ok(command);
        }
    };
    let mut command = redis::cmd(name);
    command.arg(key).arg(&plan.text);
    if let Some(id) = operation.id() {
        command.arg(id);
    }
    match operation {
        Operation::Settle { used: Some(used), .. } => _ = command.arg("USED").arg(used),
        Operation::Settle { .. } | Operation::Renew { .. } => {}
        _ if operation.cost() == 1 => {}
        _ => _ = command.arg("COST").arg(operation.cost()),
    }
    match operation {
        Operation::Reserve { max_wait, .. } => {
            command.arg("MAXWAIT").arg(as_micros(max_wait).min(MAX_SPAN));
        }
        Operation::Hold { ttl, .. } | Operation::Renew { ttl, .. } => add_ttl(&mut command, ttl),
        _ => {}
    }
    Ok(command)
}

/// Parses the reply of the module to an operation on one key.
pub(crate) fn parse_reply(plan: &Plan, operation: Operation, reply: &Value) -> ReplyKind {
    match reply {
        // The integer is 1 if there was state.
        Value::Int(_) if operation == Operation::Reset => ReplyKind::Decided(plan.unused_decision),
        // The user may be allowed to run scripts. A key that he may not use says nothing about others, and a command for
        // holds nothing about those for units.
        _ if operation.id().is_none()
            && MissingPermission::of(reply) == Some(MissingPermission::Command) =>
        {
            ReplyKind::NoModule { at_all: true }
        }
        _ => parse_decided(reply, one_decision),
    }
}

/// Parses a reply of the module. `decided` parses the elements of an answer. A command that the user may not run says
/// nothing about those for one key.
pub(crate) fn parse_decided<T>(
    reply: &Value,
    decided: impl FnOnce(&[Value]) -> Option<T>,
) -> ReplyKind<T> {
    if let Value::ServerError(error) = reply {
        let is_unknown = error.details().is_some_and(|it| it.starts_with("unknown command"));
        match error.code() {
            "ERR" if is_unknown => return ReplyKind::NoModule { at_all: true },
            // Another version, which does not support this policy.
            "SGPOLICY" => return ReplyKind::NoModule { at_all: false },
            _ => {}
        }
        if MissingPermission::of(reply) == Some(MissingPermission::Command) {
            return ReplyKind::NoModule { at_all: false };
        }
    }
    parse_general(reply, decided)
}
