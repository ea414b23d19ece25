//! The connection to one server: made when it is needed, replaced when it breaks.
//!
//! A question is sent once. Whether a server has done what it was asked when the connection broke is
//! not known, so nothing is asked again; that a connection has been closed is noticed at once, and a
//! new one made behind the scenes, so that an idle one that broke costs no question.
//!
//! `keeper` probes the server, and opens and closes its circuit breaker; `flow` bounds what is in flight
//! to a server that stops answering.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisResult, Value, aio::MultiplexedConnection};
use sluicegate_core::Timestamp;
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
    url::Address,
};
use crate::{StoreError, native};

/// How long a probe may take before its connection is given up.
pub(super) const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

/// When an answer must be there, and how long that was from the start.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    span: Duration,
}

impl Deadline {
    pub(crate) fn after(span: Duration) -> Self {
        Self { at: Instant::now() + span, span }
    }

    /// What `future` gives, if it is in time.
    pub(crate) async fn within<T>(&self, future: impl Future<Output = T>) -> Result<T, StoreError> {
        timeout_at(self.at, future).await.map_err(|_| StoreError::Timeout(self.span))
    }
}

/// The connection to one server.
pub(crate) struct NodeConnection {
    pub(super) endpoint: Endpoint,
    pub(super) context: Arc<Context>,
    pub(super) state: watch::Sender<State>,
    pub(super) breaker: Breaker,
    /// Why it was opened last.
    pub(super) why: Mutex<String>,
    /// What the log says of it; `None`: nothing.
    pub(super) report: Option<Mutex<OutageLog>>,
    /// Whether somebody watches over the connection.
    pub(super) is_kept: AtomicBool,
    /// Wakes who does.
    pub(super) wake: Arc<Notify>,
    /// Whether an answer came since that was looked at.
    pub(super) has_answered: AtomicBool,
    /// Whether a question got no answer, or one that says that the server takes no writes.
    pub(super) is_suspect: AtomicBool,
    /// What the user may not do.
    pub(super) permission: Permission,
    /// Connections made so far.
    pub(super) made: AtomicU64,
    /// Connections that could not be made since the last that could.
    pub(super) missed: AtomicU32,
    /// Whether the server has the module.
    pub(super) module: AtomicBool,
    /// When to ask it again, in microseconds.
    module_probe_at: AtomicU64,
}

pub(super) enum State {
    /// There is none, and none is tried to be made before this time.
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
    /// Where it leads.
    pub(super) address: Arc<Address>,
    pub(super) flow: Arc<Flow>,
    pub(super) since: Timestamp,
    pub(super) has_module: bool,
}

impl fmt::Debug for NodeConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("NodeConnection")
            .field("place", &self.endpoint)
            .finish_non_exhaustive()
    }
}

impl NodeConnection {
    pub(crate) fn new(endpoint: Endpoint, context: Arc<Context>) -> Arc<Self> {
        Self::with(endpoint, context, Some(Mutex::new(OutageLog::new())))
    }

    /// One that is asked once, and about which nothing is logged.
    pub(crate) fn seed(endpoint: Endpoint, context: Arc<Context>) -> Arc<Self> {
        Self::with(endpoint, context, None)
    }

    fn with(
        endpoint: Endpoint,
        context: Arc<Context>,
        report: Option<Mutex<OutageLog>>,
    ) -> Arc<Self> {
        let down = State::Down { why: String::new(), until: Timestamp::EPOCH };
        Arc::new(Self {
            endpoint,
            state: watch::channel(down).0,
            breaker: Breaker::new(context.options.breaker_failures),
            permission: Permission::new(context.options.breaker_failures),
            context,
            why: Mutex::default(),
            report,
            is_kept: AtomicBool::new(false),
            wake: Arc::default(),
            has_answered: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
            made: AtomicU64::new(0),
            missed: AtomicU32::new(0),
            module: AtomicBool::new(false),
            module_probe_at: AtomicU64::new(0),
        })
    }

