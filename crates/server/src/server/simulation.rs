//! A server without sockets and threads, for the deterministic simulation: its connections run in the time and on the
//! streams of the caller. Not a part of the interface of this crate.

use std::{collections::BTreeMap, io, sync::Arc, time::Duration};

use sluicegate_core::{Answer, KeyedOperation, StoreError, Timestamp};
use sluicegate_memory::MemoryStore;
use sluicegate_rules::{Format as RulesFormat, RuleSet};

use super::parts::{Parts, registrations};
use crate::{
    Config,
    clock::ServerClock,
    net::{
        listen::Addresses,
        stream::Socket,
        worker::{LocalWorker, ServedProtocol},
    },
    policies::rule_store::{Files, ReloadReport, RuleCounterMap, RuleStore},
    protocols::{
        envoy::{
            self,
            quota::{self, LedgerOperation, QuotaStream, Usage},
        },
        http, resp,
    },
    stats::{QuotaStats, ServerStats},
    store::open::OpenStore,
};
pub use crate::{
    net::stream::SimulatedStream,
    store::{
        disk::{Disk, LockFile, NewFile, OpenFile, PathKind},
        snapshot_file::read as read_state_file,
        state_file::StateFile,
    },
};

/// A server with one worker, which runs on the local runtime of the caller.
#[derive(Debug)]
pub struct SimulatedServer {
    parts: Parts,
    worker: LocalWorker,
}

impl SimulatedServer {
    /// Starts a server with rules, the text of their file, on the current local runtime of tokio. `now` is its clock, which must
    /// not go back.
    ///
    /// # Errors
    /// The first error in the rules.
    pub fn start_with_rules(
        config: Config,
        now: fn() -> Timestamp,
        store: MemoryStore,
        text: String,
    ) -> Result<Self, String> {
        let rules = RuleStore::of_files(&rules_file(text), now())?;
        let store = OpenStore::from(store);
        let names = [resp::PROTOCOL.name, http::PROTOCOL.name, envoy::PROTOCOL.name];
        let stats = Arc::new(ServerStats::new(names.into_iter(), 1));
        let parts = Parts::new(
            config,
            Addresses::default(),
            ServerClock::simulated(now),
            (store, rules),
            Arc::clone(&stats),
            None,
        );
        let served = registrations(&parts.config).map(|it| ServedProtocol {
            protocol: it.protocol,
            tls: None,
            factory: (it.service)(&parts),
        });
        let worker = LocalWorker::start(Arc::new(served), stats);
        Ok(Self { parts, worker })
    }

    /// Reloads the rules, after their file was changed to this text.
    ///
    /// # Errors
    /// The first error in the text; the rules in force stay active.
    pub fn reload(&self, text: String) -> Result<ReloadReport, String> {
        let decider = &self.parts.decider;
        decider.rules.replace(Ok(rules_file(text)), true, decider.now())
    }

    /// Serves a client, which speaks RESP. `false`: there are too many.
    pub fn connect(&self, stream: Box<dyn SimulatedStream>, address: String) -> bool {
        let Parts { clients, decider, .. } = &self.parts;
        let permit = clients.try_admit(&resp::PROTOCOL, address, decider.now());
        permit.is_some_and(|permit| self.worker.serve(0, Socket::Simulated(stream), permit))
    }

    /// The number of clients that are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.parts.clients.len()
    }

    /// The number of requests that wait for their key.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.parts.decider.queues.waiting()
    }

    /// Bytes that are buffered for clients beyond what each may keep.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.parts.buffers.used()
    }

    /// Answers all requests that were read, and closes all connections. May be called once.
    ///
    /// # Errors
    /// The server has panicked.
    pub async fn stop(&mut self) -> io::Result<()> {
        self.worker.stop().await.map_err(io::Error::other)
    }
}

/// The rules file of a simulated server.
fn rules_file(text: String) -> Files {
    Files::of(vec![("rules.yaml".into(), text)])
}

/// What the quota service needs besides a store, for streams that are driven by the caller.
#[derive(Debug, Default)]
pub struct SimulatedQuotas {
    rules: RuleSet,
    counters: RuleCounterMap,
    stats: Arc<QuotaStats>,
}

/// A stream of the quota service.
#[derive(Debug)]
pub struct SimulatedQuotaStream(QuotaStream);

