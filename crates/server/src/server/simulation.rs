//! A server without sockets and threads, for the deterministic simulation: its connections run in the time and on the
//! streams of the caller. Not a part of the interface of this crate.

use std::{io, sync::Arc};

use futures_util::FutureExt as _;
use sluicegate_core::{Store, StoreError, Timestamp};
use sluicegate_memory::MemoryStore;
use sluicegate_proto::{
    descriptor::{RateLimitDescriptor, rate_limit_descriptor::Entry},
    rls::{
        RateLimitRequest,
        rate_limit_response::{Code, DescriptorStatus},
    },
};

use super::parts::{Parts, registrations};
use crate::{
    Config,
    clock::ServerClock,
    net::{
        listen::Addresses,
        stream::Socket,
        worker::{LocalWorker, ServedProtocol},
    },
    policies::rule_store::{Files, ReloadReport, RuleStore},
    protocols::{
        envoy::{self, EnvoyContext},
        http, resp,
    },
    stats::{ServerStats, Stats},
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

/// A protocol that a client of a simulation speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SimulatedProtocol {
    /// That of Redis clients.
    Resp,
    /// HTTP with JSON.
    Http,
}

/// A server with one worker, which runs on the local runtime of the caller.
#[derive(Debug)]
pub struct SimulatedServer {
    parts: Parts,
    /// What calls of Envoy's rate limit service need.
    of_envoy: (Arc<EnvoyContext>, Arc<Stats>),
    worker: LocalWorker,
}

/// A decision of Envoy's rate limit service on a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DescriptorDecision {
    /// Whether the descriptor is over its limit.
    pub is_over: bool,
    /// Requests that would still pass.
    pub remaining: u32,
    /// Seconds, if the descriptor has a limit: over it, until the same request passes; otherwise until the limit is unused.
    pub reset: Option<i64>,
}

/// The index of Envoy's rate limit service among the protocols of a server.
const ENVOY: usize = 2;

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
        Ok(Self::with(config, now, OpenStore::from(store), rules))
    }

    /// Starts a server without rules, with a remote store in place of that which `config` names.
    #[must_use]
    pub fn start_on(
        config: Config,
        now: fn() -> Timestamp,
        store: Arc<dyn Store<Error = StoreError>>,
    ) -> Self {
        Self::with(config, now, OpenStore { store, local: None }, RuleStore::default())
    }

    /// Reloads the rules, after their file was changed to this text.
    ///
    /// # Errors
    /// The first error in the text; the rules in force stay active.
    pub fn reload(&self, text: String) -> Result<ReloadReport, String> {
        let decider = &self.parts.decider;
        decider.rules.replace(Ok(rules_file(text)), true, decider.now())
    }

    fn with(config: Config, now: fn() -> Timestamp, store: OpenStore, rules: RuleStore) -> Self {
        let names = [resp::PROTOCOL.name, http::PROTOCOL.name, envoy::PROTOCOL.name];
        let stats = Arc::new(ServerStats::new(names.into_iter(), 1));
        let parts = Parts::new(
            config,
            Addresses::default(),
            ServerClock::simulated(now),
            (store, rules),
            Arc::clone(&stats),
        );
        let [resp, http, _] = registrations(&parts.config);
        let served = [resp, http].map(|it| ServedProtocol {
            protocol: it.protocol,
            tls: None,
            factory: (it.service)(&parts),
        });
        let of_envoy = (Arc::new(parts.envoy_context()), Arc::clone(stats.of(ENVOY, 0)));
        let worker = LocalWorker::start(Arc::new(served), stats);
        Self { parts, of_envoy, worker }
    }

    /// Serves a client. `false`: there are too many.
    pub fn connect(
        &self,
        protocol: SimulatedProtocol,
        stream: Box<dyn SimulatedStream>,
        address: String,
    ) -> bool {
        let Parts { clients, decider, .. } = &self.parts;
        let (index, protocol) = match protocol {
            SimulatedProtocol::Resp => (0, &resp::PROTOCOL),
            SimulatedProtocol::Http => (1, &http::PROTOCOL),
        };
        let permit = clients.try_admit(protocol, address, decider.now());
        permit.is_some_and(|permit| self.worker.serve(index, Socket::Simulated(stream), permit))
    }

    /// Answers a call of Envoy's rate limit service above its socket, because the order of replies of HTTP/2 is not that of the
    /// decisions: whether the request is over its limit, and the decision on each descriptor, which is a list of keys and values.
    /// Negative `hits` are given back. `None`: the store did not answer now.
    #[must_use]
    pub fn should_rate_limit(
        &self,
        domain: &str,
        descriptors: &[Vec<(&str, String)>],
        hits: i64,
    ) -> Option<Result<(bool, Vec<DescriptorDecision>), String>> {
        let entry =
            |(key, value): &(&str, String)| Entry { key: (*key).to_owned(), value: value.clone() };
        let descriptor = |entries: &Vec<(&str, String)>| RateLimitDescriptor {
            entries: entries.iter().map(entry).collect(),
            hits_addend: Some(hits.unsigned_abs()),
            is_negative_hits: hits < 0,
            ..RateLimitDescriptor::default()
        };
        let request = RateLimitRequest {
            domain: domain.to_owned(),
            descriptors: descriptors.iter().map(descriptor).collect(),
            ..RateLimitRequest::default()
        };
        let (context, stats) = &self.of_envoy;
        let answered = envoy::call(context, stats, request).now_or_never()?;
        let is_over = |code: i32| code == i32::from(Code::OverLimit);
        let decision = |status: &DescriptorStatus| DescriptorDecision {
            is_over: is_over(status.code),
            remaining: status.limit_remaining,
            reset: status.duration_until_reset.as_ref().map(|it| it.seconds),
        };
        Some(match answered {
            Ok(response) => {
                let each = response.statuses.iter().map(decision).collect();
                Ok((is_over(response.overall_code), each))
            }
            Err(status) => Err(status.message().to_owned()),
        })
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
