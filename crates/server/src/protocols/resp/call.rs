//! One call of a command: from its name to its reply.
//!
//! The [`CommandTable`] has the commands of `sluicegate_commands`, for which a [`CommandCall`] is the host, and those that
//! only the server has ([`ServerCommand`]).

use sluicegate_commands::{
    Action, Argument, Command, CommandError, CommandSpec, DecisionFormat, FromCommand, Host,
    HostOptions, KeyOperation, Keys, PolicyText, RepeatedKeys, quote, unknown_command,
};
use sluicegate_core::{KeyedOperation, Timestamp};
use sluicegate_resp::{Limits, Writer};

use super::{
    batch::Batch,
    batch_entry::{BatchEntry, PendingDecision},
    deferred_replies::{PendingAll, PendingCount, StoreOperation},
    session::{Session, WORK},
};
use crate::{
    net::incidents::Incident, policies::policy_cache::PolicyId, stats::MAX_COMMANDS,
    wait::WaitingRequest,
};

/// All commands, each once. The position of a command is also that of its counter.
pub(super) struct CommandTable(Vec<TableEntry>);

/// A command in the table.
struct TableEntry {
    spec: &'static CommandSpec,
    run: Run,
}

enum Run {
    Shared(for<'c, 's, 'a> fn(&mut CommandCall<'c, 's, 'a>) -> CallResult),
    Server(&'static ServerCommand),
}

/// A command that only the server has.
pub(super) struct ServerCommand {
    spec: CommandSpec,
    work: u32,
    needs_lane: fn(&CommandCall<'_, '_, '_>) -> bool,
    run: fn(&mut CommandCall<'_, '_, '_>) -> CallResult,
}

/// The next step of the connection, or an error, whose text is the whole error reply.
pub(super) type CallResult = Result<Next, String>;

/// One call of a command, and the parts of the session that it may use.
pub(super) struct CommandCall<'c, 's, 'a> {
    pub(super) session: &'c mut Session<'s>,
    pub(super) table: &'static CommandTable,
    /// Decisions that come before this call.
    pub(super) batch: &'c mut Batch<'a>,
    /// Replies, up to those of `batch`.
    pub(super) out: &'c mut Vec<u8>,
    /// The name of the command, and its arguments.
    pub(super) arguments: &'c [&'a [u8]],
}

/// A call that waits.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) request: WaitingRequest,
    /// The keys that are given more than once, if the reply has all decisions.
    pub(super) repeated: Option<RepeatedKeys>,
}

/// The step of the connection after a command.
pub(super) enum Next {
    /// Runs the next command.
    Go,
    /// Runs this command again in the lane, because it takes long.
    Later,
    /// Reads the next command within other limits.
    Limits(Limits),
    /// Waits for the reply.
    Wait(Box<WaitingCall>),
    /// Closes.
    Close,
}

impl CommandTable {
    /// The shared commands, and those of the server alone.
    pub(super) fn new(of_server: impl IntoIterator<Item = &'static ServerCommand>) -> Self {
        let mut entries: Vec<TableEntry> = sluicegate_commands::table();
        entries.push(sluicegate_commands::increx());
        let of_server = of_server.into_iter();
        entries.extend(of_server.map(|it| TableEntry { spec: &it.spec, run: Run::Server(it) }));
        assert!(entries.len() <= MAX_COMMANDS, "each command has a counter");
        Self(entries)
    }

    /// The position of the command with this name, in any case.
    #[inline]
    fn position(&self, name: &[u8]) -> Option<usize> {
        self.0.iter().position(|entry| name.eq_ignore_ascii_case(entry.spec.name.as_bytes()))
    }

    /// The command with this name, in any case.
    pub(super) fn find(&self, name: &[u8]) -> Option<&'static CommandSpec> {
        self.position(name).map(|index| self.0[index].spec)
    }

    /// All commands, by position.
    pub(super) fn specs(&self) -> impl ExactSizeIterator<Item = &'static CommandSpec> {
        self.0.iter().map(|entry| entry.spec)
    }
}

impl FromCommand for TableEntry {
    fn from_command<C: Command>() -> Self {
        let run = Run::Shared(|call| match C::parse(call, call.arguments) {
            Ok(action) => Ok(call.act(action)),
            Err(error) => Err(error.to_string()),
        });
        Self { spec: C::SPEC, run }
    }
}

