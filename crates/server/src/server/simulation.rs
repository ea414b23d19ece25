//! A server without sockets and threads, for the deterministic simulation: its connections run in the time and on the
//! streams of the caller. Not a part of the interface of this crate.

use std::{io, sync::Arc};

use sluicegate_core::Timestamp;
use sluicegate_memory::MemoryStore;

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
    protocols::{envoy, http, resp},
    stats::ServerStats,
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
