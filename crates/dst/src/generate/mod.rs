//! Plans from seeds. Each seed uses some kinds of policies, operations and faults, and leaves others out: a run in which
//! everything happens at once finds less.

mod library;
mod parts;
mod processes;
mod server;
mod table;

use crate::{plan::Plan, random::Random};

/// How many of a hundred seeds run a table in memory in place of a server.
const TABLES: u64 = 20;
/// How many of a hundred run a server of Sluicegate.
const SERVERS: u64 = 15;
const SERVERS_END: u64 = TABLES + SERVERS;

impl Plan {
    /// The plan of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let random = &Random::new(seed, "plan");
        match Random::new(seed, "kind").below(100) {
            0..TABLES => table::plan(seed, random),
            TABLES..SERVERS_END => server::plan(seed, random),
            _ => processes::plan(seed, random),
        }
    }
}
