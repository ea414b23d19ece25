//! The package for Debian and Ubuntu: program, man pages, completions, systemd unit and a sample configuration.
//! `crates/cli/Cargo.toml` lists its files.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::{archive, release::Release};
use crate::{shell, workspace};

pub(super) fn package(release: &Release) -> Result<()> {
    let files = release.empty("deb")?;
    archive::generate(release, &files.join("share"))?;
    archive::copy(&release.built.program, &files.join("sluicegate"))?;
    archive::copy_page(release, "README.md", &files.join("README.md"))?;
    pack(release, &release.version, &path(release))
}

/// The package in `target/dist`.
pub(super) fn path(release: &Release) -> PathBuf {
    release.folder.join(format!("sluicegate_{}_amd64.deb", release.version))
}

/// Packs the files that [`package`] put together.
pub(super) fn pack(release: &Release, version: &str, to: &Path) -> Result<()> {
    let mut deb = shell::cargo();
    deb.current_dir(workspace::root()).env("PATH", release.tools.path()?);
    deb.env("SOURCE_DATE_EPOCH", &release.epoch);
    deb.args(["deb", "-p", "sluicegate-cli", "--no-build", "--no-strip"]);
    deb.args(["--deb-version", version, "--output"]);
    shell::run(deb.arg(to))
}