    pub(crate) const fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    /// Where the connection leads, if there is one.
    pub(super) fn address(&self) -> Option<Arc<Address>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Arc::clone(&up.address)),
            _ => None,
        }
    }

    /// Why its circuit breaker was opened last.
    pub(crate) fn why(&self) -> String {
        self.why.lock().clone()
    }

    /// Why no decision of the server can be had now, as far as is known.
    pub(crate) fn why_unavailable(&self) -> Option<String> {
        let is_barred =
            || self.permission.is_barred() && self.permission.is_barred_at(self.context.now());
        (self.breaker.is_open() || is_barred()).then(|| self.why())
    }

    /// Whether its circuit breaker is open.
    pub(crate) fn is_breaker_open(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether the server has the module, as far as is known. If not, it is asked again now and then.
    pub(crate) fn has_module(self: &Arc<Self>) -> bool {
        if self.module.load(Ordering::Relaxed) {
            return true;
        }
        if let Some(every) = self.context.options.look_for_module {
            let (now, at) = (self.context.now(), self.module_probe_at.load(Ordering::Relaxed));
            let next = (now + every).as_micros();
            // The first question is asked while there is no connection, which looks itself.
            let due = at != 0 && now.as_micros() >= at;
            let relaxed = Ordering::Relaxed;
            if due && self.module_probe_at.compare_exchange(at, next, relaxed, relaxed).is_ok() {
                self.context.spawn(Arc::clone(self).probe_module());
            }
        }
        false
    }

    /// The server has said that it does not have it.
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

    /// Asks whether it has it by now.
    async fn probe_module(self: Arc<Self>) {
        let Some(Ok(OpenConnection { mut connection, .. })) = self.up() else { return };
        let there = timeout(PROBE_TIMEOUT, native::has_module(&mut connection)).await;
        if there == Ok(true) && !self.module.swap(true, Ordering::Relaxed) {
            tracing::info!(server = %self.endpoint, "using the module");
        }
    }

    /// What the server answers to one command: errors of its own are values too.
    pub(crate) async fn command(
        self: &Arc<Self>,
        command: &Cmd,
        deadline: Deadline,
    ) -> Result<Value, StoreError> {
        let run = |mut connection: MultiplexedConnection| async move {
            connection.send_packed_command(command).await
        };
        self.exchange(1, deadline, run).await
    }

    /// What it answers to each of several, which are sent as one.
    pub(crate) async fn commands(
        self: &Arc<Self>,
        commands: &Pipeline,
        deadline: Deadline,
    ) -> Result<Vec<Value>, StoreError> {
        let run = |mut connection: MultiplexedConnection| async move {
            connection.send_packed_commands(commands, 0, commands.len()).await
        };
        self.exchange(commands.len(), deadline, run).await
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
            return Err(StoreError::Unavailable(self.why()));
        }
        let up = self.connection(deadline).await?;
        let mut now = self.context.now();
        while up.flow.is_stalled(now) {
            let moves = up.flow.moves();
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
                self.context.round_trips.record(end.as_micros().saturating_sub(now.as_micros()));
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

    /// Asks on a connection whose replies do not come, so as to see when they do.
    async fn ping(self: Arc<Self>, OpenConnection { mut connection, flow, .. }: OpenConnection) {
        let sent = flow.send(1, self.context.now());
        let ping = redis::cmd("PING");
        if let Ok(Ok(_)) = timeout(PROBE_TIMEOUT, connection.send_packed_command(&ping)).await {
            flow.answered(sent, self.context.now());
        }
    }

    /// The connection, once there is one.
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

    /// The connection if there is one, the error if there is to be none for now.
    fn up(&self) -> Option<Result<OpenConnection, StoreError>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Ok(up.clone())),
            State::Down { why, until } if self.context.now() < *until => {
                Some(Err(StoreError::Unavailable(why.clone())))
            }
            _ => None,
        }
    }

    /// The server says that it takes no writes: `keeper` asks it, and looks where else the primary is.
    pub(crate) fn refused(&self) {
        self.suspect();
    }

    /// The user may not ask a question: `keeper` looks whether that is so for all of them.
    pub(crate) fn forbidden(&self) {
        self.permission.refused(self.context.now());
        // `keeper` looks often enough while it is so.
        if self.permission.is_in_doubt() && !self.permission.is_barred() {
            self.suspect();
        }
    }

    /// A question was decided.
    pub(crate) fn decided(&self) {
        if self.permission.has_refusals() {
            self.permission.answered();
            self.unbarred();
        }
    }

    /// A question got no answer.
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

    fn suspect(&self) {
        if !self.is_suspect.swap(true, Ordering::Relaxed) {
            self.wake.notify_one();
        }
    }
}
