//! `cargo xtask codegen`: generates the committed Rust code of the protos.
//!
//! The test that finds drift does it, so that only that test compiles the compiler of protos.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).env("SLUICEGATE_CODEGEN", "1");
    shell::run(command.args(["test", "--locked", "-p", "xtask", "--test", "codegen"]))
}
