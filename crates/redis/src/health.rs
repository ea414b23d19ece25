//! Health of the store, without a call to it.

use sluicegate_core::{Counters, NodeHealth, RemoteStatus};

use crate::{RedisStore, net::topology::Topology};

impl RedisStore {
    /// Why no decision of the store can be had now; see [`RemoteStatus::unavailable`].
    #[must_use]
    pub fn unavailable(&self) -> Option<String> {
        match &self.inner().topology {
            Topology::One(node) => node.why_unavailable(),
            Topology::Cluster(cluster) => cluster.unavailable(),
        }
    }

    /// The last known state of every node. Calls none.
    #[must_use]
    pub fn health(&self) -> Vec<NodeHealth> {
        let nodes = match &self.inner().topology {
            Topology::One(node) => vec![node.clone()],
            Topology::Cluster(cluster) => cluster.nodes(),
        };
        let health = nodes.iter().map(|node| NodeHealth {
            endpoint: node.endpoint.to_string(),
            connected: node.is_up(),
            breaker_open: node.breaker.is_open(),
        });
        health.collect()
    }

    /// Counters since the store was created.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.inner().context.counts.read()
    }

    pub(crate) fn remote_status(&self) -> RemoteStatus {
        RemoteStatus {
            nodes: self.health(),
            unavailable: self.unavailable(),
            counters: self.counters(),
            round_trips: self.inner().context.round_trips.read(),
        }
    }
}
