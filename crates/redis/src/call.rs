//! One command to the node that has a key, with its redirects and retries.

use std::sync::Arc;

use redis::{Cmd, Pipeline, Value};
use sluicegate_core::{Decision, StoreError, Timestamp};

use crate::{
    PlannedOperation, native,
    net::{
        context::Context,
        node_connection::rejects_writes,
        node_connection::{Deadline, NodeConnection},
    },
    reply::{MissingPermission, ReplyKind, parse_script_reply, policy_error, too_many_redirects},
    script::Calendar,
    script_command::command,
    slot::slot,
    store::Inner,
};

/// Maximum number of redirects of one command.
pub(crate) const MAX_REDIRECTS: usize = 5;

/// A command to a node, and the meaning of its reply.
pub(crate) trait StoreCommand {
    type Answer;

    /// Maximum number of times that the script may request calendars.
    const CALENDARS: usize;

    /// The command for this node, with the `whole` text of a script that the node does not have, and with the
    /// calendars that the script has requested.
    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError>;

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind<Self::Answer>;
}

/// Calendars that a script needs beyond those of its policies.
#[derive(Default)]
pub(crate) struct RequestedCalendars {
    /// The time of the server, if a reply had it.
    pub(crate) now: Option<Timestamp>,
    pub(crate) calendars: Vec<Calendar>,
}

impl Inner {
    /// Sends a command to the node that holds `slot`. It is sent again only if a node replies that it has not applied
    /// it.
    pub(crate) async fn send<C: StoreCommand>(
        &self,
        slot: u16,
        mut command: C,
        deadline: Deadline,
    ) -> Result<C::Answer, StoreError> {
        let mut node = self.topology.node(slot, deadline).await?;
        let (mut whole, mut asking, mut requests) = (false, false, 0);
        let mut requested = RequestedCalendars::default();
        let mut tried_commands = false;
        // The commands of the node do not support a policy; scripts may.
        let mut rejected = None;
        // Each node may also lack the script and the module, and calendars may be requested.
        for _ in 0..MAX_REDIRECTS * 3 + 1 + C::CALENDARS {
            let built = command.command(&node, whole, &requested)?;
            let reply = if asking {
                let mut both = Pipeline::with_capacity(2);
                both.cmd("ASKING").add_command(built);
                let replies = node.commands(&both, deadline).await;
                replies.map(|mut replies| replies.pop().unwrap_or(Value::Nil))
            } else {
                node.command(&built, deadline).await
            };
            // Another node may hold the slot by now.
            let reply = reply.inspect_err(|_| self.topology.refresh())?;
            if native::is_without_scripts(&reply) {
                if let Some(error) = rejected {
                    return Err(error);
                }
                if node.without_scripts() && !tried_commands {
                    tried_commands = true;
                    continue;
                }
            }
            rejected = policy_error(&reply).or(rejected);
            let parsed = command.parse_reply(&reply);
            self.follow(&node, &parsed, &reply);
            match parsed {
                ReplyKind::Decided(answer) => return Ok(answer),
                ReplyKind::Failed(error) => return Err(error),
                ReplyKind::NoModule { .. } => {}
                ReplyKind::NoScript => {
                    self.context.counts.scripts_sent.one();
                    whole = true;
                }
                ReplyKind::Redirect { to, moved } => {
                    self.context.counts.redirects.one();
                    node = self.topology.redirected(slot, &to, &node, moved)?;
                    (asking, whole) = (!moved, false);
                }
                ReplyKind::Calendars { .. } if requests == C::CALENDARS => {
                    return Err(StoreError::Unavailable(
                        "the script requests calendars repeatedly".to_owned(),
                    ));
                }
                ReplyKind::Calendars { now, calendars } => {
                    requests += 1;
                    requested.now = Some(now);
                    requested.calendars.extend(calendars);
                }
            }
        }
        Err(too_many_redirects(slot))
    }

