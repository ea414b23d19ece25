//! `cargo xtask loom`: the in-memory table under every order in which threads can meet, and leases under many
//! random ones.

use std::process::Command;

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    shell::run(&mut table_command())?;
    leases(5_000)
}

/// Leases under `schedules` random schedules of threads.
pub(crate) fn leases(schedules: u32) -> Result<()> {
    let mut command = lease_command();
    command.env("SLUICEGATE_SCHEDULES", schedules.to_string());
    shell::run(command.args(["--", "--nocapture"]))
}

fn table_command() -> Command {
    let mut command = test("loom");
    command.args(["--release", "-p", "sluicegate-memory", "--lib", "model"]);
    command
}

fn lease_command() -> Command {
    let mut command = test("shuttle");
    command.args(["-p", "sluicegate-redis", "--lib", "lease::schedules"]);
    command
}

/// `cargo test` under `--cfg FLAG`, beside the usual builds, which the flag would otherwise throw away.
fn test(flag: &str) -> Command {
    let root = workspace::root();
    let mut command = shell::cargo();
    command.current_dir(&root).env("RUSTFLAGS", format!("--cfg {flag}"));
    command.env("CARGO_TARGET_DIR", root.join("target").join(flag));
    command.args(["test", "--locked"]);
    command
}
