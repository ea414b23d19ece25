use std::time::Duration;

use crate::{Engine, Server, TempDir, eventually_true, free_port, pause};

/// A cluster of three primaries, each with a replica: node `n + 3` is the replica of node `n` until
/// a failover.
#[derive(Debug)]
pub struct Cluster {
    /// The servers.
    pub nodes: Vec<Server>,
}

/// Slots of a cluster.
const SLOTS: usize = 16_384;

impl Cluster {
    /// Starts three primaries and three replicas, each with `arguments`, and waits until they are ready.
    #[must_use]
    pub fn start(engine: Engine, arguments: &[&str]) -> Self {
        let nodes: Vec<_> = (0..6).map(|_| Self::node(engine, arguments)).collect();
        for (index, node) in nodes[..3].iter().enumerate() {
            let (first, last) = (index * SLOTS / 3, (index + 1) * SLOTS / 3 - 1);
            node.query::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {last}"));
        }
        for node in &nodes[1..] {
            let (_, bus): (String, String) = node.query("CONFIG GET cluster-port");
            nodes[0].query::<()>(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port()));
        }
        let ids: Vec<String> = nodes.iter().map(|node| node.query("CLUSTER MYID")).collect();
        for (replica, id) in nodes[3..].iter().zip(&ids) {
            eventually_true("a node accepts its primary", || {
                replica.try_query::<()>(&format!("CLUSTER REPLICATE {id}")).is_ok()
            });
        }
        let cluster = Self { nodes };
        cluster.settled();
        cluster
    }

    /// A node that is not connected to others.
    ///
    /// # Panics
    /// If the process exits.
    #[must_use]
    pub fn node(engine: Engine, arguments: &[&str]) -> Server {
        let own = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes"];
        let short = ["--cluster-node-timeout", "1000", "--cluster-require-full-coverage", "no"];
        let mut last_log = String::new();
        for _ in 0..5 {
            // The bus has a separate port, which another process may take first, too.
            let bus = ["--cluster-port", &free_port().to_string()];
            let all = [&own[..], &short, &bus, arguments].concat();
            match Server::within(engine, TempDir::new(), &all, &[]) {
                Ok(node) => return node,
                Err(log) => last_log = log,
            }
        }
        panic!("{last_log}");
    }

    /// Waits until every running node reports a healthy cluster, and every replica is connected.
    pub fn settled(&self) {
        eventually_true("the cluster is up", || {
            pause(Duration::from_millis(20));
            self.nodes.iter().all(|node| {
                let Ok(info) = node.try_query::<String>("CLUSTER INFO") else { return true };
                let Ok(role) = node.try_query::<String>("INFO replication") else { return true };
                info.contains("cluster_state:ok")
                    && info.contains("cluster_slots_ok:16384")
                    && info.contains("cluster_known_nodes:6")
                    && (role.contains("role:master") || role.contains("master_link_status:up"))
            })
        });
    }

    /// Whether a node reports that it is a primary.
    #[must_use]
    pub fn is_primary(&self, node: usize) -> bool {
        let role = self.nodes[node].try_query::<String>("INFO replication");
        role.is_ok_and(|it| it.contains("role:master"))
    }

    /// The node with the slot of `key`, and the slot, in a cluster without moved slots and failovers.
    #[must_use]
    pub fn node_of_key(&self, key: &str) -> (usize, usize) {
        let slot: usize = self.nodes[0].query(&format!("CLUSTER KEYSLOT {key}"));
        let node = (0..3).find(|node| slot < (node + 1) * SLOTS / 3);
        (node.expect("one of the three"), slot)
    }
}
