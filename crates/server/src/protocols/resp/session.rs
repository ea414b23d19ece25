//! What is known of the client on a connection, and which command it calls.

use std::sync::atomic::Ordering;

use sluicegate_commands::{Command, CommandError};
use sluicegate_core::{Decision, Source, Timestamp};
use sluicegate_resp::{Limits, Version, Writer};

use super::{
    batch::Gathered,
    client, command,
    connection::LIMITS,
    context::RespContext,
    greeting, info,
    job::Job,
    keys, limiter, list, settings,
    table::{self, Word},
    worker::RespWorker,
};
use crate::{
    budgets::turn::Turn,
    net::clients::Client,
    wait::{Failure, Waiting},
};

/// The clock is read after so much work, where a decision is 1: then it may be the turn of others.
pub(super) const WORK: u32 = 32;
/// So much work, which none adds up to, says that the turn is over.
const ENDED: u32 = u32::MAX;

/// A command that looks at more clients than this takes long.
const MANY_CLIENTS: usize = 200;

/// What is known of the client on a connection.
pub(super) struct Session<'a> {
    pub(super) shared: &'a RespContext,
    pub(super) worker: &'a RespWorker,
    pub(super) client: &'a Client,
    pub(super) version: Version,
    pub(super) authenticated: bool,
    /// The time of the batch.
    pub(super) now: Timestamp,
    pub(super) turn: Turn<'a>,
    /// Whether a password was wrong since the reply was last delayed for that.
    pub(super) login_failed: bool,
}

/// What is to happen after a command.
pub(super) enum Next {
    /// The next one.
    Go,
    /// This one again, in the lane: it takes long.
    Later,
    /// The next one, read within other limits.
    Limits(Limits),
    /// The reply is still to come.
    Wait(Box<Waiting>),
    /// The connection is over.
    Close,
}

impl<'a> Session<'a> {
    pub(super) fn new(worker: &'a RespWorker, client: &'a Client) -> Self {
        let shared = &*worker.shared;
        Self {
            shared,
            worker,
            client,
            version: Version::Resp2,
            authenticated: !shared.asks_for_password(),
            now: client.since,
            turn: Turn::new(worker.turns()),
            login_failed: false,
        }
    }

