//! `cargo xtask screenshots`: the pictures of the dashboard in the documentation, from a test that runs a server with
//! traffic and a browser.

use std::fs;

use anyhow::Result;

use crate::{install, shell, workspace};

pub(crate) fn run() -> Result<()> {
    let path = install::ensure()?;
    let folder = workspace::root().join("docs/figures");
    fs::create_dir_all(&folder)?;
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).env("PATH", path);
    command.env("SLUICEGATE_PICTURES", &folder).env("SLUICEGATE_PICTURE_SECONDS", "110");
    // The latency in the picture is that of a released server.
    command.args(["test", "--release", "--locked", "-p", "sluicegate-server", "--test", "it"]);
    command.args(["dashboard::pictures", "--", "--nocapture"]);
    shell::run(&mut command)
}
