//! Health of the store, without a call to it.

use crate::{RedisStore, RoundTrips, net::topology::Topology};

/// Last known state of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Its address.
    pub endpoint: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether its circuit breaker is open: it cannot be reached, does not answer, or takes no writes, and
    /// is only probed.
    pub breaker_open: bool,
}

impl RedisStore {
    /// Why no decision of the store can be had now: its node, or every node of a cluster, is unavailable, or
    /// lets the user use no key. `None` while it can, as far as is known. Asks none.
    #[must_use]
    pub fn unavailable(&self) -> Option<String> {
        match &self.inner().topology {
            Topology::One(node) => node.why_unavailable(),
            Topology::Cluster(cluster) => cluster.unavailable(),
        }
    }

    /// The last known state of every server. Calls none.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        let nodes = match &self.inner().topology {
            Topology::One(node) => vec![node.clone()],
            Topology::Cluster(cluster) => cluster.nodes(),
        };
        let health = nodes.iter().map(|node| Health {
            endpoint: node.endpoint().to_string(),
            connected: node.is_up(),
            breaker_open: node.is_breaker_open(),
        });
        health.collect()
    }

    /// Durations of round trips to the store so far.
    #[must_use]
    pub fn round_trips(&self) -> RoundTrips {
        self.inner().context.round_trips.read()
    }
}
