//! The connection to one server: established when it is needed, replaced when it breaks.
//!
//! A command is sent once. If the connection breaks, the server may have applied it, therefore it is not sent
//! again. A closed connection is noticed immediately and replaced in the background, so that no command fails
//! because an idle connection broke.
//!
//! `keeper` probes the server, and opens and closes its circuit breaker; `flow` bounds the commands in flight to a
//! server that stops replying.

use std::{
    future::Future,
    iter,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use sluicegate_core::{StoreError, Timestamp, as_micros};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, timeout, timeout_at},
};

use super::{
    breaker::Breaker,
    context::{Context, Endpoint},
    flow::Flow,
    permission::Permission,
    report::OutageLog,
    round_trip,
    url::Address,
};
use crate::native;

/// Maximum time of a probe; afterwards its connection is closed.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest time until a deadline: a clock cannot add every [`Duration`].
const MAX_SPAN: Duration = Duration::from_hours(366 * 24);

/// When a reply is due, and the time that the command had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    span: Duration,
}

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span.min(MAX_SPAN), span }
    }

    pub(crate) fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// The result of `future`, if it is in time.
    pub(crate) async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout_at(self.at, future).await.map_err(|_| StoreError::Timeout(self.span))
    }
}

/// The connection to one server.
pub(crate) struct NodeConnection {
    pub(crate) endpoint: Endpoint,
    pub(super) context: Arc<Context>,
    pub(super) state: watch::Sender<State>,
    pub(crate) breaker: Breaker,
    /// Why the breaker was opened last.
    pub(super) why: Mutex<String>,
    /// Outages in the log; `None` to log nothing.
    pub(super) report: Option<Mutex<OutageLog>>,
    /// Whether a keeper task runs.
    pub(super) is_kept: AtomicBool,
    /// Wakes the keeper.
    pub(super) wake: Arc<Notify>,
    /// Whether a reply came since the keeper checked.
    pub(super) has_answered: AtomicBool,
    /// Whether a command got no reply, or one that says that the server accepts no writes.
    pub(super) is_suspect: AtomicBool,
    /// Missing permissions of the user.
    pub(super) permission: Permission,
    /// Number of connection attempts.
    pub(super) made: AtomicU64,
    /// Failed attempts since the last connection.
    pub(super) missed: AtomicU32,
    /// Whether the server has the module.
    pub(super) module: AtomicBool,
    /// Whether it has the commands of the module, and no scripts: a Sluicegate server.
    has_no_scripts: AtomicBool,
    /// When to check for the module again, in microseconds.
    module_probe_at: AtomicU64,
}

pub(super) enum State {
    /// No connection, and no attempt before this time.
    Down {
        why: String,
        until: Timestamp,
    },
    Connecting,
    Up(OpenConnection),
}

/// A connection.
#[derive(Clone)]
pub(super) struct OpenConnection {
    pub(super) connection: MultiplexedConnection,
    pub(super) number: u64,
    /// The address of the server.
    pub(super) address: Arc<Address>,
    pub(super) flow: Arc<Flow>,
    pub(super) since: Timestamp,
    pub(super) has_module: bool,
}

