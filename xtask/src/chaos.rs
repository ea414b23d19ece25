//! `cargo xtask chaos`: the store and the module on Redis and Valkey while servers, networks, clocks and
//! processes fail, in the full sizes, and a table of what was measured.

use anyhow::Result;

use crate::soak::{self, Tests};

/// What the tests read from the environment, and the full sizes.
const SIZES: [(&str, &str); 12] = [
    ("SLUICEGATE_CALLS", "200000"),
    ("SLUICEGATE_ENDING_KEYS", "1000000"),
    ("SLUICEGATE_FAILOVERS", "3"),
    ("SLUICEGATE_FLAPS_MS", "20000"),
    ("SLUICEGATE_FLUSHES_MS", "20000"),
    ("SLUICEGATE_LEASE_MS", "20000"),
    ("SLUICEGATE_LEASE_PROCESSES", "8"),
    ("SLUICEGATE_PROCESSES_MS", "10000"),
    ("SLUICEGATE_REDIS_KILLS", "10"),
    ("SLUICEGATE_SLACK_MS", "5"),
    ("SLUICEGATE_STOPPED_MS", "5000"),
    ("SLUICEGATE_WIRE_FAULTS", "1000"),
];

/// The tests that read them.
const TESTS: [Tests; 2] = [
    ("sluicegate-redis", "client", &[]),
    (
        "sluicegate-module",
        "it",
        &["clock::", "cluster::", "commands::", "killed::", "replication::"],
    ),
];

pub(crate) fn run() -> Result<()> {
    soak::run_tests(&SIZES, &TESTS)
}
