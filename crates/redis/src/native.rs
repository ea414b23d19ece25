//! The commands of the module, used instead of scripts if a server has it: the same keys, bytes and replies,
//! several times faster.
//!
//! Each new connection checks for the module, and a server without it is checked again periodically. A server
//! that has unloaded it replies with an unknown command, and has changed nothing: the client repeats the command
//! as a script, and uses scripts from then on.

use redis::{Cmd, Value, aio::MultiplexedConnection};
use sluicegate_core::{Operation, OperationError, as_micros};

use crate::{
    reply::{ReplyKind, one_decision, parse_general},
    script::Plan,
};

/// Maximum wait in a command of the module, in microseconds; no debt is longer.
const MAX_SPAN: u64 = 1 << 50;

/// Whether the server has the module. A user without the permission to check most likely may not use it either.
pub(crate) async fn has_module(connection: &mut MultiplexedConnection) -> bool {
    connection.send_packed_command(&probe_command()).await.is_ok_and(|told| lists_command(&told))
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

/// The operation as a command of the module.
pub(crate) fn command(
    plan: &Plan,
    key: &[u8],
    operation: Operation,
) -> Result<Cmd, OperationError> {
    plan.policy.check_operation(operation)?;
    let (name, cost) = match operation {
        Operation::Take(cost) => ("SG.TAKE", cost),
        Operation::Peek(cost) => ("SG.PEEK", cost),
        Operation::Charge(cost) => ("SG.CHARGE", cost),
        Operation::Refund(cost) => ("SG.REFUND", cost),
        Operation::Reserve { cost, .. } => ("SG.RESERVE", cost),
        Operation::Reset => {
            let mut command = redis::cmd("SG.RESET");
            command.arg(key);
            return Ok(command);
        }
    };
    let mut command = redis::cmd(name);
    command.arg(key).arg(&plan.text);
    if cost != 1 {
        command.arg("COST").arg(cost);
    }
    if let Operation::Reserve { max_wait, .. } = operation {
        command.arg("MAXWAIT").arg(as_micros(max_wait).min(MAX_SPAN));
    }
    Ok(command)
}

/// Parses the reply of the module.
pub(crate) fn parse_reply(plan: &Plan, operation: Operation, reply: &Value) -> ReplyKind {
    match reply {
        // The integer says whether there was state.
        Value::Int(_) if operation == Operation::Reset => ReplyKind::Decided(plan.unused_decision),
        Value::ServerError(error) => {
            let is_unknown = error.details().is_some_and(|it| it.starts_with("unknown command"));
            match error.code() {
                // The user may be allowed to run scripts.
                "NOPERM" => ReplyKind::NoModule { at_all: true },
                "ERR" if is_unknown => ReplyKind::NoModule { at_all: true },
                // Another version, which does not know this policy.
                "SGPOLICY" => ReplyKind::NoModule { at_all: false },
                _ => parse_general(reply, one_decision),
            }
        }
        _ => parse_general(reply, one_decision),
    }
}