/// An operation of a stream for the store.
#[derive(Debug)]
pub struct SimulatedOperation(LedgerOperation);

impl SimulatedOperation {
    /// The operation with its key and its policy.
    #[must_use]
    pub fn keyed(&self) -> KeyedOperation<'_> {
        self.0.keyed()
    }
}

/// What Envoy is to do with a bucket: its token bucket, or `None` to abandon it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimulatedAction {
    /// The entries of the bucket.
    pub bucket: BTreeMap<String, String>,
    /// The tokens that the bucket holds, the tokens of a fill, the seconds between fills, and the seconds that it lasts.
    pub assignment: Option<[u32; 4]>,
}

impl SimulatedQuotas {
    /// The service with the rules in the text of their file.
    ///
    /// # Errors
    /// The first error in the rules.
    pub fn new(rules: &str) -> Result<Self, String> {
        let rules = RuleSet::parse(rules, RulesFormat::Yaml).map_err(|error| error.to_string())?;
        let counters = RuleCounterMap::default();
        counters.register(rules.metric_names());
        Ok(Self { rules, counters, stats: Arc::default() })
    }

    /// How long a hold lasts, and with it the pause of a server that has lost its state.
    pub const HOLD: Duration = quota::HOLD;

    /// A stream with this random id, which assigns nothing before a time.
    #[must_use]
    pub fn stream(
        &self,
        id: [u8; 16],
        not_before: Timestamp,
        max_buckets: usize,
    ) -> SimulatedQuotaStream {
        self.stats.streams.try_add(usize::MAX);
        SimulatedQuotaStream(QuotaStream::new(id, not_before, max_buckets, Arc::clone(&self.stats)))
    }

    /// Buckets and reports without a rule, buckets above the maximum, and the assigned rate of a rule in thousandths of a request
    /// per second.
    #[must_use]
    pub fn counts(&self, rule: &str) -> [u64; 4] {
        let buckets = self.stats.buckets.count() as u64;
        let (without, rejected) = (&self.stats.without_rule, &self.stats.rejected_buckets);
        [buckets, without.count(), rejected.count(), self.counters.of_rule(rule).assigned()]
    }
}

impl SimulatedQuotaStream {
    /// Takes a message with the allowed and denied requests of buckets.
    ///
    /// # Errors
    /// Why the stream is ended.
    pub fn report(
        &mut self,
        quotas: &SimulatedQuotas,
        now: Timestamp,
        domain: &str,
        usages: Vec<(BTreeMap<String, String>, u64, u64)>,
    ) -> Result<(), String> {
        let usages =
            usages.into_iter().map(|(bucket, allowed, denied)| Usage { bucket, allowed, denied });
        let find = |domain: &str, bucket: &BTreeMap<String, String>| {
            quota::find(&quotas.rules, &quotas.counters, domain, bucket)
        };
        self.0.report(now, domain, usages, &find).map_err(|error| error.to_string())
    }

    /// When the stream needs a turn, if it does.
    #[must_use]
    pub fn next_turn(&self) -> Option<Timestamp> {
        self.0.next_turn()
    }

    /// Begins a turn; `false`: there is nothing to do.
    pub fn begin_turn(&mut self, now: Timestamp) -> bool {
        self.0.begin_turn(now)
    }

    /// The operations for the store that are next; none: the turn has ended.
    pub fn operations(&mut self) -> Vec<SimulatedOperation> {
        self.0.operations().into_iter().map(SimulatedOperation).collect()
    }

    /// Takes the answers to the operations, in their order.
    pub fn answers(&mut self, now: Timestamp, answers: Vec<Result<Answer, StoreError>>) {
        self.0.answers(now, answers);
    }

    /// The message for Envoy, after a turn.
    pub fn take_actions(&mut self) -> Vec<SimulatedAction> {
        let actions = self.0.take_actions().into_iter().map(|it| SimulatedAction {
            bucket: (*it.bucket).clone(),
            assignment: it.assignment.map(|it| {
                let lasts = u32::try_from(quota::LIFETIME.as_secs()).unwrap_or(u32::MAX);
                [it.max_tokens, it.tokens_per_fill, it.fill_interval, lasts]
            }),
        });
        actions.collect()
    }
}
