//! A process with a store: production code, whose clock, connections, tasks and random numbers are simulated.

use std::{
    collections::BTreeMap,
    fmt, io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use sluicegate_core::{
    self as core, Answer, Applied, BoxFuture, Counters, Decision, KeyedOperation, Operation,
    PreparedPolicy, ReadEntry, Source, Store, StoreError, StoreStatus, Timestamp,
};
use sluicegate_redis::{Connection, Environment, Options, RedisStore};
use tokio::{task::AbortHandle, time::sleep};

use crate::{
    check::{AnsweredMultiKey, AnsweredOperation, Checks, Kind},
    event_log::{EventLog, Shown},
    network::Link,
    plan::Request,
    random::{Random, RandomByTime},
    redis_model::{KeyMoment, Servers, serve},
    time::{HostClock, VirtualTime},
};

/// An operation on a key, under a policy.
#[derive(Clone, Debug)]
pub(super) struct KeyRequest {
    pub(super) key: Vec<u8>,
    pub(super) policy: PreparedPolicy,
    pub(super) request: Request,
}

impl KeyRequest {
    /// The operation, with the id of its hold.
    fn operation<'a>(&'a self, id: &'a [u8]) -> KeyedOperation<'a> {
        KeyedOperation {
            key: &self.key,
            policy: &self.policy,
            operation: self.request.operation(id),
        }
    }
}

/// A moment in the life of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    /// Milliseconds since the start of the run.
    pub(crate) millis: u64,
    /// Milliseconds for which the process has been paused so far.
    pub(crate) closed_for: u64,
}

/// The state at the time when a request is sent.
#[derive(Clone)]
struct SendState {
    at: Moment,
    event: u64,
    /// The earliest time that the clock can show then.
    reading: Timestamp,
    is_alone: bool,
    /// The key then, if units were to be taken.
    key: Option<KeyMoment>,
    /// The node that decides on it, and its clock.
    node: usize,
    server_time: Timestamp,
}

/// A running process.
#[derive(Clone, Debug)]
pub(super) struct Process {
    host: Arc<Host>,
    store: RedisStore,
    log: Arc<EventLog>,
    checks: Arc<Checks>,
}

impl Process {
    pub(super) fn start(
        (index, number, time): (usize, u64, VirtualTime),
        random: &Random,
        links: &[Arc<Link>],
        servers: &Arc<Servers>,
        (log, checks): (&Arc<EventLog>, &Arc<Checks>),
        denial_cache: Duration,
    ) -> Result<Self> {
        let clock = Arc::new(HostClock::new(&time, random));
        checks.starts(index, number, &clock);
        let host = Arc::new(Host {
            index,
            number,
            time,
            clock,
            order: RandomByTime::new(random.next(), "order"),
            random: RandomByTime::new(random.next(), "jitter"),
            links: links.to_vec(),
            servers: Arc::clone(servers),
            checks: Arc::clone(checks),
            gate: Arc::default(),
            tasks: Mutex::default(),
            open: AtomicU64::new(0),
        });
        let mut options = Options::default();
        options.max_denial_cache = denial_cache;
        if random.chance(10) {
            // Of several leased keys, one is asked about each time.
            options.max_leases = 1;
        }
        options.environment = Some(Arc::clone(&host) as Arc<dyn Environment>);
        let store = RedisStore::new(&servers.url(), options)?;
        Ok(Self { host, store, log: Arc::clone(log), checks: Arc::clone(checks) })
    }

    /// Ends: nothing of it runs any more.
    pub(super) fn end(&self) {
        self.host.gate.has_ended.store(true, Ordering::Relaxed);
        self.host.gate.is_closed.store(true, Ordering::Relaxed);
        self.host.tasks.lock().drain(..).for_each(|task| task.abort());
        self.checks.ended(self.host.number, &self.counters());
    }

    fn counters(&self) -> Counters {
        match self.store.status() {
            StoreStatus::Remote(status) => status.counters,
            StoreStatus::Local(_) => Counters::default(),
        }
    }

    /// The reason why its store is unavailable, as it sees it.
    pub(super) fn unavailable(&self) -> Option<String> {
        match self.store.status() {
            StoreStatus::Remote(status) => status.unavailable,
            StoreStatus::Local(_) => None,
        }
    }

    /// The nodes whose breakers are open.
    pub(super) fn open_breakers(&self) -> Vec<String> {
        match self.store.status() {
            StoreStatus::Remote(status) => {
                let open = status.nodes.into_iter().filter(|node| node.breaker_open);
                open.map(|node| node.endpoint).collect()
            }
            StoreStatus::Local(_) => Vec::new(),
        }
    }

