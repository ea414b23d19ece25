//! The connection to one server: made when it is needed, replaced when it breaks.
//!
//! A question is sent once. Whether a server has done what it was asked when the connection broke is
//! not known, so nothing is asked again; that a connection has been closed is noticed at once, and a
//! new one made behind the scenes, so that an idle one that broke costs no question.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::{
    Cmd, Pipeline, PushInfo, PushKind, RedisError, RedisResult, Value, aio::MultiplexedConnection,
};
use sluicegate_core::Timestamp;
use tokio::{
    sync::watch,
    time::{Instant, timeout, timeout_at},
};

use super::{
    breaker::{Breaker, Gate},
    context::{Context, Place},
};
use crate::{StoreError, native};

/// How long to wait after a first connection that could not be made, and after any later one.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// How long a probe may take before its connection is given up.
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);

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
pub(crate) struct Link {
    place: Place,
    context: Arc<Context>,
    state: watch::Sender<State>,
    breaker: Breaker,
    /// Connections made so far.
    made: AtomicU64,
    /// Connections that could not be made since the last that could.
    missed: AtomicU32,
    /// Whether the server has the module.
    module: AtomicBool,
    /// When to ask it again, in microseconds.
    look_at: AtomicU64,
}

enum State {
    /// There is none, and none is tried to be made before this time.
    Down {
        why: String,
        until: Timestamp,
    },
    Connecting,
    Up {
        connection: MultiplexedConnection,
        number: u64,
    },
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Link").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(place: Place, context: Arc<Context>) -> Arc<Self> {
        let down = State::Down { why: String::new(), until: Timestamp::EPOCH };
        Arc::new(Self {
            place,
            state: watch::channel(down).0,
            breaker: Breaker::new(context.options.breaker_failures),
            context,
            made: AtomicU64::new(0),
            missed: AtomicU32::new(0),
            module: AtomicBool::new(false),
            look_at: AtomicU64::new(0),
        })
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up { .. })
    }

    /// Whether it is not asked for now.
    pub(crate) fn is_left_alone(&self) -> bool {
        self.breaker.is_open()
    }

    /// Whether the server has the module, as far as is known. If not, it is asked again now and then.
    pub(crate) fn has_module(self: &Arc<Self>) -> bool {
        if self.module.load(Ordering::Relaxed) {
            return true;
        }
        if let Some(every) = self.context.options.look_for_module {
            let (now, at) = (self.context.now(), self.look_at.load(Ordering::Relaxed));
            let next = (now + every).as_micros();
            // The first question is asked while there is no connection, which looks itself.
            let due = at != 0 && now.as_micros() >= at;
            let relaxed = Ordering::Relaxed;
            if due && self.look_at.compare_exchange(at, next, relaxed, relaxed).is_ok() {
                self.context.spawn(Arc::clone(self).look());
            }
        }
        false
    }

    /// The server has said that it does not have it.
    pub(crate) fn lost_module(&self) {
        if self.module.swap(false, Ordering::Relaxed) {
            tracing::info!(server = %self.place, "the module is gone: by script from now on");
        }
        self.look_later();
    }

    fn look_later(&self) {
        let every = self.context.options.look_for_module.unwrap_or_default();
        self.look_at.store((self.context.now() + every).as_micros(), Ordering::Relaxed);
    }

    /// Asks whether it has it by now.
    async fn look(self: Arc<Self>) {
        let Some(Ok((mut connection, _))) = self.up() else { return };
        let there = timeout(PROBE_TIMEOUT, native::is_there(&mut connection)).await;
        if there == Ok(true) && !self.module.swap(true, Ordering::Relaxed) {
            tracing::info!(server = %self.place, "it has the module, which is used from now on");
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
        self.exchange(deadline, run).await
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
        self.exchange(deadline, run).await
    }

    async fn exchange<T, F>(
        self: &Arc<Self>,
        deadline: Deadline,
        run: impl FnOnce(MultiplexedConnection) -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = RedisResult<T>>,
    {
        match self.breaker.gate(self.context.now()) {
            Gate::Pass => {}
            gate => {
                if gate == Gate::Probe {
                    self.context.spawn(Arc::clone(self).probe());
                }
                return Err(StoreError::Unavailable(format!(
                    "{} has not answered for a while, and is asked again when it does",
                    self.place
                )));
            }
        }
        let (connection, number) = self.connection(deadline).await?;
        match deadline.within(run(connection)).await {
            Ok(Ok(answer)) => {
                self.breaker.succeeded();
                Ok(answer)
            }
            Ok(Err(error)) => {
                self.failed();
                let why = self.told(&error);
                self.lost(Some(number), &why);
                Err(StoreError::Unavailable(why))
            }
            Err(late) => {
                self.failed();
                Err(late)
            }
        }
    }

    /// The connection and its number, once there is one.
    async fn connection(
        self: &Arc<Self>,
        deadline: Deadline,
    ) -> Result<(MultiplexedConnection, u64), StoreError> {
        if let Some(up) = self.up() {
            return up;
        }
        self.connect();
        let mut watcher = self.state.subscribe();
        let settled = watcher.wait_for(|state| !matches!(state, State::Connecting));
        if let Err(late) = deadline.within(settled).await {
            self.failed();
            return Err(late);
        }
        self.up().unwrap_or_else(|| {
            Err(StoreError::Unavailable(format!("{}: no connection yet", self.place)))
        })
    }

    /// The connection if there is one, the error if there is to be none for now.
    fn up(&self) -> Option<Result<(MultiplexedConnection, u64), StoreError>> {
        match &*self.state.borrow() {
            State::Up { connection, number } => Some(Ok((connection.clone(), *number))),
            State::Down { why, until } if self.context.now() < *until => {
                Some(Err(StoreError::Unavailable(why.clone())))
            }
            _ => None,
        }
    }

    /// Begins to make a connection, if there is none and nobody does.
    fn connect(self: &Arc<Self>) {
        let begins = self.state.send_if_modified(|state| {
            let down = matches!(state, State::Down { .. });
            if down {
                *state = State::Connecting;
            }
            down
        });
        if begins {
            // Not by the caller, who may be gone before it is made.
            self.context.spawn(Arc::clone(self).make());
        }
    }

    async fn make(self: Arc<Self>) {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Arc::downgrade(&self);
        let pushed = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection
                && let Some(link) = link.upgrade()
            {
                link.lost(Some(number), &format!("{} has closed the connection", link.place));
            }
            Ok::<_, ()>(())
        };
        let made = timeout(self.context.options.connect_timeout, async {
            let mut connection = self.context.connect(&self.place, pushed).await?;
            let looks = self.context.options.look_for_module.is_some();
            let module = looks && native::is_there(&mut connection).await;
            Ok((connection, module))
        });
        let why = match made.await {
            Ok(Ok((connection, module))) => {
                self.missed.store(0, Ordering::Relaxed);
                // Behind an address there may be another server than before.
                self.module.store(module, Ordering::Relaxed);
                self.look_later();
                self.context.counts.connections.one();
                self.state.send_replace(State::Up { connection, number });
                return;
            }
            Ok(Err(StoreError::Unavailable(why))) => format!("{}: {why}", self.place),
            Ok(Err(error)) => format!("{}: {error}", self.place),
            Err(_) => format!("{}: no connection in time", self.place),
        };
        self.failed();
        let missed = self.missed.fetch_add(1, Ordering::Relaxed);
        let pause = usize::try_from(missed).ok().and_then(|it| PAUSES.get(it)).or(PAUSES.last());
        let until = self.context.now() + pause.copied().unwrap_or_default();
        tracing::debug!(%why, "no connection");
        self.state.send_replace(State::Down { why, until });
    }

    /// The connection of this number (any, for `None`) is of no use any more: another is made.
    pub(crate) fn lost(self: &Arc<Self>, number: Option<u64>, why: &str) {
        let was_up = self.state.send_if_modified(|state| {
            let this =
                matches!(state, State::Up { number: up, .. } if number.is_none_or(|it| it == *up));
            if this {
                *state = State::Down { why: why.to_owned(), until: self.context.now() };
            }
            this
        });
        if was_up {
            self.connect();
        }
    }

    fn failed(&self) {
        if self.breaker.failed(self.context.now()) {
            self.context.counts.breaker_opened.one();
            tracing::warn!(server = %self.place, "it fails again and again, and is left alone");
        }
    }

    /// Asks a server that is left alone whether it answers again.
    async fn probe(self: Arc<Self>) {
        let deadline = Deadline::after(PROBE_TIMEOUT);
        let Ok((mut connection, number)) = self.connection(deadline).await else { return };
        match deadline.within(connection.send_packed_command(&redis::cmd("PING"))).await {
            Ok(Ok(_)) => {
                self.breaker.succeeded();
                tracing::info!(server = %self.place, "it answers again");
            }
            // Replies may never come on this connection, whatever the server does.
            _ => self.lost(Some(number), &format!("{} does not answer", self.place)),
        }
    }

    fn told(&self, error: &RedisError) -> String {
        format!("{}: {error}", self.place)
    }
}
