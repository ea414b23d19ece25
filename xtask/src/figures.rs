//! `cargo xtask figures`: draws the pictures of the documentation, and writes what its commands
//! print. That they are up to date is a test of the crate `cli`, which does the same without writing.

use anyhow::Result;

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let mut test = shell::cargo();
    test.current_dir(workspace::root()).env("SLUICEGATE_BLESS", "1");
    test.args(["test", "--locked", "-p", "sluicegate-cli", "--test", "it"]);
    test.args(["--", "documents::", "platform::grafana::"]);
    shell::run(&mut test)
}
