//! One call of a command: from its name to its reply.
//!
//! The [`CommandTable`] has the commands of `sluicegate_commands`, for which a [`Call`] is the host, and those that
//! only the server has ([`ServerCommand`]).

use std::time::Duration;

use sluicegate_commands::{
    Command, CommandError, CommandSpec, DecisionFormat, EntryReply, FromCommand, Host, KeyArgument,
    Options, PolicyText, TakeRequest, quote, unknown_command,
};
use sluicegate_core::{Operation, Timestamp};
use sluicegate_resp::{Limits, Writer};

use super::{
    batch::{Batch, BatchEntry},
    session::{Session, WORK},
    store_operation::StoreOperation,
};
use crate::{rules::Known, stats::MAX_COMMANDS, wait::Waiting};

/// All commands, each once. The position of a command is also that of its counter.
pub(super) struct CommandTable(Vec<TableEntry>);

/// A command in the table.
pub(super) struct TableEntry {
    pub(super) spec: &'static CommandSpec,
    run: Run,
}

/// Runs a command, which is at this position of the table. The error is the whole error reply.
type Run = for<'c, 's, 'a> fn(&mut Call<'c, 's, 'a>, usize) -> Result<Next, String>;

/// A command of the server alone.
pub(super) trait ServerCommand {
    const SPEC: &'static CommandSpec;
    /// Work of a call. A long reply takes as long as many decisions.
    const WORK: u32 = 1;

    /// Whether this call takes so long that it must wait for the lane.
    fn needs_lane(_call: &Call<'_, '_, '_>) -> bool {
        false
    }

    /// Runs the command. All commands before it are answered.
    ///
    /// # Errors
    /// The text is the whole error reply.
    fn run(call: &mut Call<'_, '_, '_>) -> Result<Next, String>;
}

/// One call of a command, and what it may use.
pub(super) struct Call<'c, 's, 'a> {
    pub(super) session: &'c mut Session<'s>,
    pub(super) table: &'c CommandTable,
    /// Decisions that come before this call.
    pub(super) batch: &'c mut Batch<'a>,
    /// Replies, up to those of `batch`.
    pub(super) out: &'c mut Vec<u8>,
    /// The name of the command, and its arguments.
    pub(super) arguments: &'c [&'a [u8]],
}

/// What the connection does after a command.
pub(super) enum Next {
    /// Runs the next command.
    Go,
    /// Runs this command again in the lane, because it takes long.
    Later,
    /// Reads the next command within other limits.
    Limits(Limits),
    /// Waits for the reply.
    Wait(Box<Waiting>),
    /// Closes.
    Close,
}

impl CommandTable {
    /// The shared commands, and those of the server alone.
    pub(super) fn new(of_server: impl IntoIterator<Item = TableEntry>) -> Self {
        let mut entries: Vec<TableEntry> = sluicegate_commands::table();
        entries.extend(of_server);
        assert!(entries.len() <= MAX_COMMANDS, "each command has a counter");
        Self(entries)
    }

