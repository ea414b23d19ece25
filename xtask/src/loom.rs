//! `cargo xtask loom`: the in-memory table under every order in which threads can meet.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let root = workspace::root();
    let mut command = shell::cargo();
    command.current_dir(&root).env("RUSTFLAGS", "--cfg loom");
    // Beside the usual builds, which the flag would otherwise throw away.
    command.env("CARGO_TARGET_DIR", root.join("target/loom"));
    command.args(["test", "--release", "--locked", "-p", "sluicegate-memory", "--lib", "model"]);
    shell::run(&mut command)
}
