//! How the store is doing, as far as is known without asking.

use crate::{RedisStore, RoundTrips, net::topology::Topology};

/// One server, as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Where it is.
    pub place: String,
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
            Topology::One(link) => link.why_unavailable(),
            Topology::Cluster(cluster) => cluster.unavailable(),
        }
    }

    /// Every server that has been asked, as it was seen last. Asks none.
    #[must_use]
    pub fn health(&self) -> Vec<Health> {
        let links = match &self.inner().topology {
            Topology::One(link) => vec![link.clone()],
            Topology::Cluster(cluster) => cluster.links(),
        };
        let health = links.iter().map(|link| Health {
            place: link.place().to_string(),
            connected: link.is_up(),
            breaker_open: link.is_breaker_open(),
        });
        health.collect()
    }

    /// Durations of round trips to the store so far.
    #[must_use]
    pub fn round_trips(&self) -> RoundTrips {
        self.inner().context.round_trips.read()
    }
}
