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
    Answer, BoxFuture, Counters, Decision, KeyedOperation, KeyedTake, MultiKeyAnswer,
    MultiKeyOperation, Operation, PreparedPolicy, Source, Store as _, StoreError, StoreStatus,
};
use sluicegate_redis::{Environment, Options, RedisStore};
use tokio::time::sleep;

use crate::{
    check::{AnsweredMultiKey, AnsweredOperation, Checks, Kind},
    event_log::EventLog,
    host::Host,
    network::Link,
    plan::{MultiKey, Request},
    random::{Random, RandomByTime},
    recording::MarkKind,
    redis_model::{KeyMoment, ScriptCall, ScriptOperation, Servers},
    time::{HostClock, VirtualTime},
};

/// An operation on a key, under a policy.
#[derive(Clone, Debug)]
pub(crate) struct KeyRequest {
    pub(crate) key: Vec<u8>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) request: Request,
}

/// Units of a key, to be taken together with those of others.
#[derive(Clone, Debug)]
pub(crate) struct TakeOfKey {
    pub(crate) key: Vec<u8>,
    pub(crate) policy: PreparedPolicy,
    pub(crate) cost: u32,
}

/// An operation on a key, as it is applied.
#[derive(Clone, Copy)]
pub(crate) struct KeyedCall<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) policy: &'a PreparedPolicy,
    pub(crate) operation: ScriptOperation<'a>,
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

/// What a process starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessSettings<'a> {
    /// Of all processes that run at the same time.
    pub(crate) index: usize,
    /// Of all processes that have started.
    pub(crate) number: u64,
    pub(crate) time: VirtualTime,
    pub(crate) links: &'a [Arc<Link>],
    pub(crate) servers: &'a Arc<Servers>,
    pub(crate) log: &'a Arc<EventLog>,
    pub(crate) checks: &'a Arc<Checks>,
    pub(crate) denial_cache: Duration,
}