    /// The position of the command with this name, in any case.
    #[inline]
    pub(super) fn position(&self, name: &[u8]) -> Option<usize> {
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

impl TableEntry {
    /// The entry of a command of the server.
    pub(super) fn new<C: ServerCommand>() -> Self {
        Self { spec: C::SPEC, run: run_server_command::<C> }
    }

    /// Whether clients may call the command before they give the password.
    #[inline]
    fn needs_no_password(&self) -> bool {
        self.spec.flags.contains(&"no_auth")
    }
}

impl FromCommand for TableEntry {
    fn from_command<C: Command>() -> Self {
        Self { spec: C::SPEC, run: run_shared_command::<C> }
    }
}

fn run_shared_command<C: Command>(
    call: &mut Call<'_, '_, '_>,
    index: usize,
) -> Result<Next, String> {
    call.session.count_call(index);
    let arguments = call.arguments;
    C::run(call, arguments).map_err(|error| error.to_string())
}

fn run_server_command<C: ServerCommand>(
    call: &mut Call<'_, '_, '_>,
    index: usize,
) -> Result<Next, String> {
    if C::needs_lane(call) && !call.session.turn.is_in_lane() {
        return Ok(Next::Later);
    }
    call.session.count_call(index);
    if !C::SPEC.takes(call.arguments.len()) {
        return Err(call.arity_error(C::SPEC));
    }
    call.batch.decide(call.session, call.out);
    call.session.add_work(C::WORK);
    C::run(call)
}

impl<'c, 's, 'a> Call<'c, 's, 'a> {
    /// Runs the command that the first argument names: adds to the batch, or appends the reply to `out`.
    #[inline]
    pub(super) fn run(&mut self) -> Next {
        let name = self.arguments.first().copied().unwrap_or_default();
        let result = match self.table.position(name) {
            Some(index)
                if self.session.authenticated || self.table.0[index].needs_no_password() =>
            {
                (self.table.0[index].run)(self, index)
            }
            _ => self.reject(name),
        };
        result.unwrap_or_else(|error| self.fail(&error))
    }

    /// The error for a command that does not exist, or that this client may not call.
    #[cold]
    fn reject(&mut self, name: &[u8]) -> Result<Next, String> {
        if is_http(self.arguments) {
            self.batch.decide(self.session, self.out);
            let why = "HTTP request on the RESP port: a web page may have made a browser send it";
            let session = &self.session;
            session.shared.incidents.note(session.client, session.now, why);
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
    pub(super) fn rest(&self) -> &'c [&'a [u8]] {
        self.arguments.get(1..).unwrap_or_default()
    }

    /// The error for a wrong number of arguments.
    pub(super) fn arity_error(&self, spec: &CommandSpec) -> String {
        format!("ERR wrong number of arguments for '{}' command", spec.name.to_ascii_lowercase())
    }

    /// Adds takes to the batch, whose reply is one array.
    fn push_takes(batch: &mut Batch<'a>, takes: &[TakeRequest<'a, Known>]) {
        let mut begins_array = takes.len();
        for take in takes {
            batch.push(BatchEntry {
                key: take.key.bytes,
                policy: take.policy,
                operation: Operation::Take(take.cost),
                format: DecisionFormat::Sluicegate,
                begins_array,
            });
            begins_array = 0;
        }
    }

    /// Applies an operation to the store, now or after the batch.
    fn apply_to_store(&mut self, operation: StoreOperation, at: Option<Timestamp>) {
        self.batch.decide(self.session, self.out);
        self.session.at(at.unwrap_or(self.session.now)).apply(operation, self.out);
    }
}

impl<'a> Host<'a> for Call<'_, '_, 'a> {
    type Policy = Known;
    type Outcome = Next;

    #[inline]
    fn options(&self) -> Options {
        Options { test_clock: self.session.shared.config.test_clock }
    }

    #[inline]
    fn policy(&mut self, text: PolicyText<'a>) -> Result<Known, CommandError> {
        let session = &self.session;
        session.worker.rules.borrow_mut().known(text, session.shared, session.now)
    }

    #[inline]
    fn apply(
        &mut self,
        key: KeyArgument<'a>,
        policy: Known,
        operation: Operation,
        at: Option<Timestamp>,
        format: DecisionFormat,
    ) -> Result<Next, CommandError> {
        let entry = BatchEntry { key: key.bytes, policy, operation, format, begins_array: 0 };
        match at {
            None => self.batch.push(entry),
            // A batch has one time.
            Some(at) => {
                self.batch.decide(self.session, self.out);
                let mut batch = Batch::new();
                batch.push(entry);
                batch.decide(&self.session.at(at), self.out);
            }
        }
        Ok(Next::Go)
    }

    fn take_batch(
        &mut self,
        takes: Vec<TakeRequest<'a, Known>>,
        at: Option<Timestamp>,
    ) -> Result<Next, CommandError> {
        match at {
            None => Self::push_takes(self.batch, &takes),
            Some(at) => {
                self.batch.decide(self.session, self.out);
                let mut batch = Batch::new();
                Self::push_takes(&mut batch, &takes);
                batch.decide(&self.session.at(at), self.out);
            }
        }
        Ok(Next::Go)
    }

    fn wait(
        &mut self,
        take: TakeRequest<'a, Known>,
        timeout: Duration,
    ) -> Result<Next, CommandError> {
        self.batch.decide(self.session, self.out);
        let TakeRequest { key, policy, cost } = take;
        let rule = self.session.worker.rules.borrow().get(policy).clone();
        Ok(Next::Wait(Box::new(Waiting { key: key.bytes.into(), rule, cost, timeout })))
    }

    fn reset(&mut self, key: KeyArgument<'a>, at: Option<Timestamp>) -> Result<Next, CommandError> {
        self.apply_to_store(StoreOperation::Reset(vec![key.bytes.into()]), at);
        Ok(Next::Go)
    }

    fn read(
        &mut self,
        key: KeyArgument<'a>,
        at: Option<Timestamp>,
        reply: EntryReply,
    ) -> Result<Next, CommandError> {
        // A description reads each event of a log.
        self.session.add_work(WORK);
        self.apply_to_store(StoreOperation::Read(key.bytes.into(), reply), at);
        Ok(Next::Go)
    }
}

/// The error for a subcommand that `command` does not have.
pub(super) fn unknown_subcommand(word: &[u8], command: &str) -> String {
    format!("ERR unknown subcommand '{}'. Try {command} HELP.", quote(word))
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
