//! The commands of the module, which stand in for scripts where a server has it: the same keys, bytes
//! and answers, several times faster.
//!
//! Each connection asks once whether its server has it, and a server without is asked again now and
//! then. A server that has lost it says that it does not know the command, and so has done nothing: it
//! is asked by script within the same question, and from then on.

use redis::{Cmd, Value, aio::MultiplexedConnection};
use sluicegate_core::{Operation, ReserveError};

use crate::{
    reply::{ReplyKind, parse_general},
    script::Plan,
};

/// The longest wait that the module's commands can say, in microseconds; no debt is longer.
const MAX_SPAN: u128 = 1 << 50;

/// Whether the server has the module. Who may not ask may not use it either, most likely.
pub(crate) async fn has_module(connection: &mut MultiplexedConnection) -> bool {
    connection.send_packed_command(&probe_command()).await.is_ok_and(|told| lists_command(&told))
}

/// Asks whether it has it.
pub(crate) fn probe_command() -> Cmd {
    let mut command = redis::cmd("COMMAND");
    command.arg("INFO").arg("SG.TAKE");
    command
}

/// Whether the answer says so.
pub(crate) fn lists_command(answer: &Value) -> bool {
    matches!(answer, Value::Array(found) if matches!(&found[..], [Value::Array(_)]))
}

/// The question, for the module.
pub(crate) fn command(plan: &Plan, key: &[u8], operation: Operation) -> Result<Cmd, ReserveError> {
    plan.check_operation(operation)?;
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
    command.arg(key).arg(plan.policy_text());
    if cost != 1 {
        command.arg("COST").arg(cost);
    }
    if let Operation::Reserve { max_wait, .. } = operation {
        let micros = u64::try_from(max_wait.as_micros().min(MAX_SPAN)).unwrap_or(u64::MAX);
        command.arg("MAXWAIT").arg(micros);
    }
    Ok(command)
}

/// What its reply says.
pub(crate) fn parse_reply(plan: &Plan, operation: Operation, reply: &Value) -> ReplyKind {
    match reply {
        // It tells whether there was something.
        Value::Int(_) if operation == Operation::Reset => {
            ReplyKind::Decided(plan.unused_decision())
        }
        Value::ServerError(error) => {
            let gone = error.code() == "ERR"
                && error.details().is_some_and(|it| it.starts_with("unknown command"));
            match error.code() {
                // It may be allowed to run scripts.
                "NOPERM" => ReplyKind::NoModule { at_all: true },
                _ if gone => ReplyKind::NoModule { at_all: true },
                // Another version, that does not know this policy.
                "SGPOLICY" => ReplyKind::NoModule { at_all: false },
                _ => parse_general(reply),
            }
        }
        _ => parse_general(reply),
    }
}