impl TableEntry {
    /// Whether clients may call the command before they give the password.
    #[inline]
    fn needs_no_password(&self) -> bool {
        self.spec.flags.contains(&"no_auth")
    }
}

/// A command on connections. A call is as much work as a decision.
pub(super) const fn command(
    name: &'static str,
    arity: i64,
    flags: &'static [&'static str],
    arguments: &'static [Argument],
    summary: &'static str,
    run: fn(&mut CommandCall<'_, '_, '_>) -> CallResult,
) -> ServerCommand {
    let (keys, group) = (Keys::None, "connection");
    let spec = CommandSpec { name, arity, flags, keys, summary, group, arguments };
    ServerCommand { spec, work: 1, needs_lane: |_| false, run }
}

impl ServerCommand {
    /// The same as a command on the server.
    pub(super) const fn of_server(mut self) -> Self {
        self.spec.group = "server";
        self
    }

    /// The same as a command on keys.
    pub(super) const fn on_keys(mut self, keys: Keys) -> Self {
        (self.spec.keys, self.spec.group) = (keys, "generic");
        self
    }

    /// The same with this work, where a decision is 1: a long reply takes as long as many decisions.
    pub(super) const fn with_work(mut self, work: u32) -> Self {
        self.work = work;
        self
    }

    /// The same, but a call for which `needs_lane` is true waits for the lane.
    pub(super) const fn in_lane_if(
        mut self,
        needs_lane: fn(&CommandCall<'_, '_, '_>) -> bool,
    ) -> Self {
        self.needs_lane = needs_lane;
        self
    }
}

impl<'c, 's, 'a> CommandCall<'c, 's, 'a> {
    /// Runs the command that the first argument names: adds to the batch, or appends the reply to `out`.
    #[inline]
    pub(super) fn run(&mut self) -> Next {
        let name = self.arguments.first().copied().unwrap_or_default();
        let result = match self.table.position(name).map(|index| (index, &self.table.0[index])) {
            Some((index, entry)) if self.session.authenticated || entry.needs_no_password() => {
                self.run_entry(index, entry)
            }
            _ => self.reject(name),
        };
        result.unwrap_or_else(|error| self.fail(&error))
    }

    #[inline]
    fn run_entry(&mut self, index: usize, entry: &'static TableEntry) -> CallResult {
        match &entry.run {
            Run::Shared(run) => {
                self.session.count_call(index);
                run(self)
            }
            Run::Server(command) => {
                if !self.session.turn.is_in_lane() && (command.needs_lane)(self) {
                    return Ok(Next::Later);
                }
                // `GET` is also a method of HTTP.
                if command.spec.name == "GET" && is_http(self.arguments) {
                    return self.reject(b"GET");
                }
                self.session.count_call(index);
                if !command.spec.takes(self.arguments.len()) {
                    return Err(self.arity_error());
                }
                self.batch.decide(self.session, self.out);
                self.session.add_work(command.work);
                (command.run)(self)
            }
        }
    }

    /// The error for a command that does not exist, or that this client may not call.
    #[cold]
    fn reject(&mut self, name: &[u8]) -> CallResult {
        if is_http(self.arguments) {
            self.batch.decide(self.session, self.out);
            let session = &self.session;
            session.shared.incidents.note(session.client, session.now, Incident::HttpRequest);
            return Ok(Next::Close);
        }
        if !self.session.authenticated {
            return Err("NOAUTH Authentication required.".to_owned());
        }
        let rest = self.arguments.get(1..).unwrap_or_default();
        Err(unknown_command(name, rest).to_string())
    }

    #[cold]
    fn fail(&mut self, error: &str) -> Next {
        self.batch.decide(self.session, self.out);
        self.session.worker.stats().errors.add();
        self.session.add_work(1);
        self.writer().error(error);
        Next::Go
    }

    /// Writes the reply.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        Writer::new(self.out, self.session.version)
    }

