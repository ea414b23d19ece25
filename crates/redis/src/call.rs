//! One question: the script of a policy run on one key, wherever that key is.

use redis::{Cmd, Pipeline, Value};
use sluicegate_core::{Decision, Operation, Timestamp};

use crate::{
    StoreError, native,
    net::{
        context::Context,
        keeper::{Missing, refuses_writes},
        link::{Deadline, Link},
        topology::Topology,
    },
    script::{Arguments, Calendar, Item, Plan, Reply, Script, StateFault},
    slot::slot,
};
use std::sync::Arc;

/// Nodes that one question may be sent on to, one after the other.
pub(crate) const REDIRECTS: usize = 5;

/// What a reply of the server asks for.
pub(crate) enum Heard<T = Decision> {
    Decided(T),
    /// Nothing was done: the script must first know more.
    Calendars {
        now: Timestamp,
        calendars: Vec<Calendar>,
    },
    /// Nothing was done: the server does not know the script.
    NoScript,
    /// Nothing was done: the server does not have the module, or (unless `at_all`) not for this policy.
    NoModule {
        at_all: bool,
    },
    /// Nothing was done: another node holds the slot, from now on or (`ASK`) for this question.
    Elsewhere {
        to: String,
        moved: bool,
    },
    Failed(StoreError),
}

/// A question, in the words that a server takes.
pub(crate) trait Ask {
    type Answer;

    /// How many times the script may ask for calendars.
    const CALENDARS: usize;

    /// The command for this server; with the `whole` text of a script that it does not know.
    fn command(&mut self, link: &Arc<Link>, whole: bool) -> Result<Cmd, StoreError>;

    fn hear(&mut self, reply: &Value) -> Heard<Self::Answer>;

    /// The script must know these calendars.
    fn tell(&mut self, now: Timestamp, calendars: Vec<Calendar>) -> Result<(), StoreError>;
}

/// Asks the server that holds `slot`. It is asked once: asked again is only what a server says that it
/// has not done.
pub(crate) async fn ask<A: Ask>(
    context: &Context,
    topology: &Topology,
    slot: u16,
    question: &mut A,
    deadline: Deadline,
) -> Result<A::Answer, StoreError> {
    let mut link = topology.link(slot, deadline).await?;
    let (mut whole, mut asking, mut told_calendars) = (false, false, 0);
    // Besides, a script may be unknown to each node, as may the module, and calendars must be told.
    for _ in 0..REDIRECTS * 3 + 1 + A::CALENDARS {
        let command = question.command(&link, whole)?;
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
        let heard = question.hear(&reply);
        follow(context, topology, &link, &heard, &reply);
        match heard {
            Heard::Decided(answer) => return Ok(answer),
            Heard::Failed(error) => return Err(error),
            Heard::NoModule { .. } => {}
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
                if told_calendars == A::CALENDARS {
                    return Err(StoreError::Unavailable(
                        "the script asks again for calendars that it has received".to_owned(),
                    ));
                }
                told_calendars += 1;
                question.tell(now, calendars)?;
            }
        }
    }
    Err(StoreError::Unavailable(format!("slot {slot} is sent from node to node")))
}

/// A question about one key: by the module where the server has it, else by script.
struct One<'a> {
    context: &'a Context,
    key: &'a [u8],
    plan: &'a Plan,
    operation: Operation,
    at: Option<Timestamp>,
    /// What a script is sent, once one is needed.
    arguments: Option<Arguments<'a>>,
    /// Whether it was the module that was asked.
    native: bool,
    /// The module goes by its own clock, and may not know the policy.
    by_script: bool,
}

/// Asks about one key.
pub(crate) async fn call(
    context: &Context,
    topology: &Topology,
    key: &[u8],
    plan: &Plan,
    (operation, at): (Operation, Option<Timestamp>),
    deadline: Deadline,
) -> Result<Decision, StoreError> {
    let (arguments, native, by_script) = (None, false, at.is_some());
    let mut one = One { context, key, plan, operation, at, arguments, native, by_script };
    ask(context, topology, slot(key), &mut one, deadline).await
}