impl NodeConnection {
    /// A connection that is established later. One for a single command does not log its outages.
    pub(super) fn new(endpoint: Endpoint, context: &Arc<Context>, logs: bool) -> Arc<Self> {
        let down = State::Down { why: String::new(), until: Timestamp::EPOCH };
        Arc::new(Self {
            endpoint,
            state: watch::channel(down).0,
            breaker: Breaker::new(context.options.breaker_failures),
            permission: Permission::new(context.options.breaker_failures),
            context: Arc::clone(context),
            why: Mutex::default(),
            report: logs.then(|| Mutex::new(OutageLog::new())),
            is_kept: AtomicBool::new(false),
            wake: Arc::default(),
            has_answered: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
            made: AtomicU64::new(0),
            missed: AtomicU32::new(0),
            module: AtomicBool::new(false),
            has_no_scripts: AtomicBool::new(false),
            module_probe_at: AtomicU64::new(0),
        })
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    /// The address of the server, if there is a connection.
    pub(super) fn address(&self) -> Option<Arc<Address>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Arc::clone(&up.address)),
            _ => None,
        }
    }

    /// Why no decision of the server can be had now, as far as is known.
    pub(crate) fn why_unavailable(&self) -> Option<String> {
        let is_barred = || self.permission.is_barred_at(self.context.now());
        (self.breaker.is_open() || is_barred()).then(|| self.why.lock().clone())
    }

    /// Whether the server has the module, as far as is known. If not, checks again periodically.
    pub(crate) fn has_module(self: &Arc<Self>) -> bool {
        if self.module.load(Ordering::Relaxed) {
            return true;
        }
        if let Some(every) = self.context.options.look_for_module {
            let (now, at) = (self.context.now(), self.module_probe_at.load(Ordering::Relaxed));
            let next = (now + every).as_micros();
            // A new connection checks itself, therefore this is only due later.
            let due = at != 0 && now.as_micros() >= at;
            let relaxed = Ordering::Relaxed;
            if due && self.module_probe_at.compare_exchange(at, next, relaxed, relaxed).is_ok() {
                self.context.spawn(Arc::clone(self).probe_module());
            }
        }
        false
    }

    /// Whether the server has the commands of the module, and no scripts.
    pub(crate) fn has_commands_alone(&self) -> bool {
        self.has_no_scripts.load(Ordering::Relaxed) && self.module.load(Ordering::Relaxed)
    }

    /// Records that the server has no scripts. Whether it has the commands of the module.
    pub(crate) fn without_scripts(&self) -> bool {
        self.has_no_scripts.store(true, Ordering::Relaxed);
        self.has_commands_alone()
    }

    /// Records that the server does not have the module any more.
    pub(crate) fn lost_module(&self) {
        if self.module.swap(false, Ordering::Relaxed) {
            tracing::info!(server = %self.endpoint, "the module was unloaded: using scripts");
        }
        self.schedule_module_probe();
    }

    pub(super) fn schedule_module_probe(&self) {
        let every = self.context.options.look_for_module.unwrap_or_default();
        self.module_probe_at.store((self.context.now() + every).as_micros(), Ordering::Relaxed);
    }

    /// Checks whether the server has the module by now.
    async fn probe_module(self: Arc<Self>) {
        let Some(Ok(OpenConnection { mut connection, .. })) = self.up() else { return };
        let there = timeout(PROBE_TIMEOUT, native::has_module(&mut connection)).await;
        if there == Ok(true) && !self.module.swap(true, Ordering::Relaxed) {
            tracing::info!(server = %self.endpoint, "using the module");
        }
    }

    /// The reply to one command; errors of the server are values too.
    pub(crate) async fn command(
        self: &Arc<Self>,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let run = |mut connection: MultiplexedConnection| async move {
            connection.send_packed_command(command).await
        };
        let span = round_trip::span(&self.endpoint, iter::once(command));
        round_trip::record(span, self.exchange(1, deadline, run)).await
    }

    /// The reply to each of several commands, which are sent as one pipeline.
    pub(crate) async fn commands(
        self: &Arc<Self>,
        commands: &Pipeline,
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        let run = |mut connection: MultiplexedConnection| async move {
            connection.send_packed_commands(commands, 0, commands.len()).await
        };
        let span = round_trip::span(&self.endpoint, commands.cmd_iter());
        round_trip::record(span, self.exchange(commands.len(), deadline, run)).await
    }

    async fn exchange<T, F>(
        self: &Arc<Self>,
        commands: usize,
        deadline: Deadline,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        if self.breaker.is_open() {
            return Err(StoreError::Unavailable(self.why.lock().clone()));
        }
        let up = self.connection(deadline).await?;
        let mut now = self.context.now();
        while up.flow.is_stalled(now) {
            let moves = up.flow.moves();
            // A reply may have come before `moves` could notice it.
            if !up.flow.is_stalled(now) {
                break;
            }
            if up.flow.pings(now) {
                self.context.spawn(Arc::clone(self).ping(up.clone()));
            }
            if let Err(late) = deadline.within(moves).await {
                self.failed(&late);
                return Err(late);
            }
            now = self.context.now();
        }
        let sent = up.flow.send(commands, now);
        match deadline.within(run(up.connection)).await {
            Ok(Ok(answer)) => {
                let end = self.context.now();
                up.flow.answered(sent, end);
                self.context.round_trips.record(as_micros(end.since(now)));
                self.breaker.succeeded();
                if !self.has_answered.load(Ordering::Relaxed) {
                    self.has_answered.store(true, Ordering::Relaxed);
                }
                Ok(answer)
            }
            Ok(Err(error)) => {
                let why = format!("{}: {error}", self.endpoint);
                self.lost(Some(up.number), &why);
                let error = StoreError::Unavailable(why);
                self.failed(&error);
                Err(error)
            }
            Err(late) => {
                self.failed(&late);
                Err(late)
            }
        }
    }

    /// Sends a `PING` on a stalled connection, to see when replies come again.
    async fn ping(self: Arc<Self>, OpenConnection { mut connection, flow, .. }: OpenConnection) {
        let sent = flow.send(1, self.context.now());
        let ping = redis::cmd("PING");
        if let Ok(Ok(_)) = timeout(PROBE_TIMEOUT, connection.send_packed_command(&ping)).await {
            flow.answered(sent, self.context.now());
        }
    }

    /// The connection, which is established if there is none.
    pub(super) async fn connection(
        self: &Arc<Self>,
        deadline: Deadline,
    ) -> Result<OpenConnection, StoreError> {
        if let Some(up) = self.up() {
            return up;
        }
        self.connect();
        let mut watcher = self.state.subscribe();
        let settled = watcher.wait_for(|state| !matches!(state, State::Connecting));
        if let Err(late) = deadline.within(settled).await {
            self.failed(&late);
            return Err(late);
        }
        self.up().unwrap_or_else(|| {
            Err(StoreError::Unavailable(format!("{}: no connection yet", self.endpoint)))
        })
    }

    /// The connection if there is one, or the error while no attempt is due.
    fn up(&self) -> Option<Result<OpenConnection, StoreError>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Ok(up.clone())),
            State::Down { why, until } if self.context.now() < *until => {
                Some(Err(StoreError::Unavailable(why.clone())))
            }
            _ => None,
        }
    }

    /// The user lacks the permission for a command: `keeper` checks whether that holds for all commands.
    pub(crate) fn forbidden(&self) {
        self.permission.record_rejection(self.context.now());
        // `keeper` probes often enough already.
        if self.permission.is_in_doubt() && !self.permission.is_barred() {
            self.suspect();
        }
    }

    /// A command was applied.
    pub(crate) fn decided(&self) {
        if self.permission.has_rejections() {
            self.permission.answered();
            self.unbarred();
        }
    }

    /// A command got no reply.
    fn failed(&self, error: &StoreError) {
        if self.breaker.failed() {
            match error {
                StoreError::Unavailable(why) => self.opened(why),
                _ => self.opened(&format!("{}: {error}", self.endpoint)),
            }
        } else {
            self.suspect();
        }
    }

    /// A command got no reply, or one that says that the server accepts no writes: `keeper` probes it, and looks for the
    /// primary.
    pub(crate) fn suspect(&self) {
        if !self.is_suspect.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }
}
