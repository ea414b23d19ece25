//! `cargo xtask dst`: deterministic simulation, `docs/testing.md`.

use std::process::Command;

use anyhow::{Context as _, Result};

use crate::{shell, workspace};

/// Runs the simulation with these arguments, with the assertions of production code.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let mut command = shell::cargo();
    command.current_dir(workspace::root());
    command.args(["run", "--profile", "simulation", "--locked", "-p", "sluicegate-dst", "--"]);
    shell::run(command.args(arguments))
}

/// Runs fresh seeds, so many that they must reach all marks. The hash of the committed files gives the first one: other
/// files have other seeds, and equal ones the same, so that a failure can be repeated.
pub(crate) fn run_fresh() -> Result<()> {
    let mut git = Command::new("git");
    git.current_dir(workspace::root()).args(["rev-parse", "HEAD^{tree}"]);
    let tree =
        shell::output(&mut git).context("fresh seeds come from a commit: expected a clone")?;
    let digits = tree.get(..12).with_context(|| format!("`{tree}` is not a hash"))?;
    let from = u64::from_str_radix(digits, 16)?.to_string();
    println!("fresh seeds from {from}");
    run(&["--seeds", "10000", "--jobs", "2", "--from", &from])
}
