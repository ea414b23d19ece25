//! How the store is doing, as far as is known without asking.

use crate::{RedisStore, net::topology::Topology};

/// One server, as it was seen last.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Health {
    /// Where it is.
    pub place: String,
    /// Whether there is a connection to it.
    pub connected: bool,
    /// Whether it failed again and again, and is left alone until it answers a `PING`.
    pub left_alone: bool,
}

impl RedisStore {
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
            left_alone: link.is_left_alone(),
        });
        health.collect()
    }
}
