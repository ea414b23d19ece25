//! Plans from seeds. Each seed uses some kinds of policies, operations and faults, and leaves others out: a run in which
//! everything happens at once finds less.

mod parts;
mod processes;
mod table;

use crate::{plan::Plan, random::Random};

/// How many of a hundred seeds run a table in memory in place of a server.
const TABLES: u64 = 20;

impl Plan {
    /// The plan of a seed.
    pub(crate) fn from_seed(seed: u64) -> Self {
        let random = &Random::new(seed, "plan");
        if Random::new(seed, "kind").chance(TABLES) {
            return table::plan(seed, random);
        }
        processes::plan(seed, random)
    }
}
