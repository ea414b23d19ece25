//! `cargo xtask loom`: the in-memory table under every order in which threads can meet, and leases under many
//! random ones.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let mut command = shell::cargo();
    command.current_dir(&root).env("RUSTFLAGS", "--cfg loom");
    // Beside the usual builds, which the flag would otherwise throw away.
    command.env("CARGO_TARGET_DIR", root.join("target/loom"));
    command.args(["test", "--release", "--locked", "-p", "sluicegate-memory", "--lib", "model"]);
    shell::run(&mut command)?;
    leases(5_000)
}

/// Leases under `schedules` random schedules of threads.
pub(crate) fn leases(schedules: u32) -> Result<()> {
    let root = workspace::root();
    let mut command = shell::cargo();
    command.current_dir(&root).env("RUSTFLAGS", "--cfg shuttle");
    command.env("CARGO_TARGET_DIR", root.join("target/shuttle"));
    command.args(["test", "--locked", "-p", "sluicegate-redis", "--lib", "lease::schedules"]);
    command.env("SLUICEGATE_SCHEDULES", schedules.to_string());
    shell::run(command.args(["--", "--nocapture"]))
}
