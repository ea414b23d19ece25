//! `cargo xtask codegen`: makes the committed Rust of the protos anew.
//!
//! The test that finds what has drifted does it. So nothing else waits for the compiler of protos.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).env("SLUICEGATE_CODEGEN", "1");
    shell::run(command.args(["test", "--locked", "-p", "xtask", "--test", "codegen"]))
}
