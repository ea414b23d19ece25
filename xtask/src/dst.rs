//! `cargo xtask dst`: deterministic simulation, `docs/testing.md`.

use anyhow::Result;

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

/// Runs the first seeds.
pub(crate) fn run_first(seeds: u32) -> Result<()> {
    run(&["--from", "0", "--seeds", &seeds.to_string()])
}