impl Ask for One<'_> {
    type Answer = Decision;
    const CALENDARS: usize = 1;

    fn command(&mut self, link: &Arc<Link>, whole: bool) -> Result<Cmd, StoreError> {
        let &mut Self { context, key, plan, operation, at, .. } = self;
        self.native = !self.by_script && link.has_module();
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

    fn hear(&mut self, reply: &Value) -> Heard {
        if !self.native {
            return heard(self.plan, self.operation, reply);
        }
        let heard = native::hear(self.plan, self.operation, reply);
        match heard {
            Heard::Decided(_) => self.context.counts.module.one(),
            Heard::NoModule { at_all: false } => self.by_script = true,
            _ => {}
        }
        heard
    }

    fn tell(&mut self, now: Timestamp, calendars: Vec<Calendar>) -> Result<(), StoreError> {
        let again = self.plan.arguments_again(self.operation, self.at, now, &calendars)?;
        self.arguments = Some(again);
        Ok(())
    }
}

/// The call of the script about one key.
pub(crate) fn command(plan: &Plan, key: &[u8], arguments: &Arguments<'_>, whole: bool) -> Cmd {
    let mut command = begin(plan.script(), whole);
    command.arg(1).arg(key);
    for argument in arguments.iter() {
        command.arg(argument);
    }
    command
}

/// A call by the script's SHA-1, or with its `whole` text: then a server that does not know it need
/// not, however often its scripts are flushed.
pub(crate) fn begin(script: &Script, whole: bool) -> Cmd {
    let mut command = redis::cmd(if whole { "EVAL" } else { "EVALSHA" });
    command.arg(if whole { script.text() } else { script.sha1() });
    command
}

/// What follows from a reply for the connection.
pub(crate) fn follow<T>(
    context: &Context,
    topology: &Topology,
    link: &Arc<Link>,
    heard: &Heard<T>,
    reply: &Value,
) {
    match (heard, reply) {
        (Heard::Decided(_), _) => link.decided(),
        (Heard::NoModule { at_all: true }, _) => link.lost_module(),
        // Whatever follows on this connection may be answers to other questions.
        (Heard::Failed(error), Value::ServerError(refusal)) => {
            if let StoreError::Corrupt(..) = error {
                context.counts.corrupt.one();
            }
            let is_refused = refuses_writes(reply);
            if is_refused {
                link.refused();
            } else if Missing::of(reply).is_some() {
                link.forbidden();
            }
            if is_refused || refusal.code() == "CLUSTERDOWN" {
                topology.refresh();
            }
        }
        (Heard::Failed(error), _) => link.lost(None, &error.to_string()),
        _ => {}
    }
}

/// What a plan's script replies to `operation`.
pub(crate) fn heard(plan: &Plan, operation: Operation, reply: &Value) -> Heard {
    let Value::Int(debt) = reply else { return read(reply) };
    plan.told(operation, *debt).map_or_else(|error| Heard::Failed(nonsense(&error)), Heard::Decided)
}

/// What a reply says.
pub(crate) fn read(reply: &Value) -> Heard {
    let nonsense = |what: &dyn std::fmt::Display| Heard::Failed(nonsense(what));
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

pub(crate) fn nonsense(what: &dyn std::fmt::Display) -> StoreError {
    StoreError::Unavailable(format!("unexpected reply of a script: {what}"))
}

impl Heard {
    /// The same of another kind of answer.
    pub(crate) fn map<T>(self, map: impl FnOnce(Decision) -> Result<T, StoreError>) -> Heard<T> {
        match self {
            Self::Decided(decision) => map(decision).map_or_else(Heard::Failed, Heard::Decided),
            Self::Calendars { now, calendars } => Heard::Calendars { now, calendars },
            Self::NoScript => Heard::NoScript,
            Self::NoModule { at_all } => Heard::NoModule { at_all },
            Self::Elsewhere { to, moved } => Heard::Elsewhere { to, moved },
            Self::Failed(error) => Heard::Failed(error),
        }
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
