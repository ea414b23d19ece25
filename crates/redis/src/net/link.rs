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
use redis::{Cmd, Pipeline, PushInfo, PushKind, RedisResult, Value, aio::MultiplexedConnection};
use sluicegate_core::Timestamp;
use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep, timeout, timeout_at},
};

use super::{
    breaker::Breaker,
    context::{Context, Place},
    flow::Flow,
    keeper::jitter,
    report::Report,
    url::Address,
};
use crate::{StoreError, native};

/// How long to wait after a first connection that could not be made, and after any later one; each more
/// or less by chance, so that clients that lost a server together do not come back together.
const PAUSES: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
];
/// A connection that ends sooner counts as one that could not be made.
const SHORT_LIVED: Duration = Duration::from_millis(5);
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
pub(crate) struct Link {
    pub(super) place: Place,
    pub(super) context: Arc<Context>,
    state: watch::Sender<State>,
    pub(super) breaker: Breaker,
    /// Why it was opened last.
    pub(super) why: Mutex<String>,
    /// What the log says of it; `None`: nothing.
    pub(super) report: Option<Mutex<Report>>,
    /// Whether somebody watches over the connection.
    pub(super) is_kept: AtomicBool,
    /// Wakes who does.
    pub(super) wake: Arc<Notify>,
    /// Whether an answer came since that was looked at.
    pub(super) has_answered: AtomicBool,
    /// Whether a question got no answer, or one that says that the server takes no writes.
    pub(super) is_suspect: AtomicBool,
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
    Up(Up),
}

/// A connection.
#[derive(Clone)]
pub(super) struct Up {
    pub(super) connection: MultiplexedConnection,
    pub(super) number: u64,
    /// Where it leads.
    pub(super) address: Address,
    pub(super) flow: Arc<Flow>,
    since: Timestamp,
    has_module: bool,
}