    /// The arguments after the name.
    pub(super) fn arguments_after_name(&self) -> &'c [&'a [u8]] {
        self.arguments.get(1..).unwrap_or_default()
    }

    /// The error for a wrong number of arguments.
    pub(super) fn arity_error(&self) -> String {
        let name = self.arguments.first().copied().unwrap_or_default();
        match self.table.find(name) {
            Some(spec) => CommandError::Arity(spec).to_string(),
            None => "ERR wrong number of arguments".to_owned(),
        }
    }

    /// Carries out an action of a shared command: adds decisions at the time of the batch to the batch.
    #[inline]
    fn act(&mut self, action: Action<'a, PolicyId>) -> Next {
        match action {
            Action::Apply { key, policy, operation, at: None, format }
                if operation.id().is_none() =>
            {
                let key = key.bytes;
                self.batch.push(BatchEntry { key, policy, operation, format, begins_array: 0 });
                Next::Go
            }
            Action::ApplyMany { operations, at: None } => {
                self.batch.push_array(&operations);
                Next::Go
            }
            action => {
                self.batch.decide(self.session, self.out);
                self.act_alone(action)
            }
        }
    }

    /// Carries out an action after the batch, at its own time.
    fn act_alone(&mut self, action: Action<'a, PolicyId>) -> Next {
        let session = |at: Option<Timestamp>| self.session.at(at.unwrap_or(self.session.now));
        match action {
            Action::Apply { key, policy, operation, at, format } => {
                if operation.id().is_some() {
                    // It reads all holds of its key.
                    self.session.add_work(WORK / 4);
                }
                let key = key.bytes;
                let mut batch = Batch::new();
                batch.push(BatchEntry { key, policy, operation, format, begins_array: 0 });
                batch.decide(&session(at), self.out);
            }
            Action::ApplyMany { operations, at } => {
                let mut batch = Batch::new();
                batch.push_array(&operations);
                batch.decide(&session(at), self.out);
            }
            Action::ApplyAll { operations, repeated, at } => {
                let policies = self.session.worker.policies.borrow();
                let pending = operations.iter().map(|&KeyOperation { key, policy, operation }| {
                    let (key, format) = (key.bytes, DecisionFormat::Sluicegate);
                    let entry = BatchEntry { key, policy, operation, format, begins_array: 0 };
                    PendingDecision::new(&entry, &policies)
                });
                let operations = pending.collect();
                drop(policies);
                let pending = PendingAll { operations, repeated };
                session(at).apply(StoreOperation::All(pending), self.out);
            }
            Action::Wait { operations, repeated, timeout } => {
                let policies = self.session.worker.policies.borrow();
                let keyed = operations.iter().map(|it| KeyedOperation {
                    key: it.key.bytes,
                    policy: policies.get(it.policy),
                    operation: it.operation,
                });
                let keyed: Vec<_> = keyed.collect();
                let request = match (&repeated, &keyed[..]) {
                    (None, &[one]) => WaitingRequest::one(one, timeout),
                    (_, all) => WaitingRequest::all(all, timeout),
                };
                return Next::Wait(Box::new(WaitingCall { request, repeated }));
            }
            Action::Reset { key, at } => {
                session(at)
                    .apply(StoreOperation::Count(PendingCount::new(&[key.bytes], true)), self.out);
            }
            Action::Read { key, at, reply } => {
                // A description reads each event of a log.
                self.session.add_work(WORK);
                session(at).apply(StoreOperation::Read(key.bytes.into(), reply), self.out);
            }
        }
        Next::Go
    }
}

impl<'a> Host<'a> for CommandCall<'_, '_, 'a> {
    type Policy = PolicyId;

    #[inline]
    fn options(&self) -> HostOptions {
        HostOptions { test_clock: self.session.shared.test_clock }
    }

    #[inline]
    fn policy(&mut self, text: PolicyText<'a>) -> Result<PolicyId, CommandError> {
        let session = &self.session;
        let decider = &session.shared.decider;
        let mut policies = session.worker.policies.borrow_mut();
        policies.find(text, &decider.rules, |policy, lease| decider.prepare(policy, lease))
    }
}

/// The error for a subcommand that `command` does not have.
pub(super) fn unknown_subcommand(word: &[u8], command: &str, expected: &str) -> String {
    format!("ERR unknown subcommand '{}' of {command}: expected {expected}", quote(word))
}

/// Whether this is the first line of an HTTP request, or one of its headers. A web page can make a browser send
/// one to any port: its body must not be read as commands.
fn is_http(arguments: &[&[u8]]) -> bool {
    let name = arguments.first().copied().unwrap_or_default();
    let last = arguments.last().copied().unwrap_or_default();
    name.eq_ignore_ascii_case(b"POST")
        || name.eq_ignore_ascii_case(b"Host:")
        || last.len() >= 5 && last[..5].eq_ignore_ascii_case(b"HTTP/")
}