    /// Operations without an answer.
    pub(super) fn open_requests(&self) -> u64 {
        self.host.open.load(Ordering::Relaxed)
    }

    /// Does not run for a while.
    pub(super) fn pause(&self, span: u64) {
        let gate = Arc::clone(&self.host.gate);
        gate.is_closed.store(true, Ordering::Relaxed);
        gate.closed_for.fetch_add(span, Ordering::Relaxed);
        let handle = tokio::spawn(async move {
            sleep(Duration::from_millis(span)).await;
            if gate.has_ended.load(Ordering::Relaxed) {
                return;
            }
            gate.is_closed.store(false, Ordering::Relaxed);
            gate.waiting.lock().drain(..).for_each(Waker::wake);
        });
        self.host.tasks.lock().push(handle.abort_handle());
    }

    /// Applies requests in the background, in one call if there are several: all or none, or each by itself.
    pub(super) fn request(&self, requests: Vec<KeyRequest>, all_or_none: bool) {
        let process = self.clone();
        self.host.open.fetch_add(1, Ordering::Relaxed);
        self.host.spawn(async move {
            // The answers are checked there.
            match &requests[..] {
                requests if all_or_none => process.operate_together(requests).await,
                [request] => {
                    let _ = process.operate(request).await;
                    if matches!(request.request, Request::Peek(_)) {
                        process.read(request).await;
                    }
                }
                requests => process.operate_all(requests).await,
            }
            process.host.open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Returns the leases, in the background.
    pub(super) fn close(&self) {
        let store = self.store.clone();
        self.host.spawn(async move { store.close().await });
    }

    /// Applies a request.
    pub(super) async fn operate(&self, request: &KeyRequest) -> Result<Answer, StoreError> {
        let id = request.request.hold_id();
        self.apply(request.operation(&id).into()).await
    }

    /// Reads the state of a key, as `SG.INFO` does. It fails only beside a fault, and a peek at it answers as one at the store.
    async fn read(&self, request: &KeyRequest) {
        let (host, sent, key) = (&self.host, self.moment(), &request.key);
        let before = host.servers.moment(key);
        let mut found = None;
        let mut keep = |entry: Option<&core::Entry>, now| found = Some((entry.cloned(), now));
        let result = self.store.read(key, &mut keep).await;
        let is_calm = self.moment().closed_for == sent.closed_for
            && self.checks.is_calm_since(host.index, key, sent.millis);
        let after = host.servers.moment(key);
        if let Err(error) = &result
            && is_calm
        {
            let what = format_args!("reads: {} is not read: {error}", key.escape_ascii());
            self.checks.violation(what);
        }
        let Some((mut entry, now)) = found.filter(|_| is_calm && before.is_of_state(&after)) else {
            return;
        };
        let (policy, peek) = (request.policy.policy(), request.request.operation(&[]));
        let expected = after.at(now).decide(key, policy, peek);
        let found = core::apply(policy, &mut entry, now, peek).map_err(|it| it.to_string());
        if found != expected {
            let key = key.escape_ascii();
            let what = format_args!("reads: {key} is read as {found:?}, and is {expected:?}");
            self.checks.violation(what);
        }
    }

    /// Applies requests in one call, each by itself.
    pub(super) async fn operate_all(&self, requests: &[KeyRequest]) {
        let ids: Vec<_> = requests.iter().map(|it| it.request.hold_id()).collect();
        let operations = requests.iter().zip(&ids).map(|(it, id)| it.operation(id));
        self.apply_many(&operations.collect::<Vec<_>>()).await;
    }

    /// Applies requests in one call, all or none. Their holds have one id.
    async fn operate_together(&self, requests: &[KeyRequest]) {
        let id = requests.first().map(|it| it.request.hold_id()).unwrap_or_default();
        let operations: Vec<_> = requests.iter().map(|it| it.operation(&id)).collect();
        match core::Request::all(&operations) {
            Ok(request) => drop(self.apply(request).await),
            Err(error) => self.checks.violation(format_args!("invalid requests: {error}")),
        }
    }

    /// Applies a request, and checks its answer.
    pub(super) async fn apply(&self, request: core::Request<'_>) -> Result<Answer, StoreError> {
        let Some(call) = request.single() else { return self.apply_multi_key(request).await };
        let sent = self.sends(call, true);
        let result = self.store.apply(request).await;
        self.answered(call, sent, &result);
        result
    }

    /// Applies operations in one call, each by itself, and checks the answers.
    pub(super) async fn apply_many(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Vec<Result<Answer, StoreError>> {
        let sent: Vec<_> =
            operations.iter().map(|it| self.sends(*it, operations.len() == 1)).collect();
        let results = self.store.apply_many(operations).await;
        for ((it, sent), result) in operations.iter().zip(sent).zip(&results) {
            self.answered(*it, sent, result);
        }
        results
    }

    async fn apply_multi_key(&self, request: core::Request<'_>) -> Result<Answer, StoreError> {
        let (host, operations) = (&self.host, request.operations());
        let sent = self.moment();
        let in_turn = !host.servers.fit_one_command(operations.iter().map(|it| it.key));
        let process = (host.index, host.number);
        let event = self.checks.requested_multi_key(process, operations, in_turn);
        let reading = host.clock.next();
        let result = self.store.apply(request).await;
        self.log_answer(operations, &result);
        let is_cached = result.as_ref().is_ok_and(|it| it.source == Source::Cache);
        let by_oracle = operations
            .iter()
            .map(|&it| is_cached.then(|| peek(&host.servers.moment(it.key), it)).flatten());
        self.checks.answered_multi_key(&AnsweredMultiKey {
            process: host.index,
            number: host.number,
            operations,
            by_oracle: by_oracle.collect(),
            server_times: operations.iter().map(|it| host.servers.time_of(it.key)).collect(),
            in_turn,
            nodes: operations.iter().map(|it| host.servers.owner(it.key)).collect(),
            sent: sent.millis,
            event,
            paused: self.moment().closed_for - sent.closed_for,
            result: &result,
            readings: (reading, host.clock.latest()),
        });
        result
    }

    /// Runs a future only while the process runs.
    pub(super) fn gated<'a, T>(&self, task: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T>
    where
        T: 'a,
    {
        Box::pin(self.host.gated(task))
    }

    /// Runs a task in the background, as long as the process runs.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.host.spawn(task);
    }

    /// The moment, as far as checks of this process need it.
    pub(super) fn moment(&self) -> Moment {
        let closed_for = self.host.gate.closed_for.load(Ordering::Relaxed);
        Moment { millis: self.host.time.millis(), closed_for }
    }

    /// Its index among the processes, and its number among all that were started.
    pub(super) fn numbers(&self) -> (usize, u64) {
        (self.host.index, self.host.number)
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.host.gate.has_ended.load(Ordering::Relaxed)
    }

    /// The production store of the process.
    pub(super) const fn store(&self) -> &RedisStore {
        &self.store
    }

    /// The servers that it uses.
    pub(super) fn servers(&self) -> &Servers {
        &self.host.servers
    }

    pub(super) fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    pub(super) fn log(&self) -> &EventLog {
        &self.log
    }

    /// A request is sent. The state at that time.
    fn sends(
        &self,
        KeyedOperation { key, operation, .. }: KeyedOperation<'_>,
        is_alone: bool,
    ) -> SendState {
        let host = &self.host;
        let (process, kind) = ((host.index, host.number), Kind::of(operation));
        let event = self.checks.requested(process, key, kind, is_alone);
        let is_take = matches!(operation, Operation::Take(_));
        let (at, node) = (self.moment(), host.servers.owner(key));
        let server_time = host.servers.time_of(key);
        let (reading, key) = (host.clock.next(), is_take.then(|| host.servers.moment(key)));
        SendState { at, event, reading, is_alone, key, node, server_time }
    }

    fn log_answer(&self, operations: &[KeyedOperation<'_>], result: &Result<Answer, StoreError>) {
        let index = self.host.index;
        let shown = Shown(operations.iter().map(|it| (it.key, it.operation)));
        match result {
            Ok(answer) => self.log.add(format_args!(
                "process {index}: {shown}: {:?} by the {}",
                answer.to_integers(),
                answer.source.as_str()
            )),
            Err(error) => self.log.add(format_args!("process {index}: {shown}: {error}")),
        }
    }

    fn answered(
        &self,
        call: KeyedOperation<'_>,
        sent: SendState,
        result: &Result<Answer, StoreError>,
    ) {
        let host = &self.host;
        let KeyedOperation { key, policy, operation } = call;
        self.log_answer(&[call], result);
        let by_oracle = match (result, sent.key) {
            (Ok(Answer { source: Source::Cache, .. }), Some(before)) => {
                [before, host.servers.moment(key)].map(|it| peek(&it, call))
            }
            _ => [None, None],
        };
        self.checks.answered(&AnsweredOperation {
            process: host.index,
            number: host.number,
            key,
            nodes: [sent.node, host.servers.owner(key)],
            policy,
            kind: Kind::of(operation),
            operation,
            sent: sent.at.millis,
            event: sent.event,
            is_alone: sent.is_alone,
            paused: self.moment().closed_for - sent.at.closed_for,
            result,
            readings: (sent.reading, host.clock.latest()),
            server_times: [sent.server_time, host.servers.time_of(key)],
            by_oracle,
        });
    }
}

/// The answer of the oracle to a peek in place of a take.
fn peek(moment: &KeyMoment, take: KeyedOperation<'_>) -> Option<Decision> {
    let KeyedOperation { key, policy, operation } = take;
    moment.decide(key, policy.policy(), Operation::Peek(operation.cost())).ok()
}

// The simulated environment of a process: its clock, connections, tasks and random numbers.

/// Turns of the tasks of a process within a millisecond. More are a livelock.
const MAX_TURNS: u64 = 100_000;
/// A task that could run yields to all others once in this number of turns, as threads do.
const YIELD_ONE_IN: u64 = 16;

/// The deadline of an operation, in milliseconds: the default of the store.
pub(super) const DEADLINE: u64 = 15;
/// Milliseconds that the handshake of a connection takes, and the commands that the store sends before it uses the connection.
const HAND_SHAKE: u64 = 2;
const SET_UP: u64 = 4;

/// The simulated environment of a process.
pub(super) struct Host {
    pub(super) index: usize,
    /// Its number among all processes that were started.
    pub(super) number: u64,
    pub(super) time: VirtualTime,
    pub(super) clock: Arc<HostClock>,
    pub(super) random: RandomByTime,
    /// The order in which tasks run that could.
    pub(super) order: RandomByTime,
    /// To each server.
    pub(super) links: Vec<Arc<Link>>,
    pub(super) servers: Arc<Servers>,
    pub(super) checks: Arc<Checks>,
    pub(super) gate: Arc<Gate>,
    pub(super) tasks: Mutex<Vec<AbortHandle>>,
    /// Operations without an answer.
    pub(super) open: AtomicU64,
}

/// Keeps the tasks of a process from running while it is paused.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// It stays closed when the process has ended.
    pub(super) is_closed: AtomicBool,
    pub(super) has_ended: AtomicBool,
    /// Milliseconds that it was closed in all.
    pub(super) closed_for: AtomicU64,
    pub(super) waiting: Mutex<Vec<Waker>>,
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
    pub(super) fn gated<'a, T>(&self, task: impl Future<Output = T> + Send + 'a) -> Gated<'a, T> {
        Gated {
            task: Box::pin(task),
            gate: Arc::clone(&self.gate),
            order: self.order.clone(),
            checks: Arc::clone(&self.checks),
            time: self.time.clone(),
        }
    }

    /// Runs a task in the background, as long as the process runs.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
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
        let (servers, index, number) = (Arc::clone(&self.servers), self.index, self.number);
        let node = servers.node_at(port);
        let (link, time) = (Arc::clone(&self.links[node]), self.time.clone());
        let (checks, is_of_cluster) = (Arc::clone(&self.checks), servers.is_cluster());
        let connects = move |millis| checks.connects(index, time.millis() + millis, is_of_cluster);
        Box::pin(async move {
            connects(HAND_SHAKE);
            link.shake_hands().await;
            connects(SET_UP);
            if !servers.node(node).is_up() {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let (ours, theirs) = link.open();
            tokio::spawn(serve(servers, node, (index, number), theirs));
            Ok(Box::new(ours) as Box<dyn Connection>)
        })
    }
}

/// A task that runs only while the gate is open.
pub(super) struct Gated<'a, T> {
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

// The store below the library: that of a process, with a check of each answer.

/// The store of a process. It does not answer while the process is paused, and never after it has ended.
#[derive(Debug)]
pub(super) struct CheckedStore {
    process: Process,
    record: Arc<Record>,
}

/// What the operations on one key have done in a store.
#[derive(Debug, Default)]
pub(super) struct Record {
    /// Units that are reserved for a time to come, and that no refund has returned.
    reserved: AtomicI64,
    /// Operations that are not answered yet.
    open: AtomicUsize,
    /// When the last renewal of a hold ended, in milliseconds. `u64::MAX` once the hold is over.
    renewed: Mutex<BTreeMap<Vec<u8>, u64>>,
    /// The attempts to open a hold, by its id.
    attempts: Mutex<BTreeMap<Vec<u8>, Attempts>>,
}

/// The attempts to open a hold, in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempts {
    first: u64,
    last: u64,
    /// The longest pause between two of them, beyond the eighth of the time since the first that it may take.
    pub(super) late: u64,
    /// The longest pause.
    pub(super) longest: u64,
}