    /// Applies an operation to one key, at the time `at` if it is given: by the module if the node has it, else by script.
    pub(crate) async fn call(
        &self,
        planned: PlannedOperation<'_>,
        at: Option<Timestamp>,
        deadline: Deadline,
    ) -> Result<Decision, StoreError> {
        let (context, module) = (&*self.context, ModuleUse::new(at.is_some()));
        let command = SingleKeyCommand { context, planned, at, module };
        self.send(slot(planned.key), command, deadline).await
    }

    /// Updates the state of the connection after a reply.
    pub(crate) fn follow<T>(
        &self,
        node: &Arc<NodeConnection>,
        parsed: &ReplyKind<T>,
        reply: &Value,
    ) {
        match (parsed, reply) {
            (ReplyKind::Decided(_), _) => node.decided(),
            (ReplyKind::NoModule { at_all: true }, _) => node.lost_module(),
            (ReplyKind::Failed(error), Value::ServerError(error_reply)) => {
                if let StoreError::Corrupt(..) = error {
                    self.context.counts.corrupt.one();
                }
                let is_rejected = rejects_writes(reply);
                if is_rejected {
                    node.suspect();
                } else if MissingPermission::of(reply).is_some() {
                    node.forbidden();
                }
                if is_rejected || error_reply.code() == "CLUSTERDOWN" {
                    self.topology.refresh();
                }
            }
            // Later replies on this connection may be those to other commands.
            (ReplyKind::Failed(error), _) => node.lost(None, &error.to_string()),
            _ => {}
        }
    }
}

/// Whether an operation is sent as a command of the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModuleUse {
    /// Whether the last command was one of the module.
    is_native: bool,
    /// Set if no command has the operation, the user may not run it, or the module does not support a policy.
    by_script: bool,
}

impl ModuleUse {
    /// With `by_script`, it is always a script.
    pub(crate) const fn new(by_script: bool) -> Self {
        Self { is_native: false, by_script }
    }

    /// Whether the next command is one of the module, because `node` has it.
    pub(crate) fn choose(&mut self, node: &Arc<NodeConnection>) -> bool {
        self.is_native = !self.by_script && node.has_module();
        self.is_native
    }

    /// Whether the last command was one of the module.
    pub(crate) const fn is_native(self) -> bool {
        self.is_native
    }

    /// Counts a decision of the module, and notes that it does not support a policy.
    pub(crate) fn follow<T>(&mut self, parsed: ReplyKind<T>, context: &Context) -> ReplyKind<T> {
        match parsed {
            ReplyKind::Decided(_) => context.counts.module.one(),
            ReplyKind::NoModule { at_all: false } => self.by_script = true,
            _ => {}
        }
        parsed
    }
}

/// An operation on one key.
struct SingleKeyCommand<'a> {
    context: &'a Context,
    planned: PlannedOperation<'a>,
    at: Option<Timestamp>,
    module: ModuleUse,
}

impl StoreCommand for SingleKeyCommand<'_> {
    type Answer = Decision;
    // Those of the stored state; those of other policies, if other processes change it between two commands.
    const CALENDARS: usize = 4;

    fn command(
        &mut self,
        node: &Arc<NodeConnection>,
        whole: bool,
        requested: &RequestedCalendars,
    ) -> Result<Cmd, StoreError> {
        let &mut Self { context, planned: PlannedOperation { key, policy, operation }, at, .. } =
            self;
        if self.module.choose(node) {
            return Ok(native::command(&policy.plan, key, operation)?);
        }
        let around = requested.now.or(at).unwrap_or_else(|| context.now());
        let arguments = policy.plan.arguments(operation, around, at, &requested.calendars)?;
        Ok(command(&policy.plan, key, &arguments, whole))
    }

    fn parse_reply(&mut self, reply: &Value) -> ReplyKind {
        let PlannedOperation { policy, operation, .. } = self.planned;
        if !self.module.is_native() {
            return parse_script_reply(&policy.plan, operation, reply);
        }
        self.module.follow(native::parse_reply(&policy.plan, operation, reply), self.context)
    }
}