    pub(super) const fn shared(&self) -> &'a RespContext {
        self.shared
    }

    pub(super) const fn version(&self) -> Version {
        self.version
    }

    /// A new batch begins: what it asks is decided at this time.
    pub(super) fn tick(&mut self) {
        self.now = self.shared.decider.now();
        self.turn.begin(self.now);
    }

    /// Whether the connection has done enough work and taken so long that others are served first.
    #[inline]
    pub(super) fn is_over(&self) -> bool {
        if self.worker.work.get() < WORK {
            return false;
        }
        self.worker.work.replace(0) == ENDED || self.turn.is_over(self.shared.decider.now())
    }

    /// The batch is to end, since some of it was put off: whatever the clock says, nothing else goes before
    /// that.
    pub(super) fn end_turn(&self) {
        self.worker.work.set(ENDED);
    }

    /// Notes work that was done, where a decision is 1.
    #[inline]
    pub(super) fn add_work(&self, work: u32) {
        self.worker.work.set(self.worker.work.get().saturating_add(work));
    }

    /// Whether a password was wrong since the last call.
    pub(super) fn take_login_failed(&mut self) -> bool {
        std::mem::take(&mut self.login_failed)
    }

    /// Nothing that was looked up is held any more: all that was gathered is answered.
    #[inline]
    pub(super) fn settle(&self) {
        self.worker.rules.borrow_mut().settle();
    }

    /// What was looked up holds on for as long as this stays as it is.
    #[inline]
    pub(super) fn generation(&self) -> u64 {
        self.worker.rules.borrow().generation()
    }

    /// Within which limits the client may send.
    pub(super) const fn limits(&self) -> Limits {
        if self.authenticated { LIMITS } else { Limits::UNAUTHENTICATED }
    }

    /// Carries out one command, its name first: gathers what it asks, or appends the reply to `out`.
    #[inline]
    pub(super) fn execute<'b>(
        &mut self,
        arguments: &[&'b [u8]],
        gathered: &mut Gathered<'b>,
        out: &mut Vec<u8>,
    ) -> Next {
        let name = arguments.first().copied().unwrap_or_default();
        let Some((index, command, word)) = self.find(name) else {
            gathered.answer(self, out);
            return self.refuse(name, arguments, out);
        };
        if word == Word::Client && self.is_for_the_lane(arguments) {
            return Next::Later;
        }
        self.note_call(index);
        let done = if !command.takes(arguments.len()) {
            Err(CommandError::arity(command.name).to_string())
        } else if word == Word::Limiter {
            limiter::call(self, index, arguments, gathered, out).map_err(|error| error.to_string())
        } else {
            gathered.answer(self, out);
            self.call(word, command, arguments, out)
        };
        done.unwrap_or_else(|error| {
            gathered.answer(self, out);
            self.fail(error, out)
        })
    }

    /// Whether a `CLIENT` command looks at so many clients that it needs a turn in the lane.
    fn is_for_the_lane(&self, arguments: &[&[u8]]) -> bool {
        !self.turn.is_in_lane()
            && arguments.get(1).is_some_and(|word| {
                word.eq_ignore_ascii_case(b"LIST") || word.eq_ignore_ascii_case(b"KILL")
            })
            && self.shared.clients.len() > MANY_CLIENTS
    }

    /// The place in the table of the command that was executed last.
    pub(super) fn called(&self) -> usize {
        self.client.command.load(Ordering::Relaxed)
    }

    /// Counts a call of the command that stands at `index` of the table.
    #[inline]
    pub(super) fn note_call(&self, index: usize) {
        self.worker.stats().called(index);
        self.client.command.store(index, Ordering::Relaxed);
    }

    /// The command of that name, if the client may call it.
    #[inline]
    fn find(&self, name: &[u8]) -> Option<(usize, &'static Command, Word)> {
        table::find(name).filter(|(_, _, word)| self.authenticated || word.before_password())
    }

    /// The error for a command that is not there, or not for this client.
    fn refuse(&self, name: &[u8], arguments: &[&[u8]], out: &mut Vec<u8>) -> Next {
        if is_http(arguments) {
            let why = "HTTP request on the RESP port: a web page may have made a browser send it";
            self.shared.incidents.note(self.client, self.now, why);
            return Next::Close;
        }
        if !self.authenticated {
            return self.fail("NOAUTH Authentication required.", out);
        }
        let rest = arguments.get(1..).unwrap_or_default();
        self.fail(CommandError::unknown_command(name, rest).to_string(), out)
    }

    fn fail(&self, error: impl AsRef<[u8]>, out: &mut Vec<u8>) -> Next {
        self.worker.stats().errors.add();
        self.add_work(1);
        Writer::new(out, self.version).error(error);
        Next::Go
    }

    /// Calls `word` with enough arguments. The error is the whole error reply.
    fn call(
        &mut self,
        word: Word,
        command: &Command,
        arguments: &[&[u8]],
        out: &mut Vec<u8>,
    ) -> Result<Next, String> {
        let rest = &arguments[1..];
        if word == Word::Hello {
            return greeting::hello(self, rest, out);
        }
        // Those that make a long text take as long as many decisions.
        let long = matches!(
            word,
            Word::Client | Word::Command | Word::Config | Word::Info | Word::ListKeys
        );
        self.add_work(if long { WORK } else { 1 });
        let writer = &mut Writer::new(out, self.version);
        match word {
            Word::Limiter => {} // gathered
            Word::Hello => {}   // above: it answers in the protocol that it picks
            Word::Auth => return greeting::auth(self, rest, writer),
            Word::Reset => {
                greeting::reset(self);
                writer.simple("RESET");
                return Ok(Next::Limits(self.limits()));
            }
            Word::Quit => {
                writer.simple("OK");
                return Ok(Next::Close);
            }
            Word::Ping => match *rest {
                [] => writer.simple("PONG"),
                [message] => writer.bulk(message),
                _ => return Err(CommandError::arity(command.name).to_string()),
            },
            Word::Echo => writer.bulk(rest[0]),
            Word::Select => settings::select(rest[0], writer)?,
            Word::Client => client::call(self, rest, writer)?,
            Word::Command => command::call(rest, writer)?,
            Word::Config => settings::config(self.shared, rest, writer)?,
            Word::Cluster => return Err("ERR This instance has cluster support disabled".into()),
            Word::Role => settings::role(writer),
            Word::Time => settings::time(self.now, writer),
            Word::Latency => settings::latency(rest, writer)?,
            Word::SlowLog => settings::slow_log(rest, writer)?,
            Word::Info => info::call(self, rest, writer),
            Word::ListKeys => list::keys(self.shared, rest, writer)?,
            Word::DbSize => keys::count(self.shared, writer)?,
            Word::Exists => self.job(Job::Exists(keys::owned(rest)), out),
            Word::Del => self.job(Job::Delete(keys::owned(rest)), out),
            Word::Ttl => self.job(Job::TimeToLive(rest[0].into(), 1_000_000), out),
            Word::Pttl => self.job(Job::TimeToLive(rest[0].into(), 1_000), out),
        }
        Ok(Next::Go)
    }

    /// Answers a request that waited.
    pub(super) fn waited(&self, answer: Result<Decision, Failure>, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out, self.version);
        match answer {
            Ok(decision) => {
                self.worker.stats().decided(Source::Store, &decision);
                writer.integers(&decision.to_integers());
            }
            Err(failure) => {
                self.worker.stats().errors.add();
                writer.error(failure.to_string());
            }
        }
    }
}

/// Whether this is the first line, or a field, of a request of HTTP. A page in a browser can have one sent
/// to any port: its body must not be read as commands.
fn is_http(arguments: &[&[u8]]) -> bool {
    let name = arguments.first().copied().unwrap_or_default();
    let last = arguments.last().copied().unwrap_or_default();
    name.eq_ignore_ascii_case(b"POST")
        || name.eq_ignore_ascii_case(b"Host:")
        || last.len() >= 5 && last[..5].eq_ignore_ascii_case(b"HTTP/")
}
