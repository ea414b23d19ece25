//! `cargo xtask chaos`: the store on Redis and Valkey while servers, networks and processes fail, in the
//! full sizes, and a table of what was measured.

use anyhow::Result;

use crate::soak;

/// What the tests read from the environment, and the full sizes.
const SIZES: [(&str, &str); 9] = [
    ("SLUICEGATE_FAILOVERS", "3"),
    ("SLUICEGATE_FLUSHES_MS", "20000"),
    ("SLUICEGATE_LEASE_MS", "20000"),
    ("SLUICEGATE_LEASE_PROCESSES", "8"),
    ("SLUICEGATE_PROCESSES_MS", "10000"),
    ("SLUICEGATE_REDIS_KILLS", "10"),
    ("SLUICEGATE_SLACK_MS", "5"),
    ("SLUICEGATE_STOPPED_MS", "5000"),
    ("SLUICEGATE_WIRE_FAULTS", "1000"),
];

pub(crate) fn run() -> Result<()> {
    soak::run_tests("client", &SIZES, &[("sluicegate-redis", &[])])
}