/// An operation that is not answered yet. It may be dropped.
struct Open<'a>(&'a AtomicUsize);

impl<'a> Open<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl CheckedStore {
    pub(super) fn new(process: &Process) -> Self {
        Self { process: process.clone(), record: Arc::default() }
    }

    pub(super) fn record(&self) -> Arc<Record> {
        Arc::clone(&self.record)
    }
}

impl Record {
    /// When the last renewal of a hold ended, in milliseconds; never again once it is over. `None` if there was none.
    pub(super) fn renewed(&self, id: &[u8]) -> Option<u64> {
        self.renewed.lock().get(id).copied()
    }

    /// The units that are reserved, once all operations are answered.
    pub(super) fn reserved(&self) -> Option<i64> {
        (self.open.load(Ordering::Relaxed) == 0).then(|| self.reserved.load(Ordering::Relaxed))
    }

    /// The attempts to open a hold.
    pub(super) fn attempts(&self, id: &[u8]) -> Option<Attempts> {
        self.attempts.lock().get(id).copied()
    }

    fn attempt(&self, id: &[u8], now: u64) {
        let mut attempts = self.attempts.lock();
        let new = Attempts { first: now, last: now, late: 0, longest: 0 };
        let it = attempts.entry(id.to_vec()).or_insert(new);
        let pause = now - it.last;
        it.longest = it.longest.max(pause);
        it.late = it.late.max(pause.saturating_sub((it.last - it.first) / 8));
    }

