//! `cargo xtask soak`: the tests of faults and bounds in their full sizes, and a table of their figures.

use std::{
    ffi::OsStr,
    io::{BufRead, BufReader},
    process::Stdio,
};

use anyhow::{Context, Result, bail};

use crate::{install, shell, workspace};

/// The sizes that the tests read from the environment.
const SIZES: &[(&str, &str)] = &[
    ("SLUICEGATE_AUTH_TRIES", "1000000"),
    ("SLUICEGATE_BIG_STATE", "300000"),
    ("SLUICEGATE_CONTENTION_SECONDS", "20"),
    ("SLUICEGATE_COUNTER_MINUTES", "60"),
    ("SLUICEGATE_CYCLES", "10020"),
    ("SLUICEGATE_EQUAL_KEYS", "3400000"),
    ("SLUICEGATE_FLAPS_MS", "20000"),
    ("SLUICEGATE_FLOOD", "50000000"),
    ("SLUICEGATE_FLOOD_BODIES", "1000"),
    ("SLUICEGATE_FLOOD_BYTES", "268435456"),
    ("SLUICEGATE_FLOOD_CONNECTIONS", "10"),
    ("SLUICEGATE_FLOOD_IDLE", "9900"),
    ("SLUICEGATE_GREEDY_SECONDS", "10"),
    ("SLUICEGATE_GROWING_KEYS", "400000"),
    ("SLUICEGATE_GROWING_SNAPSHOTS", "10"),
    ("SLUICEGATE_HISTORIES", "20000"),
    ("SLUICEGATE_HOLD_SECONDS", "120"),
    ("SLUICEGATE_HOSTILE", "1000000"),
    ("SLUICEGATE_IDLE_CLIENTS", "9900"),
    ("SLUICEGATE_KILLS", "200"),
    ("SLUICEGATE_KILLS_OF_HOLDS", "50"),
    ("SLUICEGATE_LABELS", "20000"),
    ("SLUICEGATE_LARGE_EVENTS", "300000"),
    ("SLUICEGATE_LATENCY_SECONDS", "60"),
    ("SLUICEGATE_LOG_EVENTS", "4000000"),
    ("SLUICEGATE_MUTATIONS", "100000"),
    ("SLUICEGATE_MALFORMED", "100000"),
    ("SLUICEGATE_MODEL_COMMANDS", "1000000"),
    ("SLUICEGATE_OLD_KEYS", "400000"),
    ("SLUICEGATE_POLICIES", "1000000"),
    ("SLUICEGATE_PROMISES", "100000"),
    ("SLUICEGATE_RECOMMEND_KEYS", "1000000"),
    ("SLUICEGATE_RELOADS", "3000"),
    ("SLUICEGATE_RESENT_STREAMS", "5000"),
    ("SLUICEGATE_RESETS", "100000"),
    ("SLUICEGATE_RESIDENT_BYTES", "268435456"),
    ("SLUICEGATE_RESTART_BYTES", "33554432"),
    ("SLUICEGATE_SCRIPT_HISTORIES", "3000"),
    ("SLUICEGATE_SERVER_MEGABYTES", "1024"),
    ("SLUICEGATE_SLOW_CLIENTS", "2000"),
    ("SLUICEGATE_SLOW_HTTP_CLIENTS", "2000"),
    ("SLUICEGATE_SLOW_READERS", "500"),
    ("SLUICEGATE_SOAK_SECONDS", "600"),
    ("SLUICEGATE_STOPS", "20"),
    ("SLUICEGATE_STREAMS", "100000"),
    ("SLUICEGATE_UNFINISHED_CLIENTS", "8000"),
    ("SLUICEGATE_VIEWERS", "1000"),
    ("SLUICEGATE_WAITERS", "999"),
    ("SLUICEGATE_WAITING_CLIENTS", "9500"),
    ("SLUICEGATE_WRONG_PASSWORDS", "5000"),
    ("SLUICEGATE_ZIPF_KEYS", "10000000"),
];

