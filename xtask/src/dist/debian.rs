//! The package for Debian and Ubuntu: program, man pages, completions, systemd unit and a sample configuration.
//! `crates/cli/Cargo.toml` lists its files.

use anyhow::Result;

use super::{archive, release::Release};
use crate::{shell, workspace};

pub(super) fn package(release: &Release) -> Result<()> {
    let files = release.empty("deb")?;
    archive::generate(release, &files.join("share"))?;
    archive::copy(&release.built.program, &files.join("sluicegate"))?;
    let mut deb = shell::cargo();
    deb.current_dir(workspace::root()).env("PATH", release.tools.path()?);
    deb.env("SOURCE_DATE_EPOCH", &release.epoch);
    deb.args(["deb", "-p", "sluicegate-cli", "--no-build", "--no-strip", "--output"]);
    shell::run(deb.arg(release.folder.join(format!("sluicegate_{}_amd64.deb", release.version))))
}
