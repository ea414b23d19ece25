//! `cargo xtask figures`: draws the pictures of the documentation, and writes the output of its commands. A test of
//! the crate `cli` checks that they are up to date, without writing.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let mut test = shell::cargo();
    test.current_dir(workspace::root()).env("SLUICEGATE_BLESS", "1");
    test.args(["test", "--locked", "-p", "sluicegate-cli", "--test", "it"]);
    test.args(["--", "documents::", "platform::grafana::"]);
    shell::run(&mut test)
}
