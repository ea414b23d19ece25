//! `cargo xtask chaos`: the store and the module on Redis and Valkey while servers, networks, clocks and processes
//! fail, in the full sizes, and a table of their figures.

use anyhow::Result;

use crate::{
    loom,
    soak::{self, Tests},
};

/// The sizes that the tests read from the environment.
const SIZES: [(&str, &str); 23] = [
    ("SLUICEGATE_CALLS", "200000"),
    ("SLUICEGATE_DEMOTED_MS", "5000"),
    ("SLUICEGATE_DEMOTIONS", "50"),
    ("SLUICEGATE_ENDING_KEYS", "1000000"),
    ("SLUICEGATE_FAILOVERS", "3"),
    ("SLUICEGATE_FAILOVER_KEYS", "1000"),
    ("SLUICEGATE_FALLBACK_FLOOD", "2000000"),
    ("SLUICEGATE_FLAPPING_OUTAGES", "10"),
    ("SLUICEGATE_FLAPS_MS", "20000"),
    ("SLUICEGATE_FLUSHES_MS", "20000"),
    ("SLUICEGATE_LATE_DEADLINE_MS", "15"),
    ("SLUICEGATE_LATE_OUTAGES", "10"),
    ("SLUICEGATE_LEASE_MS", "20000"),
    ("SLUICEGATE_LEASE_PROCESSES", "8"),
    ("SLUICEGATE_LOST_REPLIES", "50"),
    ("SLUICEGATE_PARTITION_MS", "10000"),
    ("SLUICEGATE_PROCESSES_MS", "10000"),
    ("SLUICEGATE_REDIS_KILLS", "10"),
    ("SLUICEGATE_SENTINEL_FAILOVERS", "5"),
    ("SLUICEGATE_SLACK_MS", "5"),
    ("SLUICEGATE_STOPPED_MS", "5000"),
    ("SLUICEGATE_STREAMS", "100000"),
    ("SLUICEGATE_WIRE_FAULTS", "1000"),
];

/// The tests that read them.
const TESTS: [Tests; 3] = [
    ("sluicegate-redis", "client", &[]),
    ("sluicegate-redis", "it", &["holds::"]),
    (
        "sluicegate-module",
        "it",
        &[
            "clock::",
            "cluster::",
            "commands::",
            "conformance::",
            "holds::",
            "killed::",
            "replication::",
        ],
    ),
];

pub(crate) fn run(packages: &[&str]) -> Result<()> {
    soak::run_tests(&SIZES, &TESTS, packages)?;
    if packages.is_empty() { loom::leases(100_000) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace;

    /// A part without tests would pass.
    #[test]
    fn parts_are_modules_of_their_packages() {
        for &(package, binary, parts) in TESTS.iter().chain(soak::TESTS) {
            let name = package.trim_start_matches("sluicegate-");
            let package = workspace::root().join("crates").join(name);
            let modules = match binary {
                soak::LIBRARY | soak::PROGRAM => package.join("src"),
                binary => package.join("tests").join(binary),
            };
            for part in parts {
                let module = modules.join(part.trim_end_matches("::").replace("::", "/"));
                let exists = module.is_dir() || module.with_extension("rs").is_file();
                assert!(exists, "{}: no such module", module.display());
            }
        }
    }
}
