//! `cargo xtask dst`: deterministic simulation, `docs/testing.md`.

use std::process::Command;

use anyhow::Result;

use crate::{shell, workspace};

/// Makes `command` use the build of the simulation. It has a flag for the seed of tokio's random choices, and its own
/// target folder, because the flag would invalidate the usual builds.
pub(crate) fn use_build(command: &mut Command) {
    command.env("RUSTFLAGS", "--cfg tokio_unstable");
    command.env("CARGO_TARGET_DIR", workspace::root().join("target/dst"));
}

/// Runs the simulation with these arguments.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut command = shell::cargo();
    command.current_dir(workspace::root());
    use_build(&mut command);
    command.args(["run", "--release", "--locked", "-p", "sluicegate-dst", "--"]);
    shell::run(command.args(arguments))
}

/// Runs the first seeds, whose runs must be the same on every machine.
pub(crate) fn run_first(seeds: u32) -> Result<()> {
    run(&["--seeds", &seeds.to_string(), "--jobs", "2", "--expect", "crates/dst/first-seeds.txt"])
}