    async fn observe(
        &self,
        operation: Option<Operation<'_>>,
        time: &VirtualTime,
        answers: impl Future<Output = Result<Answer, StoreError>>,
    ) -> Result<Answer, StoreError> {
        if let Some(Operation::Refund(cost)) = operation {
            self.reserved.fetch_sub(cost.into(), Ordering::Relaxed);
        }
        let open = Open::new(&self.open);
        let sent = time.millis();
        if let Some(Operation::Hold { id, .. }) = operation {
            self.attempt(id, sent);
        }
        let result = answers.await;
        drop(open);
        if let Some(Operation::Hold { id, .. }) = operation
            && let Some(attempts) = self.attempts.lock().get_mut(id)
        {
            attempts.last = time.millis();
        }
        let took = Duration::from_millis(time.millis() - sent);
        if let Some(Operation::Renew { id, .. }) = operation {
            let is_over = result.as_ref().is_ok_and(|it| !it.allowed());
            let at = if is_over { u64::MAX } else { time.millis() };
            self.renewed.lock().insert(id.to_vec(), at);
        }
        if let (Ok(answer), Some(Operation::Take(cost) | Operation::Reserve { cost, .. })) =
            (&result, operation)
            && answer.source != Source::Fallback
            // Longer than a refund takes.
            && answer.delay() > 2 * took
        {
            self.reserved.fetch_add(cost.into(), Ordering::Relaxed);
        }
        result
    }
}

impl Store for CheckedStore {
    type Error = StoreError;

    fn apply<'a>(&'a self, request: core::Request<'a>) -> Applied<'a, Result<Answer, StoreError>> {
        let operation = request.single().map(|it| it.operation);
        let answers =
            self.record.observe(operation, &self.process.host.time, self.process.apply(request));
        Applied::later(self.process.gated(answers))
    }

    fn apply_many<'a>(
        &'a self,
        operations: &'a [KeyedOperation<'a>],
    ) -> Applied<'a, Vec<Result<Answer, StoreError>>> {
        Applied::later(self.process.gated(self.process.apply_many(operations)))
    }

    fn read<'a>(
        &'a self,
        key: &'a [u8],
        read: ReadEntry<'a>,
    ) -> Applied<'a, Result<(), StoreError>> {
        Applied::later(self.process.gated(self.process.store().read(key, read).into_future()))
    }

    fn reset<'a>(&'a self, key: &'a [u8]) -> Applied<'a, Result<bool, StoreError>> {
        Applied::later(self.process.gated(self.process.store().reset(key).into_future()))
    }

    fn status(&self) -> StoreStatus {
        self.process.store().status()
    }
}