/// Packages, their test binaries, and the modules with sized tests.
pub(crate) const TESTS: &[Tests] = &[
    ("sluicegate-core", "it", &["guarantees::"]),
    ("sluicegate-simulator", "it", &["sliding_counter::"]),
    ("sluicegate-conformance", "it", &[]),
    ("sluicegate-rules", "it", &["hostile::"]),
    (
        "sluicegate-memory",
        "it",
        &[
            "bounds::",
            "conformance::",
            "hostile::",
            "resident::",
            "restart::",
            "snapshot::",
            "threads::",
        ],
    ),
    ("sluicegate-redis", "it", &["conformance::"]),
    ("sluicegate-dst", PROGRAM, &["redis_model::"]),
    ("sluicegate-server", LIBRARY, &["net::secret::", "server::"]),
    (
        "sluicegate-server",
        "it",
        &[
            "auth::",
            "clock::",
            "conformance::",
            "envoy::malformed::",
            "envoy::metrics::",
            "fairness::",
            "held::",
            "holders::",
            "holds::",
            "http::flood::",
            "http::slow::",
            "killed::",
            "latency::",
            "limits::",
            "timeouts::",
            "process::",
            "rules::",
            "slow::",
            "soak::",
            "state::",
            "stop::",
        ],
    ),
    ("sluicegate-cli", "it", &["recommend::"]),
];

/// Instead of the name of a test binary: the tests beside the code.
pub(crate) const LIBRARY: &str = "lib";

/// The same, of a package with a program.
pub(crate) const PROGRAM: &str = "bins";

/// A package, its test binary, and modules of that; an empty list means all.
pub(crate) type Tests = (&'static str, &'static str, &'static [&'static str]);

/// Prefix of the lines that report a measurement.
const FIGURE: &str = "figure: ";

pub(crate) fn run(packages: &[&str]) -> Result<()> {
    run_tests(SIZES, TESTS, packages)
}

/// Runs tests in these sizes: those of `packages`, or all if that is empty. Installs the tools that they need.
pub(crate) fn run_tests(sizes: &[(&str, &str)], tests: &[Tests], packages: &[&str]) -> Result<()> {
    let is_known = |package: &&&str| tests.iter().any(|it| it.0 == **package);
    if let Some(unknown) = packages.iter().find(|it| !is_known(it)) {
        let mut known: Vec<_> = tests.iter().map(|it| it.0).collect();
        known.dedup();
        bail!("unknown package `{unknown}`: expected {}", known.join(", "));
    }
    let path = install::ensure()?;
    let is_wanted = |test: &&Tests| packages.is_empty() || packages.contains(&test.0);
    let (mut figures, mut failed) = (Vec::new(), Vec::new());
    for &(package, binary, parts) in tests.iter().filter(is_wanted) {
        let (found, passed) = test(&path, (package, binary, parts), sizes)?;
        figures.extend(found.into_iter().map(|figure| (package, figure)));
        if !passed {
            failed.push(package);
        }
    }
    shell::announce("what was measured");
    let mut last = "";
    for (package, figure) in figures {
        if package != last {
            println!("\n{package}");
            last = package;
        }
        println!("  {figure}");
    }
    if !failed.is_empty() {
        bail!("tests of these failed: {}", failed.join(", "));
    }
    Ok(())
}

/// Runs tests one after the other, so that each has the machine to itself. Returns their measurements, and
/// whether all passed.
fn test(
    path: &OsStr,
    (package, binary, parts): Tests,
    sizes: &[(&str, &str)],
) -> Result<(Vec<String>, bool)> {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).env("PATH", path).envs(sizes.iter().copied());
    command.args(["test", "--release", "--locked", "--no-fail-fast", "-p", package]);
    match binary {
        LIBRARY => command.arg("--lib"),
        PROGRAM => command.arg("--bins"),
        binary => command.args(["--test", binary]),
    };
    command.args(["--", "--nocapture", "--test-threads", "1"]).args(parts);
    shell::announce(&shell::command_line(&command));
    let mut child = command.stdout(Stdio::piped()).spawn().context("cargo did not start")?;
    let out = child.stdout.take().context("it has no output")?;
    let mut figures = Vec::new();
    for line in BufReader::new(out).lines() {
        let line = line?;
        // The first line of a test follows its name.
        figures.extend(line.split_once(FIGURE).map(|(_, figure)| figure.to_owned()));
        println!("{line}");
    }
    Ok((figures, child.wait()?.success()))
}
