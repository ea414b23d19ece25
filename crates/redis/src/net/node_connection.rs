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
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{
    Arg, Cmd, Pipeline, PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection,
};
use sluicegate_core::{KeyedOperation, StoreError, Timestamp, as_micros, reached};
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::{Instrument as _, Level, Span, field::Empty};

use super::{
    breaker::{Breaker, PROBE_EVERY},
    context::{Context, Endpoint, TLS_ADVICE},
    report::{OutageLine, OutageLog},
    url::{Address, Kind},
};
use crate::{
    Options, native,
    reply::MissingPermission,
    script::{Script, TEST_PREFIX, begin_call},
};

/// Maximum time of a probe; afterwards its connection is closed.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// Longest time until a deadline: a clock cannot add every [`Duration`].
const MAX_SPAN: Duration = Duration::from_hours(366 * 24);

/// When a reply is due, and the time that the command had.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    span: Duration,
    /// Whether failures do not count for the circuit breaker.
    is_background: bool,
}

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span.min(MAX_SPAN), span, is_background: false }
    }

    /// The deadline of operations: that of the store, or the shortest one of theirs if all are in the background.
    pub(crate) fn of(operations: &[KeyedOperation<'_>], options: &Options) -> Self {
        let background = operations.iter().map(|it| it.policy.settings().background).min();
        match background.flatten() {
            Some(span) => Self { is_background: true, ..Self::after(span) },
            None => Self::after(options.deadline),
        }
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

    fn schedule_module_probe(&self) {
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
        let span = span(&self.endpoint, iter::once(command));
        record(span, self.exchange(1, deadline, run)).await
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
        let span = span(&self.endpoint, commands.cmd_iter());
        record(span, self.exchange(commands.len(), deadline, run)).await
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
            reached!(BreakerRejectsCommand);
            return Err(StoreError::Unavailable(self.why.lock().clone()));
        }
        let up = self.connection(deadline).await?;
        let mut now = self.context.now();
        while up.flow.is_stalled(now) {
            reached!(CommandIsHeldBack);
            let moves = up.flow.moves();
            // A reply may have come before `moves` could notice it.
            if !up.flow.is_stalled(now) {
                break;
            }
            if up.flow.pings(now) {
                self.context.spawn(Arc::clone(self).ping(up.clone()));
            }
            // The reply to a request that was dropped is not recorded: the next `PING` may be due without any reply.
            if let Err(late) = deadline.within(timeout(PING_EVERY, moves)).await {
                self.failed(&late, deadline);
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
                if !deadline.is_background {
                    self.breaker.succeeded();
                }
                if !self.has_answered.load(Ordering::Relaxed) {
                    self.has_answered.store(true, Ordering::Relaxed);
                }
                Ok(answer)
            }
            Ok(Err(error)) => {
                reached!(ConnectionEndsBeforeReply);
                let why = format!("{}: {error}", self.endpoint);
                self.lost(Some(up.number), &why);
                let error = StoreError::Unavailable(why);
                self.failed(&error, deadline);
                Err(error)
            }
            Err(late) => {
                reached!(ReplyIsLate);
                self.failed(&late, deadline);
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
            self.failed(&late, deadline);
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

    /// A command got no reply before its deadline.
    fn failed(&self, error: &StoreError, deadline: Deadline) {
        if !deadline.is_background && self.breaker.failed() {
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

// Establishes connections to one server, with pauses after failures.

/// Pauses after the first failed attempt and after later ones, with jitter, so that clients that lost a server at
/// the same time do not reconnect at the same time.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// A connection that ends sooner counts as a failed attempt.
const SHORT_LIVED: Duration = Duration::from_millis(5);
impl NodeConnection {
    /// Starts to connect, unless there is a connection or an attempt.
    pub(super) fn connect(self: &Arc<Self>) {
        let begins = self.state.send_if_modified(|state| {
            let down = matches!(state, State::Down { .. });
            if down {
                *state = State::Connecting;
            }
            down
        });
        if begins {
            if self.report.is_some() {
                self.start_keeper();
            }
            // In the background, because the caller may be cancelled.
            self.context.spawn(Arc::clone(self).make());
        }
    }

    async fn make(self: Arc<Self>) {
        let why = match self.open().await {
            Ok(up) => return self.use_from_now_on(up),
            Err(why) => why,
        };
        let missed = self.missed.fetch_add(1, Ordering::Relaxed);
        let until = self.context.now() + self.pause(missed);
        tracing::debug!(%why, "cannot connect");
        // Opens the breaker without counting, because no command can be sent.
        self.unavailable(&why);
        self.state.send_replace(State::Down { why, until });
    }

    /// Replaces the connection. Commands in flight get their replies on the old one.
    async fn replace(self: &Arc<Self>) {
        if let Ok(up) = self.open().await {
            self.use_from_now_on(up);
        }
    }

    fn use_from_now_on(&self, up: OpenConnection) {
        // The address may belong to another server than before.
        self.module.store(up.has_module, Ordering::Relaxed);
        self.schedule_module_probe();
        self.context.counts.connections.one();
        self.state.send_replace(State::Up(up));
    }

    /// A new connection, or the reason of the failure.
    async fn open(self: &Arc<Self>) -> Result<OpenConnection, String> {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let node = Arc::downgrade(self);
        let pushed = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection
                && let Some(node) = node.upgrade()
            {
                node.lost(Some(number), &format!("{} has closed the connection", node.endpoint));
            }
            Ok::<_, ()>(())
        };
        let made = timeout(self.context.options.connect_timeout, async {
            let (mut connection, address) = self.context.connect(&self.endpoint, pushed).await?;
            let looks = self.context.options.look_for_module.is_some();
            let has_module = looks && native::has_module(&mut connection).await;
            Ok((connection, address, has_module))
        });
        match made.await {
            Ok(Ok((connection, address, has_module))) => {
                let (flow, since) = (Arc::default(), self.context.now());
                let address = Arc::new(address);
                Ok(OpenConnection { connection, number, address, flow, since, has_module })
            }
            Ok(Err(StoreError::Unavailable(why))) => Err(format!("{}: {why}", self.endpoint)),
            Ok(Err(error)) => Err(format!("{}: {error}", self.endpoint)),
            Err(_) => {
                let advice = if self.context.url.tls { TLS_ADVICE } else { "" };
                Err(format!("{}: no connection in time{advice}", self.endpoint))
            }
        }
    }

    /// The connection of this number (any, for `None`) has failed, and is replaced.
    pub(crate) fn lost(self: &Arc<Self>, number: Option<u64>, why: &str) {
        let now = self.context.now();
        let mut wait = Duration::ZERO;
        let was_up = self.state.send_if_modified(|state| {
            let State::Up(up) = state else { return false };
            if number.is_some_and(|number| number != up.number) {
                return false;
            }
            if now < up.since + SHORT_LIVED {
                reached!(ConnectionIsShortLived);
                wait = self.pause(self.missed.fetch_add(1, Ordering::Relaxed));
            } else {
                self.missed.store(0, Ordering::Relaxed);
            }
            *state = State::Down { why: why.to_owned(), until: now + wait };
            true
        });
        if was_up && wait.is_zero() {
            self.connect();
        } else if was_up {
            let node = Arc::downgrade(self);
            self.context.spawn(async move {
                sleep(wait).await;
                if let Some(node) = node.upgrade() {
                    node.connect();
                }
            });
        }
    }

    /// Pause after `missed` failed attempts.
    fn pause(&self, missed: u32) -> Duration {
        let pause = usize::try_from(missed).ok().and_then(|it| PAUSES.get(it)).or(PAUSES.last());
        self.context.jitter(pause.copied().unwrap_or_default())
    }
}

// Supervises the connection to one server: probes it, opens and closes its circuit breaker, and finds the
// primary again.
//
// A probe is a script that would change a key that does not exist. Only a server that runs scripts and accepts
// writes runs it; a demoted primary replies to `PING`, and a server without memory to `DEL`. While the breaker is
// open, the server is probed every [`PROBE_EVERY`]; while it is closed, after a command without reply, and after
// [`IDLE`] without commands. Therefore an outage starts and ends without commands too.

/// Time without commands after which the server is probed.
const IDLE: Duration = Duration::from_secs(1);
/// Minimum time between two probes.
const SPACING: Duration = Duration::from_millis(20);
/// Time between two queries of the sentinels while their primary accepts no writes.
const RESOLVE_EVERY: Duration = Duration::from_millis(400);
/// Time between two replacements of a connection to a server that accepts no writes, because its address may
/// belong to another server by now.
const REPLACE_EVERY: Duration = Duration::from_secs(2);

/// Result of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ProbeResult {
    /// The server replies, and accepts writes.
    Works,
    /// It replies, but later than the deadline of a command.
    Slow(Duration),
    /// It replies that it accepts no writes.
    RejectsWrites(String),
    /// The user may not run the commands of a take.
    MayNot(String),
    /// The user may not use the key of the probe, so that writes are unknown.
    Forbidden(String),
    /// No reply, or no connection.
    Fails(String),
}

/// Whether the reply says that the server accepts no writes now, on any key.
pub(crate) fn rejects_writes(reply: &Value) -> bool {
    const CODES: [&str; 10] = [
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "UNBLOCKED",
        "LOADING",
        "NOREPLICAS",
        "MISCONF",
        "BUSY",
        "OOM",
        "NOAUTH",
    ];
    const IN_SCRIPT: [&str; 5] =
        ["READONLY You", "NOREPLICAS Not", "MISCONF ", "OOM command", "while the cluster is down"];
    let Value::ServerError(error) = reply else { return false };
    if is_about_slot(error.details()) {
        return false;
    }
    // In a script, the error of the server may follow other text.
    CODES.contains(&error.code())
        || error.details().is_some_and(|details| IN_SCRIPT.iter().any(|it| details.contains(it)))
}

/// Whether the server says that it is a replica.
fn is_demoted(error: &redis::ServerError) -> bool {
    error.code() == "READONLY" || error.details().is_some_and(|it| it.contains("READONLY You"))
}

/// Whether a `CLUSTERDOWN` is about the slot of one key.
fn is_about_slot(details: Option<&str>) -> bool {
    details.is_some_and(|details| details.starts_with("Hash slot not served"))
}

impl NodeConnection {
    /// Starts the keeper task, unless it runs.
    fn start_keeper(self: &Arc<Self>) {
        if !self.is_kept.swap(true, Ordering::Relaxed) {
            let (node, wake) = (Arc::downgrade(self), Arc::clone(&self.wake));
            let context = Arc::clone(&self.context);
            self.context.spawn(async move {
                let mut keeper = Keeper { node, resolved_at: None };
                let mut pause = IDLE;
                loop {
                    // Returns when it is woken or after the pause.
                    let _ = timeout(context.jitter(pause), wake.notified()).await;
                    let Some(next) = keeper.check_once().await else { return };
                    pause = next;
                    sleep(SPACING).await;
                }
            });
        }
    }

    /// No command can be sent, or gets a reply.
    pub(super) fn unavailable(&self, why: &str) {
        // Another node may have its slots by now, even if no command asks for them.
        self.context.node_unavailable.notify_one();
        if self.breaker.open() {
            self.opened(why);
        } else {
            why.clone_into(&mut self.why.lock());
        }
    }

    /// The breaker was opened.
    pub(super) fn opened(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
        self.context.counts.breaker_opened.one();
        self.wake.notify_one();
        self.log(|report, now| report.change(true, now));
    }

    fn works(&self) {
        if self.breaker.close() | self.permission.unbar() {
            self.log(|report, now| report.change(false, now));
        }
    }

    /// The user may use no key. Every command is still sent, because another key may be allowed.
    fn barred(&self, why: &str) {
        why.clone_into(&mut self.why.lock());
        let was_open = self.breaker.close();
        if self.permission.bar() || was_open {
            self.log(|report, now| report.change(true, now));
        }
        // A command may have been applied since.
        if !self.permission.has_rejections() {
            self.unbarred();
        }
    }

    /// A command was applied, so that the user may use some key.
    fn unbarred(&self) {
        if self.permission.unbar() && !self.breaker.is_open() {
            self.log(|report, now| report.change(false, now));
        }
    }

    /// The server gets no more commands, because others hold its slots.
    pub(super) fn retire(&self) {
        if self.breaker.is_open() {
            tracing::info!(node = %self.endpoint, "the node has left the cluster");
        }
    }

    fn log(
        &self,
        line: impl FnOnce(&mut super::report::OutageLog, Timestamp) -> Option<OutageLine>,
    ) {
        let Some(report) = &self.report else { return };
        let line = line(&mut report.lock(), self.context.now());
        let Some(line) = line else { return };
        self.context.log_outage(&self.endpoint, line, &self.why.lock());
    }
}

/// Supervises one connection.
struct Keeper {
    node: Weak<NodeConnection>,
    /// When the primary was searched last, because the server accepts no writes.
    resolved_at: Option<Timestamp>,
}

impl Keeper {
    /// Checks once. Returns the pause until the next check; `None` if the connection is not used any more.
    async fn check_once(&mut self) -> Option<Duration> {
        let node = self.node.upgrade()?;
        let is_open = node.breaker.is_open();
        let is_suspect = node.is_suspect.swap(false, Ordering::Relaxed);
        let has_answered = node.has_answered.swap(false, Ordering::Relaxed);
        if is_open || is_suspect || !has_answered || node.permission.is_barred() {
            let probe = node.probe().await;
            self.follow(&node, is_open, is_suspect, probe).await;
        }
        node.log(|report, now| report.due(now));
        let is_down = node.breaker.is_open() || node.permission.is_barred();
        Some(if is_down { PROBE_EVERY - SPACING } else { IDLE })
    }

    async fn follow(
        &mut self,
        node: &Arc<NodeConnection>,
        is_open: bool,
        is_suspect: bool,
        probe: ProbeResult,
    ) {
        match probe {
            // The user may not use the key of the probe either, which has the same prefix.
            ProbeResult::Forbidden(why) if node.permission.is_in_doubt() => node.barred(&why),
            ProbeResult::Forbidden(_) if is_suspect => {
                node.works();
                self.find_primary(node).await;
            }
            // The user may be allowed the other commands.
            ProbeResult::MayNot(why) if node.permission.is_in_doubt() => node.unavailable(&why),
            ProbeResult::Works | ProbeResult::Forbidden(_) | ProbeResult::MayNot(_) => {
                self.resolved_at = None;
                reached!(ProbeFindsOpenBreakerWorking if is_open);
                node.decided();
                node.works();
            }
            // Late commands are counted already.
            ProbeResult::Slow(_) if !is_open => reached!(ProbeIsSlow),
            ProbeResult::Slow(span) => {
                let millis = span.as_millis();
                node.unavailable(&format!("{}: answers after {millis} ms", node.endpoint));
            }
            ProbeResult::RejectsWrites(why) => {
                node.unavailable(&why);
                self.find_primary(node).await;
            }
            ProbeResult::Fails(why) => {
                reached!(ProbeOfOpenBreakerFails if is_open);
                node.unavailable(&why);
            }
        }
    }

    /// Searches for the primary, at most every [`RESOLVE_EVERY`] or [`REPLACE_EVERY`].
    async fn find_primary(&mut self, node: &Arc<NodeConnection>) {
        let now = node.context.now();
        let is_due = match (&node.endpoint, self.resolved_at) {
            (Endpoint::Primary { .. }, None) => true,
            (Endpoint::Primary { .. }, Some(at)) => now >= at + node.context.jitter(RESOLVE_EVERY),
            // It may be promoted again in a moment.
            (Endpoint::At(_), None) => false,
            (Endpoint::At(_), Some(at)) => now >= at + node.context.jitter(REPLACE_EVERY),
        };
        if !is_due {
            self.resolved_at.get_or_insert(now);
            return;
        }
        self.resolved_at = Some(now);
        if let Endpoint::Primary { sentinels, name } = &node.endpoint {
            let found = timeout(PROBE_TIMEOUT, node.context.primary(sentinels, name)).await;
            let Ok(Ok(address)) = found else { return };
            if node.address().is_some_and(|known| *known == address) {
                return;
            }
        }
        node.replace().await;
    }
}

impl NodeConnection {
    /// Checks whether the server accepts writes.
    async fn probe(self: &Arc<Self>) -> ProbeResult {
        let deadline = Deadline::after(PROBE_TIMEOUT);
        let OpenConnection { mut connection, number, flow, .. } =
            match self.connection(deadline).await {
                Ok(up) => up,
                Err(StoreError::Unavailable(why)) => return ProbeResult::Fails(why),
                Err(error) => return ProbeResult::Fails(error.to_string()),
            };
        let begin = self.context.now();
        let sent = flow.send(1, begin);
        match deadline.within(self.try_write(&mut connection)).await {
            Ok(Ok(reply)) => {
                let now = self.context.now();
                flow.answered(sent, now);
                let span = now.since(begin);
                let why = |error: &redis::ServerError| {
                    let (code, details) = (error.code(), error.details().unwrap_or_default());
                    format!("{}: {code} {details}", self.endpoint)
                };
                match (&reply, MissingPermission::of(&reply)) {
                    (Value::ServerError(error), Some(MissingPermission::Command)) => {
                        ProbeResult::MayNot(why(error))
                    }
                    (Value::ServerError(error), Some(MissingPermission::Key)) => {
                        let key = String::from_utf8_lossy(&self.probe_key()).into_owned();
                        ProbeResult::Forbidden(format!("{} (such as `{key}`)", why(error)))
                    }
                    // Its commands are redirected.
                    (Value::ServerError(error), _) if self.is_in_cluster() && is_demoted(error) => {
                        ProbeResult::Works
                    }
                    (Value::ServerError(error), _) if rejects_writes(&reply) => {
                        ProbeResult::RejectsWrites(why(error))
                    }
                    _ if span > self.context.options.deadline => ProbeResult::Slow(span),
                    _ => ProbeResult::Works,
                }
            }
            // The connection may never return replies again, even if the server recovers.
            _ => {
                let why = format!("{} does not answer", self.endpoint);
                self.lost(Some(number), &why);
                ProbeResult::Fails(why)
            }
        }
    }
}

impl NodeConnection {
    /// Runs the script of the probe, or a command of the module if the user may run no scripts.
    async fn try_write(&self, connection: &mut MultiplexedConnection) -> RedisResult<Value> {
        let key = self.probe_key();
        // A node of a cluster would redirect a script with a key of another node.
        let keys = u8::from(!self.is_in_cluster());
        let call = |whole| -> Cmd {
            let mut call = begin_call(Script::probe(), whole);
            call.arg(keys).arg(&key);
            call
        };
        let is_unknown = |reply: &Value| matches!(reply, Value::ServerError(error) if error.code() == "NOSCRIPT");
        let mut reply = connection.send_packed_command(&call(false)).await?;
        if is_unknown(&reply) {
            reply = connection.send_packed_command(&call(true)).await?;
        }
        if MissingPermission::of(&reply) == Some(MissingPermission::Command) {
            let mut take = redis::cmd("SG.TAKE");
            take.arg(&key).arg("gcra:1/1s").arg("COST").arg(0);
            let by_module = connection.send_packed_command(&take).await?;
            let is_none = matches!(&by_module, Value::ServerError(error) if error.code() == "ERR");
            if !is_none && MissingPermission::of(&by_module) != Some(MissingPermission::Command) {
                reply = by_module;
            }
        }
        Ok(reply)
    }

    fn probe_key(&self) -> Vec<u8> {
        [&self.context.options.prefix[..], TEST_PREFIX, b"probe"].concat()
    }

    fn is_in_cluster(&self) -> bool {
        self.context.url.kind == Kind::Cluster
    }
}

// Missing permissions of the user on one server, according to replies.
//
// A user without permission for one key may use another, and clients choose keys. Therefore rejected keys never
// open the circuit breaker: every command is still sent. After `max_rejections` consecutive rejections the user may have
// permission for no key (a wrong prefix): the store counts as unavailable until a command is applied, or for
// [`REJECTION_LIFETIME`] after the last rejection.

/// Time after the last rejection in which the store counts as unavailable. A server that is not ready gets no requests
/// from its clients, and must get some again to see that it is ready.
const REJECTION_LIFETIME: Duration = Duration::from_secs(10);

/// Counts consecutive commands that were rejected.
#[derive(Debug)]
pub(super) struct Permission {
    max_rejections: u32,
    rejected: AtomicU32,
    /// Whether the user may use no key, as far as is known.
    is_barred: AtomicBool,
    /// The end of that without a further rejection, in microseconds.
    until: AtomicU64,
}

impl Permission {
    pub(super) const fn new(max_rejections: u32) -> Self {
        Self {
            max_rejections,
            rejected: AtomicU32::new(0),
            is_barred: AtomicBool::new(false),
            until: AtomicU64::new(0),
        }
    }

    /// A command was rejected.
    fn record_rejection(&self, now: Timestamp) {
        self.until.store((now + REJECTION_LIFETIME).as_micros(), Ordering::Relaxed);
        self.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether enough consecutive commands were rejected that all may be.
    fn is_in_doubt(&self) -> bool {
        self.rejected.load(Ordering::Relaxed) >= self.max_rejections
    }

    /// Whether a command was rejected since the last one that was applied.
    fn has_rejections(&self) -> bool {
        self.rejected.load(Ordering::Relaxed) != 0
    }

    /// A command was applied.
    fn answered(&self) {
        // All threads share the cache line, therefore it is written only if the value changes.
        if self.has_rejections() {
            self.rejected.store(0, Ordering::Relaxed);
        }
    }

    /// The user may use no key. Returns whether that is new.
    fn bar(&self) -> bool {
        !self.is_barred.swap(true, Ordering::Relaxed)
    }

    /// The user may use some key. Returns whether that is new.
    fn unbar(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed) && self.is_barred.swap(false, Ordering::Relaxed)
    }

    /// Whether the user may use no key, according to the last reply.
    fn is_barred(&self) -> bool {
        self.is_barred.load(Ordering::Relaxed)
    }

    /// Whether that may still be true at `now`.
    fn is_barred_at(&self, now: Timestamp) -> bool {
        self.is_barred() && now.as_micros() < self.until.load(Ordering::Relaxed)
    }
}

// The `tracing` span of a round trip to a server, within the span of the request that needs it.
//
// Its attributes are those of OpenTelemetry's semantic conventions for databases. It has no arguments of commands:
// these are keys.

/// The span of a round trip of `commands`; none outside of a span.
#[inline]
pub(super) fn span<'a>(endpoint: &Endpoint, commands: impl Iterator<Item = &'a Cmd>) -> Span {
    if !tracing::span_enabled!(Level::TRACE) || Span::current().is_none() {
        return Span::none();
    }
    new(endpoint, commands)
}

#[cold]
fn new<'a>(endpoint: &Endpoint, commands: impl Iterator<Item = &'a Cmd>) -> Span {
    let names: Vec<_> = commands.map(name).collect();
    let name = match &*names {
        [name] => (*name).to_owned(),
        [first, rest @ ..] if rest.iter().all(|it| it == first) => format!("PIPELINE {first}"),
        _ => "PIPELINE".to_owned(),
    };
    let span = tracing::trace_span!(
        "round trip",
        otel.name = &*name,
        otel.kind = "client",
        otel.status_code = Empty,
        error.type = Empty,
        db.system.name = "redis",
        db.operation.name = &*name,
        db.operation.batch.size = Empty,
        server.address = Empty,
        server.port = Empty,
    );
    if names.len() > 1 {
        span.record("db.operation.batch.size", i64::try_from(names.len()).unwrap_or(i64::MAX));
    }
    if let Endpoint::At(address) = endpoint {
        span.record("server.address", &*address.host);
        span.record("server.port", i64::from(address.port));
    }
    span
}

/// The name of a command. It is not an argument of a client.
fn name(command: &Cmd) -> &str {
    match command.args_iter().next() {
        Some(Arg::Simple(name)) => str::from_utf8(name).unwrap_or_default(),
        _ => "",
    }
}

/// The result of `exchange`, within its span.
pub(super) async fn record<T>(
    span: Span,
    exchange: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    let result = exchange.instrument(span.clone()).await;
    if let Err(error) = &result {
        span.record("otel.status_code", "error");
        // Not its text, which may have what the server replied.
        let kind = if matches!(error, StoreError::Timeout(_)) { "timeout" } else { "unavailable" };
        span.record("error.type", kind);
    }
    result
}

// Commands on one connection that have no reply yet, and whether the connection has stalled.
//
// A node that stops replying may execute commands later. Therefore after [`STALL`] without a reply only a `PING`
// is sent periodically, until a reply comes. Only the commands in flight when the node stopped, and those sent
// within [`STALL`], are executed late.

/// Time without a reply after which commands are held back.
const STALL: Duration = Duration::from_millis(3);
/// Time between two `PING`s on a connection that has stalled.
const PING_EVERY: Duration = Duration::from_millis(5);

/// Commands on one connection that have no reply yet. Replies come in the order of commands, so the number
/// of the last one that has a reply says all.
#[derive(Debug, Default)]
pub(super) struct Flow {
    sent: AtomicU64,
    answered: AtomicU64,
    /// When the last reply came, or the first command was sent after all had replies; in microseconds.
    moved_at: AtomicU64,
    ping_at: AtomicU64,
    moved: Notify,
}

/// The number of a command that was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommandNumber(u64);

impl Flow {
    /// Counts `commands` as sent.
    pub(crate) fn send(&self, commands: usize, now: Timestamp) -> CommandNumber {
        let commands = u64::try_from(commands).unwrap_or(u64::MAX);
        let before = self.sent.fetch_add(commands, Ordering::Relaxed);
        if before <= self.answered.load(Ordering::Relaxed) {
            self.moved_at.store(now.as_micros(), Ordering::Relaxed);
        }
        CommandNumber(before + commands)
    }

    /// Records the reply to a command.
    fn answered(&self, CommandNumber(number): CommandNumber, now: Timestamp) {
        debug_assert!(
            number <= self.sent.load(Ordering::Relaxed),
            "a reply to a command that was not sent"
        );
        self.answered.fetch_max(number, Ordering::Relaxed);
        self.moved_at.store(now.as_micros(), Ordering::Relaxed);
        self.moved.notify_waiters();
    }

    /// Whether commands wait for replies that do not come.
    fn is_stalled(&self, now: Timestamp) -> bool {
        let moved_at = self.moved_at.load(Ordering::Relaxed);
        Self::is_past(moved_at, STALL, now)
            && self.sent.load(Ordering::Relaxed) > self.answered.load(Ordering::Relaxed)
    }

    /// Whether the caller must send a `PING`. Callers that were cancelled do not record their replies.
    fn pings(&self, now: Timestamp) -> bool {
        let (last, relaxed) = (self.ping_at.load(Ordering::Relaxed), Ordering::Relaxed);
        Self::is_past(last, PING_EVERY, now)
            && self.ping_at.compare_exchange(last, now.as_micros(), relaxed, relaxed).is_ok()
    }

    /// Ready when the next reply comes after this call.
    fn moves(&self) -> impl Future<Output = ()> + '_ {
        self.moved.notified()
    }

    fn is_past(then: u64, span: Duration, now: Timestamp) -> bool {
        u128::from(now.as_micros().saturating_sub(then)) >= span.as_micros()
    }
}

#[cfg(test)]
mod tests_of_deadline {
    use sluicegate_core::{Operation, PreparedPolicy};

    use super::*;
    use crate::net::url::Url;

    #[test]
    fn deadline_of_operations_in_the_background_is_the_shortest_of_theirs() {
        let plain: PreparedPolicy = "gcra:1/1s".parse().unwrap();
        let [short, long] = [2, 5].map(|it| plain.in_background(Duration::from_secs(it)));
        let options = Options::default();
        let of = |policies: &[&PreparedPolicy]| {
            let take = |policy| KeyedOperation { key: b"k", policy, operation: Operation::Take(1) };
            let takes: Vec<_> = policies.iter().map(|policy| take(*policy)).collect();
            let Deadline { span, is_background, .. } = Deadline::of(&takes, &options);
            (span, is_background)
        };
        assert_eq!(of(&[&long, &short]), (Duration::from_secs(2), true));
        assert_eq!(of(&[&long, &plain]), (options.deadline, false));
        assert_eq!(of(&[&plain]), (options.deadline, false));
    }

    #[test]
    fn failed_in_the_background_does_not_open_the_breaker() {
        let url = Url::parse("redis://127.0.0.1").unwrap();
        let context = Context::new(url, Options::default()).unwrap();
        let endpoint = Endpoint::At(Address { host: "127.0.0.1".to_owned(), port: 6379 });
        let node = NodeConnection::new(endpoint, &context, false);
        let late = StoreError::Timeout(Duration::from_secs(1));
        let waiting = Deadline::after(Duration::from_secs(1));
        for _ in 0..100 {
            node.failed(&late, Deadline { is_background: true, ..waiting });
        }
        assert!(!node.breaker.is_open());
        for _ in 0..10 {
            node.failed(&late, waiting);
        }
        assert!(node.breaker.is_open());
    }
}

#[cfg(test)]
mod tests_of_permission {
    use super::*;

    #[test]
    fn permission_rejections_in_a_row_cast_doubt_until_an_answer() {
        let permission = Permission::new(2);
        let now = Timestamp::EPOCH;
        permission.record_rejection(now);
        assert!(!permission.is_in_doubt());
        permission.answered();
        permission.record_rejection(now);
        assert!(!permission.is_in_doubt());
        permission.record_rejection(now);
        assert!(permission.is_in_doubt());
        permission.answered();
        assert!(!permission.is_in_doubt() && !permission.has_rejections());
    }

    #[test]
    fn permission_bar_ends_with_an_answer_or_without_rejections() {
        let permission = Permission::new(1);
        let now = Timestamp::EPOCH;
        permission.record_rejection(now);
        assert!(permission.bar() && !permission.bar());
        assert!(permission.is_barred_at(now) && !permission.is_barred_at(now + REJECTION_LIFETIME));
        permission.record_rejection(now + REJECTION_LIFETIME);
        assert!(permission.is_barred_at(now + REJECTION_LIFETIME));
        assert!(permission.unbar() && !permission.unbar() && !permission.is_barred_at(now));
    }
}
#[cfg(test)]
mod tests_of_flow {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn flow_without_replies_is_stalled_until_one_comes() {
        let flow = Flow::default();
        assert!(!flow.is_stalled(at(1000)));
        let first = flow.send(1, at(1000));
        let second = flow.send(30, at(1002));
        assert!(!flow.is_stalled(at(1002)) && flow.is_stalled(at(1003)));
        flow.answered(first, at(1010));
        assert!(!flow.is_stalled(at(1012)) && flow.is_stalled(at(1013)));
        flow.answered(second, at(1020));
        assert!(!flow.is_stalled(at(9000)), "nothing waits for a reply");
        flow.send(1, at(9000));
        assert!(!flow.is_stalled(at(9002)), "the time begins with what was sent");
    }

    #[test]
    fn flow_pings_are_spaced() {
        let flow = Flow::default();
        assert!(flow.pings(at(1000)) && !flow.pings(at(1004)) && flow.pings(at(1005)));
    }
}
