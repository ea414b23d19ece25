//! The simulated environment of a process: its clock, connections, tasks and random numbers.

use std::{
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use sluicegate_core::{BoxFuture, Timestamp};
use sluicegate_redis::{Connection, Environment};
use tokio::task::AbortHandle;

use crate::{
    check::Checks,
    network::Link,
    random::RandomByTime,
    redis_model::{Servers, serve},
    time::{HostClock, VirtualTime},
};

/// Turns of the tasks of a process within a millisecond. More are a livelock.
const MAX_TURNS: u64 = 100_000;
/// A task that could run yields to all others once in this number of turns, as threads do.
const YIELD_ONE_IN: u64 = 16;

/// Milliseconds that the handshake of a connection takes, and the commands that the store sends before it uses the connection.
const HAND_SHAKE: u64 = 2;
const SET_UP: u64 = 4;

/// The simulated environment of a process.
pub(crate) struct Host {
    pub(crate) index: usize,
    /// Its number among all processes that were started.
    pub(crate) number: u64,
    pub(crate) time: VirtualTime,
    pub(crate) clock: HostClock,
    pub(crate) random: RandomByTime,
    /// The order in which tasks run that could.
    pub(crate) order: RandomByTime,
    /// To each server.
    pub(crate) links: Vec<Arc<Link>>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) checks: Arc<Checks>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) tasks: Mutex<Vec<AbortHandle>>,
    /// Operations without an answer.
    pub(crate) open: AtomicU64,
}

/// Keeps the tasks of a process from running while it is paused.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// It stays closed when the process has ended.
    pub(crate) is_closed: AtomicBool,
    pub(crate) has_ended: AtomicBool,
    /// Milliseconds that it was closed in all.
    pub(crate) closed_for: AtomicU64,
    pub(crate) waiting: Mutex<Vec<Waker>>,
    /// How often tasks have run within a millisecond.
    turns: Mutex<(u64, u64)>,
}

impl Gate {
    /// Counts a turn. Whether tasks run without end, and no time passes.
    fn is_livelock(&self, millis: u64) -> bool {
        let mut turns = self.turns.lock();
        *turns = if turns.0 == millis { (millis, turns.1 + 1) } else { (millis, 1) };
        turns.1 > MAX_TURNS
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Host").field("index", &self.index).finish_non_exhaustive()
    }
}

impl Host {
    /// Runs a future only while the process runs.
    pub(crate) fn gated<'a, T>(&self, task: impl Future<Output = T> + Send + 'a) -> Gated<'a, T> {
        Gated {
            task: Box::pin(task),
            gate: Arc::clone(&self.gate),
            order: self.order.clone(),
            checks: Arc::clone(&self.checks),
            time: self.time,
        }
    }

    /// Runs a task in the background, as long as the process runs.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        if self.gate.has_ended.load(Ordering::Relaxed) {
            return;
        }
        let task = self.gated(task);
        let handle = tokio::spawn(task).abort_handle();
        let mut tasks = self.tasks.lock();
        if tasks.len() >= 64 {
            tasks.retain(|task| !task.is_finished());
        }
        tasks.push(handle);
    }
}

impl Environment for Host {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn random(&self) -> u64 {
        self.random.next(self.time.millis())
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.spawn(task);
    }

    fn connect(&self, _: &str, port: u16) -> BoxFuture<'static, io::Result<Box<dyn Connection>>> {
        let (servers, index) = (Arc::clone(&self.servers), self.index);
        let node = servers.node_at(port);
        let (link, time) = (Arc::clone(&self.links[node]), self.time);
        let checks = servers.is_cluster().then(|| Arc::clone(&self.checks));
        let connects = move |millis| {
            if let Some(checks) = &checks {
                checks.connects(index, time.millis() + millis);
            }
        };
        Box::pin(async move {
            connects(HAND_SHAKE);
            link.shake_hands().await;
            connects(SET_UP);
            if !servers.node(node).is_up() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = link.open();
            tokio::spawn(serve(servers, node, index, theirs));
            Ok(Box::new(ours) as Box<dyn Connection>)
        })
    }
}

/// A task that runs only while the gate is open.
pub(crate) struct Gated<'a, T> {
    task: BoxFuture<'a, T>,
    gate: Arc<Gate>,
    order: RandomByTime,
    checks: Arc<Checks>,
    time: VirtualTime,
}

impl<T> Future for Gated<'_, T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        if self.gate.is_closed.load(Ordering::Relaxed) {
            self.gate.waiting.lock().push(context.waker().clone());
            return Poll::Pending;
        }
        let millis = self.time.millis();
        if self.gate.is_livelock(millis) {
            self.checks
                .violation(format_args!("liveness: tasks run without end, and no time passes"));
            return Poll::Pending;
        }
        if self.order.below(millis, YIELD_ONE_IN) == 0 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.task.as_mut().poll(context)
    }
}
