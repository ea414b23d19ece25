//! One question: the script of a policy run on one key, wherever that key is.

use redis::{Cmd, Pipeline, Value};
use sluicegate_core::{Decision, Operation, Timestamp};

use crate::{
    StoreError,
    net::{
        context::Context,
        link::{Deadline, Link},
        topology::Topology,
    },
    script::{Arguments, Calendar, Item, Plan, Reply, StateFault},
    slot::slot,
};
use std::sync::Arc;

/// Nodes that one question may be sent on to, one after the other.
pub(crate) const REDIRECTS: usize = 5;

/// What a reply of the server asks for.
pub(crate) enum Heard {
    Decided(Decision),
    /// Nothing was done: the script must first know more.
    Calendars {
        now: Timestamp,
        calendars: Vec<Calendar>,
    },
    /// Nothing was done: the server does not know the script.
    NoScript,
    /// Nothing was done: another node holds the slot, from now on or (`ASK`) for this question.
    Elsewhere {
        to: String,
        moved: bool,
    },
    Failed(StoreError),
}

/// Runs the script of `plan` on `key`. It is run once: asked again is only what the server says that it
/// has not done.
pub(crate) async fn call(
    context: &Context,
    topology: &Topology,
    key: &[u8],
    plan: &Plan,
    (operation, at): (Operation, Option<Timestamp>),
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let mut arguments = match at {
        Some(at) => plan.arguments_at(operation, at)?,
        None => plan.arguments(operation, context.now())?,
    };
    let slot = slot(key);
    let mut link = topology.link(slot, deadline).await?;
    let (mut whole, mut asking, mut told_calendars) = (false, false, false);
    // Besides, a script may be unknown to each node, and the calendars must be told once.
    for _ in 0..REDIRECTS * 2 + 2 {
        let command = command(plan, key, &arguments, whole);
        let reply = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command);
            let replies = link.commands(&both, deadline).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            link.command(&command, deadline).await
        };
        // Another node may hold the slot by now.
        let reply = reply.inspect_err(|_| topology.refresh())?;
        match hear(context, topology, &link, &reply) {
            Heard::Decided(decision) => return Ok(decision),
            Heard::Failed(error) => return Err(error),
            Heard::NoScript => {
                context.counts.scripts_sent.one();
                whole = true;
            }
            Heard::Elsewhere { to, moved } => {
                context.counts.redirects.one();
                let next = topology.redirected(slot, &to, &link, moved);
                link = next.ok_or_else(|| {
                    StoreError::Unavailable(format!(
                        "slot {slot} is at `{to}`, which is no address"
                    ))
                })?;
                (asking, whole) = (!moved, false);
            }
            Heard::Calendars { now, calendars } => {
                if told_calendars {
                    return Err(StoreError::Unavailable(
                        "the script asks for calendars that it was told".to_owned(),
                    ));
                }
                told_calendars = true;
                arguments = plan.arguments_again(operation, at, now, &calendars)?;
            }
        }
    }
    Err(StoreError::Unavailable(format!("slot {slot} is sent from node to node")))
}

/// The call, by the script's SHA-1, or with its `whole` text: then a server that does not know it need
/// not, however often its scripts are flushed.
pub(crate) fn command(plan: &Plan, key: &[u8], arguments: &Arguments<'_>, whole: bool) -> Cmd {
    let script = plan.script();
    let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { script.text() } else { script.sha1() }).arg(1).arg(key);
    for argument in arguments.iter() {
        command.arg(argument);
    }
    command
}

/// What a reply says, and what follows from it for the connection.
pub(crate) fn hear(
    context: &Context,
    topology: &Topology,
    link: &Arc<Link>,
    reply: &Value,
) -> Heard {
    let heard = read(reply);
    match (&heard, reply) {
        // Whatever follows on this connection may be answers to other questions.
        (Heard::Failed(error), Value::ServerError(_)) => {
            if let StoreError::Corrupt(..) = error {
                context.counts.corrupt.one();
            }
            if demoted(reply) {
                link.lost(None, &error.to_string());
                topology.refresh();
            }
        }
        (Heard::Failed(error), _) => link.lost(None, &error.to_string()),
        _ => {}
    }
    heard
}

/// Whether the server is not the one to ask any more.
fn demoted(reply: &Value) -> bool {
    let Value::ServerError(error) = reply else { return false };
    // In a script, the server's own error may be behind other words.
    matches!(error.code(), "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "UNBLOCKED")
        || error.details().is_some_and(|it| it.starts_with("READONLY"))
}

fn read(reply: &Value) -> Heard {
    let nonsense = |what: &dyn std::fmt::Display| {
        Heard::Failed(StoreError::Unavailable(format!("no script of ours answers so: {what}")))
    };
    match reply {
        Value::Array(elements) => {
            let mut items = smallvec::SmallVec::<[Item<'_>; 8]>::new();
            for element in elements {
                items.push(match element {
                    Value::Int(integer) => Item::Integer(*integer),
                    Value::BulkString(bytes) => Item::Bytes(bytes),
                    _ => return nonsense(&format_args!("{reply:?}")),
                });
            }
            match Reply::read(&items) {
                Ok(Reply::Decision(decision)) => Heard::Decided(decision),
                Ok(Reply::Calendars { now, calendars }) => Heard::Calendars { now, calendars },
                Err(error) => nonsense(&error),
            }
        }
        Value::ServerError(error) => {
            let (code, details) = (error.code(), error.details().unwrap_or_default());
            if code == "NOSCRIPT" {
                return Heard::NoScript;
            }
            if let Some((to, moved)) = elsewhere(reply) {
                return Heard::Elsewhere { to, moved };
            }
            let text = format!("{code} {details}");
            Heard::Failed(match StateFault::of(&text) {
                Some(fault) => StoreError::Corrupt(fault, text),
                None => StoreError::Unavailable(text),
            })
        }
        other => nonsense(&format_args!("{other:?}")),
    }
}

/// Which other node holds the slot, and whether it does from now on (`MOVED`) or for this question
/// (`ASK`).
pub(crate) fn elsewhere(reply: &Value) -> Option<(String, bool)> {
    let Value::ServerError(error) = reply else { return None };
    let moved = match error.code() {
        "MOVED" => true,
        "ASK" => false,
        _ => return None,
    };
    let to = error.details().unwrap_or_default().split(' ').next_back().unwrap_or_default();
    Some((to.to_owned(), moved))
}
