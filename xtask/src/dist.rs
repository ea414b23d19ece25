//! `cargo xtask dist`: what is handed out to be installed elsewhere. So far the module for Redis and
//! Valkey.

use std::fs;

use anyhow::{Context, Result};

use crate::{shell, workspace};

pub(crate) fn run() -> Result<()> {
    let target = workspace::metadata()?.target_directory.into_std_path_buf();
    let mut build = shell::cargo();
    build.current_dir(workspace::root()).args(["build", "--release", "--locked"]);
    build.args(["-p", "sluicegate-module", "--config", "profile.release.strip='symbols'"]);
    shell::run(&mut build)?;

    let folder = target.join("dist");
    fs::create_dir_all(&folder).context("target/dist could not be made")?;
    let module = folder.join("sluicegate.so");
    // In one step: a server that has the old one loaded keeps it.
    let fresh = folder.join("sluicegate.so.new");
    fs::copy(target.join("release/libsluicegate_module.so"), &fresh)
        .and_then(|_| fs::rename(&fresh, &module))
        .with_context(|| format!("{} could not be written", module.display()))?;
    println!("{}", module.display());
    Ok(())
}