impl Process {
    pub(crate) fn start(settings: ProcessSettings<'_>, random: &Random) -> Result<Self> {
        let ProcessSettings { index, number, time, links, servers, log, checks, denial_cache } =
            settings;
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

    /// Applies operations in the background, in one call if there are several.
    pub(crate) fn request(&self, requests: Vec<KeyRequest>) {
        let process = self.clone();
        self.host.open.fetch_add(1, Ordering::Relaxed);
        self.host.spawn(async move {
            // The answers are checked there.
            match &requests[..] {
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

    /// Applies an operation.
    pub(crate) async fn operate(&self, request: &KeyRequest) -> Result<Answer, StoreError> {
        let KeyRequest { key, policy, request } = request;
        let id = request.hold_id();
        self.apply(KeyedCall { key, policy, operation: request.operation(&id) }).await
    }

    /// Applies an operation, and checks its answer.
    pub(crate) async fn apply(&self, call: KeyedCall<'_>) -> Result<Answer, StoreError> {
        let KeyedCall { key, policy, operation } = call;
        let sent = self.sent(key, operation);
        self.checks.requested(self.host.index, self.host.number, key, Kind::of(operation));
        let result = match operation {
            ScriptOperation::OnKey(operation) => self.store.apply(key, policy, operation).await,
            ScriptOperation::OnHold(operation) => {
                self.store.apply_hold(key, policy, operation).await
            }
        };
        self.answered(call, sent, &result);
        result
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

    /// For how many milliseconds it is still paused.
    pub(crate) fn pause_left(&self) -> u64 {
        self.checks.pause_left(self.host.index)
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

    /// Applies operations on keys in one call.
    pub(crate) async fn operate_all(&self, requests: &[KeyRequest]) {
        let operations = requests.iter().filter_map(|it| match it.request.operation(&[]) {
            ScriptOperation::OnKey(operation) => {
                Some(KeyedOperation { key: &it.key, policy: &it.policy, operation })
            }
            ScriptOperation::OnHold(_) => None,
        });
        self.apply_many(&operations.collect::<Vec<_>>()).await;
    }

    /// Applies operations on keys in one call, and checks the answers.
    pub(crate) async fn apply_many(
        &self,
        operations: &[KeyedOperation<'_>],
    ) -> Vec<Result<Answer, StoreError>> {
        let call = |it: &KeyedOperation<'_>| self.sent(it.key, it.operation.into());
        let sent: Vec<_> = operations.iter().map(call).collect();
        for it in operations {
            let kind = Kind::of(it.operation.into());
            self.checks.requested(self.host.index, self.host.number, it.key, kind);
        }
        let results = self.store.apply_many(operations).await;
        for ((it, sent), result) in operations.iter().zip(sent).zip(&results) {
            let call = KeyedCall { key: it.key, policy: it.policy, operation: it.operation.into() };
            self.answered(call, sent, result);
        }
        results
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

    /// Decides on several keys together, in the background.
    pub(crate) fn request_multi_key(&self, operation: MultiKey, takes: Vec<TakeOfKey>) {
        let process = self.clone();
        self.host.open.fetch_add(1, Ordering::Relaxed);
        self.host.spawn(async move {
            process.operate_multi_key(operation, &takes).await;
            process.host.open.fetch_sub(1, Ordering::Relaxed);
        });
    }

    async fn operate_multi_key(&self, operation: MultiKey, takes: &[TakeOfKey]) {
        let id =
            if let MultiKey::Hold(id, _) = operation { format!("hold{id}") } else { String::new() };
        let operation = match operation {
            MultiKey::Take => MultiKeyOperation::Take,
            MultiKey::Peek => MultiKeyOperation::Peek,
            MultiKey::Hold(_, ttl) => {
                MultiKeyOperation::Hold { id: id.as_bytes(), ttl: Some(Duration::from_millis(ttl)) }
            }
        };
        let keyed: Vec<_> = takes
            .iter()
            .map(|TakeOfKey { key, policy, cost }| KeyedTake { key, policy, cost: *cost })
            .collect();
        // The answer is checked there.
        drop(self.apply_multi_key(operation, &keyed).await);
    }

    /// Decides on several keys, and checks the answer.
    pub(crate) async fn apply_multi_key(
        &self,
        operation: MultiKeyOperation<'_>,
        takes: &[KeyedTake<'_>],
    ) -> Result<MultiKeyAnswer, StoreError> {
        let host = &self.host;
        let (sent, closed) = (host.time.millis(), host.gate.closed_for.load(Ordering::Relaxed));
        let in_turn = !host.servers.fit_one_command(takes.iter().map(|it| it.key));
        if operation == MultiKeyOperation::Take {
            let takes = takes.iter().map(|it| (it.key.to_vec(), it.cost)).collect();
            self.checks.requested_multi_key(host.index, takes, in_turn);
        }
        let result = self.store.apply_multi_key(operation, takes).await;
        let is_cached = matches!(&result, Ok(MultiKeyAnswer { source: Source::Cache, .. }));
        let by_oracle = |KeyedTake { key, policy, cost }: &KeyedTake<'_>| {
            is_cached.then(|| peek(&host.servers.moment(key), policy, *cost)).flatten()
        };
        match &result {
            Ok(answer) => self.log.add(format_args!(
                "process {}: {operation:?} {:?}: {:?} by the {}",
                host.index,
                takes.iter().map(|it| it.key.escape_ascii().to_string()).collect::<Vec<_>>(),
                answer.decision.to_integers(),
                answer.source.as_str()
            )),
            Err(error) => {
                self.log.add(format_args!("process {}: {operation:?}: {error}", host.index));
            }
        }
        self.checks.answered_multi_key(&AnsweredMultiKey {
            process: host.index,
            number: host.number,
            operation,
            in_turn,
            nodes: takes.iter().map(|it| host.servers.owner(it.key)).collect(),
            takes: takes.iter().map(|it| (it.key, it.policy, it.cost, by_oracle(it))).collect(),
            sent,
            paused: host.gate.closed_for.load(Ordering::Relaxed) - closed,
            result: &result,
            local_time: host.clock.now(),
        });
        result
    }

    /// The state at the time when a request is sent.
    fn sent(&self, key: &[u8], operation: ScriptOperation<'_>) -> SendState {
        let is_take = matches!(operation, ScriptOperation::OnKey(Operation::Take(_)));
        let servers = &self.host.servers;
        let (at, node) = (self.moment(), servers.owner(key));
        SendState { at, key: is_take.then(|| servers.moment(key)), node }
    }

    fn answered(&self, call: KeyedCall<'_>, sent: SendState, result: &Result<Answer, StoreError>) {
        let host = &self.host;
        let KeyedCall { key, policy, operation } = call;
        let name = key.escape_ascii();
        match result {
            Ok(answer) => self.log.add(format_args!(
                "process {}: {operation} of {name}: {:?} by the {}",
                host.index,
                answer.to_integers(),
                answer.source.as_str()
            )),
            Err(error) => {
                let index = host.index;
                self.log.add(format_args!("process {index}: {operation} of {name}: {error}"));
            }
        }
        let by_oracle = match (result, sent.key, operation) {
            (
                Ok(Answer { source: Source::Cache, .. }),
                Some(before),
                ScriptOperation::OnKey(Operation::Take(cost)),
            ) => [before, host.servers.moment(key)].map(|it| peek(&it, policy, cost)),
            _ => [None, None],
        };
        let kind = match result {
            Ok(answer) if answer.source == Source::Fallback => MarkKind::Fallback,
            Ok(answer) if answer.allowed() => MarkKind::Allowed,
            Ok(_) => MarkKind::Denied,
            Err(_) => MarkKind::Error,
        };
        self.log.mark(host.time.millis(), host.index, kind);
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

/// The answer of the oracle to a peek at a key.
fn peek(key: &KeyMoment, policy: &PreparedPolicy, cost: u32) -> Option<Decision> {
    let operation = ScriptOperation::OnKey(Operation::Peek(cost));
    key.decide(ScriptCall { policy: policy.policy(), operation }).ok()
}
