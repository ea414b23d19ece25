//! One command to the node that has a key, with its redirects and retries.

use std::sync::Arc;

use redis::{Cmd, Pipeline, Value};
use sluicegate_core::{Decision, Operation, StoreError, Timestamp};

use crate::{
    native,
    net::{
        context::Context,
        keeper::{Missing, refuses_writes},
        node_connection::{Deadline, NodeConnection},
        topology::Topology,
    },
    reply::{ReplyKind, parse_script_reply},
    script::{Arguments, Calendar, Plan},
    script_command::command,
    slot::slot,
};

/// Maximum number of redirects of one command.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// A command to a node, and the meaning of its reply.
pub(crate) trait StoreCommand {
    type Answer;

    /// Maximum number of times that the script may request calendars.
    const CALENDARS: usize;

    /// The command for this node, with the `whole` text of a script that the node does not know.
    fn command(&mut self, node: &Arc<NodeConnection>, whole: bool) -> Result<Cmd, StoreError>;

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Self::Answer>;

    /// Adds the calendars that the script has requested.
    fn supply_calendars(
        &mut self,
        now: Timestamp,
        calendars: Vec<Calendar>,
    ) -> Result<(), StoreError>;
}

/// Sends a command to the node that holds `slot`. It is sent again only if a node replies that it has not applied
/// it.
pub(crate) async fn ask<A: StoreCommand>(
    context: &Context,
    topology: &Topology,
    slot: u16,
    question: &mut A,
    deadline: Deadline,
) -> Result<A::Answer, StoreError> {
    let mut node = topology.node(slot, deadline).await?;
    let (mut whole, mut asking, mut told_calendars) = (false, false, 0);
    // Each node may also lack the script and the module, and calendars may be requested.
    for _ in 0..MAX_REDIRECTS * 3 + 1 + A::CALENDARS {
        let command = question.command(&node, whole)?;
        let reply = if asking {
            let mut both = Pipeline::with_capacity(2);
            both.cmd("ASKING").add_command(command);
            let replies = node.commands(&both, deadline).await;
            replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
        } else {
            node.command(&command, deadline).await
        };
        // Another node may hold the slot by now.
        let reply = reply.inspect_err(|_| topology.refresh())?;
        let heard = question.parse_reply(&reply);
        follow(context, topology, &node, &heard, &reply);
        match heard {
            ReplyKind::Decided(answer) => return Ok(answer),
            ReplyKind::Failed(error) => return Err(error),
            ReplyKind::NoModule { .. } => {}
            ReplyKind::NoScript => {
                context.counts.scripts_sent.one();
                whole = true;
            }
            ReplyKind::Redirect { to, moved } => {
                context.counts.redirects.one();
                let next = topology.redirected(slot, &to, &node, moved);
                node = next.ok_or_else(|| {
                    StoreError::Unavailable(format!(
                        "slot {slot} is at `{to}`, which is no address"
                    ))
                })?;
                (asking, whole) = (!moved, false);
            }
            ReplyKind::Calendars { now, calendars } => {
                if told_calendars == A::CALENDARS {
                    return Err(StoreError::Unavailable(
                        "the script asks again for calendars that it has received".to_owned(),
                    ));
                }
                told_calendars += 1;
                question.supply_calendars(now, calendars)?;
            }
        }
    }
    Err(StoreError::Unavailable(format!("slot {slot} is sent from node to node")))
}

/// An operation on one key: by the module if the node has it, otherwise by script.
struct SingleKeyCommand<'a> {
    context: &'a Context,
    key: &'a [u8],
    plan: &'a Plan,
    operation: Operation,
    at: Option<Timestamp>,
    /// The arguments of the script, once it is needed.
    arguments: Option<Arguments<'a>>,
    /// Whether the last command was one of the module.
    native: bool,
    /// Set for a given time, and for a policy that the module does not know.
    by_script: bool,
}

/// Applies an operation to one key.
pub(crate) async fn call(
    context: &Context,
    topology: &Topology,
    key: &[u8],
    plan: &Plan,
    (operation, at): (Operation, Option<Timestamp>),
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let (arguments, native, by_script) = (None, false, at.is_some());
    let mut one =
        SingleKeyCommand { context, key, plan, operation, at, arguments, native, by_script };
    ask(context, topology, slot(key), &mut one, deadline).await
}

impl StoreCommand for SingleKeyCommand<'_> {
    type Answer = Decision;
    const CALENDARS: usize = 1;

    fn command(&mut self, node: &Arc<NodeConnection>, whole: bool) -> Result<Cmd, StoreError> {
        let &mut Self { context, key, plan, operation, at, .. } = self;
        self.native = !self.by_script && node.has_module();
        if self.native {
            return Ok(native::command(plan, key, operation)?);
        }
        let arguments = match self.arguments.take() {
            Some(arguments) => arguments,
            None => match at {
                Some(at) => plan.arguments_at(operation, at)?,
                None => plan.arguments(operation, context.now())?,
            },
        };
        let command = command(plan, key, &arguments, whole);
        self.arguments = Some(arguments);
        Ok(command)
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind {
        if !self.native {
            return parse_script_reply(self.plan, self.operation, reply);
        }
        let heard = native::parse_reply(self.plan, self.operation, reply);
        match heard {
            ReplyKind::Decided(_) => self.context.counts.module.one(),
            ReplyKind::NoModule { at_all: false } => self.by_script = true,
            _ => {}
        }
        heard
    }

    fn supply_calendars(
        &mut self,
        now: Timestamp,
        calendars: Vec<Calendar>,
    ) -> Result<(), StoreError> {
        let again = self.plan.arguments_again(self.operation, self.at, now, &calendars)?;
        self.arguments = Some(again);
        Ok(())
    }
}

/// Updates the state of the connection after a reply.
pub(crate) fn follow<T>(
    context: &Context,
    topology: &Topology,
    node: &Arc<NodeConnection>,
    heard: &ReplyKind<T>,
    reply: &Value,
) {
    match (heard, reply) {
        (ReplyKind::Decided(_), _) => node.decided(),
        (ReplyKind::NoModule { at_all: true }, _) => node.lost_module(),
        // Whatever follows on this connection may be answers to other questions.
        (ReplyKind::Failed(error), Value::ServerError(refusal)) => {
            if let StoreError::Corrupt(..) = error {
                context.counts.corrupt.one();
            }
            let is_refused = refuses_writes(reply);
            if is_refused {
                node.refused();
            } else if Missing::of(reply).is_some() {
                node.forbidden();
            }
            if is_refused || refusal.code() == "CLUSTERDOWN" {
                topology.refresh();
            }
        }
        (ReplyKind::Failed(error), _) => node.lost(None, &error.to_string()),
        _ => {}
    }
}