impl fmt::Debug for Link {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Link").field("place", &self.place).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(place: Place, context: Arc<Context>) -> Arc<Self> {
        Self::with(place, context, Some(Mutex::new(Report::new())))
    }

    /// One that is asked once, and about which nothing is logged.
    pub(crate) fn seed(place: Place, context: Arc<Context>) -> Arc<Self> {
        Self::with(place, context, None)
    }

    fn with(place: Place, context: Arc<Context>, report: Option<Mutex<Report>>) -> Arc<Self> {
        let down = State::Down { why: String::new(), until: Timestamp::EPOCH };
        Arc::new(Self {
            place,
            state: watch::channel(down).0,
            breaker: Breaker::new(context.options.breaker_failures),
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
            look_at: AtomicU64::new(0),
        })
    }

    pub(crate) const fn place(&self) -> &Place {
        &self.place
    }

    /// Whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        matches!(&*self.state.borrow(), State::Up(_))
    }

    /// Where the connection leads, if there is one.
    pub(super) fn address(&self) -> Option<Address> {
        match &*self.state.borrow() {
            State::Up(up) => Some(up.address.clone()),
            _ => None,
        }
    }

    /// Why its circuit breaker was opened last.
    pub(crate) fn why(&self) -> String {
        self.why.lock().clone()
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
        let Some(Ok(Up { mut connection, .. })) = self.up() else { return };
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
                up.flow.answered(sent, self.context.now());
                self.breaker.succeeded();
                if !self.has_answered.load(Ordering::Relaxed) {
                    self.has_answered.store(true, Ordering::Relaxed);
                }
                Ok(answer)
            }
            Ok(Err(error)) => {
                let why = format!("{}: {error}", self.place);
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
    async fn ping(self: Arc<Self>, Up { mut connection, flow, .. }: Up) {
        let sent = flow.send(1, self.context.now());
        let ping = redis::cmd("PING");
        if let Ok(Ok(_)) = timeout(PROBE_TIMEOUT, connection.send_packed_command(&ping)).await {
            flow.answered(sent, self.context.now());
        }
    }

    /// The connection, once there is one.
    pub(super) async fn connection(self: &Arc<Self>, deadline: Deadline) -> Result<Up, StoreError> {
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
            Err(StoreError::Unavailable(format!("{}: no connection yet", self.place)))
        })
    }

    /// The connection if there is one, the error if there is to be none for now.
    fn up(&self) -> Option<Result<Up, StoreError>> {
        match &*self.state.borrow() {
            State::Up(up) => Some(Ok(up.clone())),
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
            if self.report.is_some() {
                self.keep();
            }
            // Not by the caller, who may be gone before it is made.
            self.context.spawn(Arc::clone(self).make());
        }
    }

    async fn make(self: Arc<Self>) {
        let why = match self.open().await {
            Ok(up) => return self.use_from_now_on(up),
            Err(why) => why,
        };
        let missed = self.missed.fetch_add(1, Ordering::Relaxed);
        let until = self.context.now() + pause(missed);
        tracing::debug!(%why, "no connection");
        // There is nothing to count: no question can be asked.
        self.unavailable(&why);
        self.state.send_replace(State::Down { why, until });
    }

    /// Replaces the connection by a new one. Questions that are in flight get their answers on the old one.
    pub(super) async fn replace(self: &Arc<Self>) {
        if let Ok(up) = self.open().await {
            self.use_from_now_on(up);
        }
    }

    fn use_from_now_on(&self, up: Up) {
        // Behind an address there may be another server than before.
        self.module.store(up.has_module, Ordering::Relaxed);
        self.look_later();
        self.context.counts.connections.one();
        self.state.send_replace(State::Up(up));
    }

    /// A new connection, or why there is none.
    async fn open(self: &Arc<Self>) -> Result<Up, String> {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        let link = Arc::downgrade(self);
        let pushed = move |info: PushInfo| {
            if info.kind == PushKind::Disconnection
                && let Some(link) = link.upgrade()
            {
                link.lost(Some(number), &format!("{} has closed the connection", link.place));
            }
            Ok::<_, ()>(())
        };
        let made = timeout(self.context.options.connect_timeout, async {
            let (mut connection, address) = self.context.connect(&self.place, pushed).await?;
            let looks = self.context.options.look_for_module.is_some();
            let has_module = looks && native::is_there(&mut connection).await;
            Ok((connection, address, has_module))
        });
        match made.await {
            Ok(Ok((connection, address, has_module))) => {
                let (flow, since) = (Arc::default(), self.context.now());
                Ok(Up { connection, number, address, flow, since, has_module })
            }
            Ok(Err(StoreError::Unavailable(why))) => Err(format!("{}: {why}", self.place)),
            Ok(Err(error)) => Err(format!("{}: {error}", self.place)),
            Err(_) => Err(format!("{}: no connection in time", self.place)),
        }
    }

    /// The connection of this number (any, for `None`) is of no use any more: another is made.
    pub(crate) fn lost(self: &Arc<Self>, number: Option<u64>, why: &str) {
        let now = self.context.now();
        let mut wait = Duration::ZERO;
        let was_up = self.state.send_if_modified(|state| {
            let State::Up(up) = state else { return false };
            if number.is_some_and(|number| number != up.number) {
                return false;
            }
            if now < up.since + SHORT_LIVED {
                wait = pause(self.missed.fetch_add(1, Ordering::Relaxed));
            } else {
                self.missed.store(0, Ordering::Relaxed);
            }
            *state = State::Down { why: why.to_owned(), until: now + wait };
            true
        });
        if was_up && wait.is_zero() {
            self.connect();
        } else if was_up {
            let link = Arc::downgrade(self);
            self.context.spawn(async move {
                sleep(wait).await;
                if let Some(link) = link.upgrade() {
                    link.connect();
                }
            });
        }
    }

    /// The server says that it takes no writes: `keeper` asks it, and looks where else the primary is.
    pub(crate) fn refused(&self) {
        self.suspect();
    }

    /// A question got no answer.
    fn failed(&self, error: &StoreError) {
        if self.breaker.failed() {
            match error {
                StoreError::Unavailable(why) => self.opened(why),
                _ => self.opened(&format!("{}: {error}", self.place)),
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

/// How long to wait after so many connections that could not be made.
fn pause(missed: u32) -> Duration {
    let pause = usize::try_from(missed).ok().and_then(|it| PAUSES.get(it)).or(PAUSES.last());
    jitter(pause.copied().unwrap_or_default())
}
