//! `cargo xtask dst`: deterministic simulation, `docs/testing.md`.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};

use crate::{shell, workspace};

/// Runs the simulation with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let root = workspace::root();
    let mut command = shell::cargo();
    command.current_dir(&root);
    // For the seed of what tokio does in a random order, beside the usual builds, which the flag would throw away.
    command.env("RUSTFLAGS", "--cfg tokio_unstable");
    command.env("CARGO_TARGET_DIR", root.join("target/dst"));
    command.args(["run", "--release", "--locked", "-p", "sluicegate-dst", "--"]);
    shell::run(command.args(arguments))
}

/// Runs seeds that have not been run before, for so many minutes. The first one is printed.
#[expect(clippy::disallowed_methods, reason = "each run has other seeds")]
pub(crate) fn run_fresh(minutes: u32) -> Result<()> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is before 1970")?;
    let (from, minutes) = ((now.as_secs() * 1_000_000).to_string(), minutes.to_string());
    run(&["--from", &from, "--seeds", "1000000", "--minutes", &minutes])
}
