//! A process with a store: production code, whose clock, connections, tasks and random numbers are simulated.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
    time::Duration,
};

use anyhow::Result;
use parking_lot::Mutex;
use sluicegate_core::{
    self as core, Answer, BoxFuture, Counters, Decision, KeyedOperation, Operation, PreparedPolicy,
    Source, Store as _, StoreError, StoreStatus,
};
use sluicegate_redis::{Environment, Options, RedisStore};
use tokio::time::sleep;

use crate::{
    check::{AnsweredMultiKey, AnsweredOperation, Checks, Kind},
    event_log::{EventLog, Shown},
    host::Host,
    network::Link,
    plan::Request,
    random::{Random, RandomByTime},
    redis_model::{KeyMoment, Servers},
    time::{HostClock, VirtualTime},
};

/// An operation on a key, under a policy.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) request: Request,
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
    /// The key then, if units were to be taken.
    key: Option<KeyMoment>,
    /// The node that decides on it.
    node: usize,
}

/// A running process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    host: Arc<Host>,
    store: RedisStore,
    log: Arc<EventLog>,
    checks: Arc<Checks>,
}

impl Process {
    pub(crate) fn start(
        (index, number, time): (usize, u64, VirtualTime),
        random: &Random,
        links: &[Arc<Link>],
        servers: &Arc<Servers>,
        (log, checks): (&Arc<EventLog>, &Arc<Checks>),
        denial_cache: Duration,
    ) -> Result<Self> {
        checks.starts(index, number);
        let host = Arc::new(Host {
            index,
            number,
            time,
            clock: HostClock::new(time, random),
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
        options.environment = Some(Arc::clone(&host) as Arc<dyn Environment>);
        let store = RedisStore::new(&servers.url(), options)?;
        Ok(Self { host, store, log: Arc::clone(log), checks: Arc::clone(checks) })
    }

    /// Ends: nothing of it runs any more.
    pub(crate) fn end(&self) {
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
    pub(crate) fn unavailable(&self) -> Option<String> {
        match self.store.status() {
            StoreStatus::Remote(status) => status.unavailable,
            StoreStatus::Local(_) => None,
        }
    }

    /// The nodes whose breakers are open.
    pub(crate) fn open_breakers(&self) -> Vec<String> {
        match self.store.status() {
            StoreStatus::Remote(status) => {
                let open = status.nodes.into_iter().filter(|node| node.breaker_open);
                open.map(|node| node.endpoint).collect()
            }
            StoreStatus::Local(_) => Vec::new(),
        }
    }

    /// Operations without an answer.
    pub(crate) fn open_requests(&self) -> u64 {
        self.host.open.load(Ordering::Relaxed)
    }

    /// Does not run for a while.
    pub(crate) fn pause(&self, span: u64) {
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
    pub(crate) fn request(&self, requests: Vec<KeyRequest>, all_or_none: bool) {
        let process = self.clone();
        self.host.open.fetch_add(1, Ordering::Relaxed);
        self.host.spawn(async move {
            // The answers are checked there.
            match &requests[..] {
                requests if all_or_none => process.operate_together(requests).await,
                [request] => drop(process.operate(request).await),
                requests => process.operate_all(requests).await,
            }
            process.host.open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    /// Returns the leases, in the background.
    pub(crate) fn close(&self) {
        let store = self.store.clone();
        self.host.spawn(async move { store.close().await });
    }

    /// Applies a request.
    pub(crate) async fn operate(&self, request: &KeyRequest) -> Result<Answer, StoreError> {
        let id = request.request.hold_id();
        self.apply(request.operation(&id).into()).await
    }

    /// Applies requests in one call, each by itself.
    pub(crate) async fn operate_all(&self, requests: &[KeyRequest]) {
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
    pub(crate) async fn apply(&self, request: core::Request<'_>) -> Result<Answer, StoreError> {
        let Some(call) = request.single() else { return self.apply_multi_key(request).await };
        let sent = self.sends(call);
        let result = self.store.apply(request).await;
        self.answered(call, sent, &result);
        result
    }

    /// Applies operations in one call, each by itself, and checks the answers.
    pub(crate) async fn apply_many(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Vec<Result<Answer, StoreError>> {
        let sent: Vec<_> = operations.iter().map(|it| self.sends(*it)).collect();
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
        self.checks.requested_multi_key(host.index, operations, in_turn);
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
            in_turn,
            nodes: operations.iter().map(|it| host.servers.owner(it.key)).collect(),
            sent: sent.millis,
            paused: self.moment().closed_for - sent.closed_for,
            result: &result,
            local_time: host.clock.now(),
        });
        result
    }

    /// Resets a key, and returns whether it was used.
    pub(crate) async fn reset(&self, key: &[u8]) -> Result<bool, StoreError> {
        let kind = Kind::Other("reset", 0);
        self.checks.requested(self.host.index, self.host.number, key, kind);
        let was_used = self.store.reset(key).await;
        self.checks.ended_request(self.host.index, key, kind);
        let name = key.escape_ascii();
        self.log.add(format_args!("process {}: reset of {name}: {was_used:?}", self.host.index));
        was_used
    }

    /// Runs a future only while the process runs.
    pub(crate) fn gated<'a, T>(&self, task: impl Future<Output = T> + Send + 'a) -> BoxFuture<'a, T>
    where
        T: 'a,
    {
        Box::pin(self.host.gated(task))
    }

    /// Runs a task in the background, as long as the process runs.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.host.spawn(task);
    }

    /// The moment, as far as checks of this process need it.
    pub(crate) fn moment(&self) -> Moment {
        let closed_for = self.host.gate.closed_for.load(Ordering::Relaxed);
        Moment { millis: self.host.time.millis(), closed_for }
    }

    /// Its index among the processes, and its number among all that were started.
    pub(crate) fn numbers(&self) -> (usize, u64) {
        (self.host.index, self.host.number)
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.host.gate.has_ended.load(Ordering::Relaxed)
    }

    /// The production store of the process.
    pub(crate) const fn store(&self) -> &RedisStore {
        &self.store
    }

    /// The servers that it uses.
    pub(crate) fn servers(&self) -> &Servers {
        &self.host.servers
    }

    pub(crate) fn checks(&self) -> &Arc<Checks> {
        &self.checks
    }

    pub(crate) fn log(&self) -> &EventLog {
        &self.log
    }

    /// A request is sent. The state at that time.
    fn sends(&self, KeyedOperation { key, operation, .. }: KeyedOperation<'_>) -> SendState {
        let host = &self.host;
        self.checks.requested(host.index, host.number, key, Kind::of(operation));
        let is_take = matches!(operation, Operation::Take(_));
        let (at, node) = (self.moment(), host.servers.owner(key));
        SendState { at, key: is_take.then(|| host.servers.moment(key)), node }
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
            sent: sent.at.millis,
            paused: self.moment().closed_for - sent.at.closed_for,
            result,
            local_time: host.clock.now(),
            server_time: host.servers.time_of(key),
            by_oracle,
        });
    }
}

/// The answer of the oracle to a peek in place of a take.
fn peek(moment: &KeyMoment, take: KeyedOperation<'_>) -> Option<Decision> {
    let KeyedOperation { key, policy, operation } = take;
    moment.decide(key, policy.policy(), Operation::Peek(operation.cost())).ok()
}
