//! What all parts of a release need.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use super::build::{self, Platform};
use crate::{install::ReleaseTools, shell, workspace};

/// One version, built, and the tools to pack it.
pub(super) struct Release {
    pub(super) version: String,
    /// Seconds since 1970 of the commit: the time of every file in an archive.
    pub(super) epoch: String,
    /// `target/dist`.
    pub(super) folder: PathBuf,
    /// For unpacked and intermediate files.
    pub(super) scratch: PathBuf,
    pub(super) platform: Platform,
    pub(super) built: build::Built,
    pub(super) tools: ReleaseTools,
}

impl Release {
    /// Builds the program and the module.
    pub(super) fn build(platform: Platform, tools: ReleaseTools) -> Result<Self> {
        let metadata = workspace::metadata()?;
        let version =
            metadata.workspace_packages().first().context("a package")?.version.to_string();
        let epoch = git(&["log", "-1", "--format=%ct"])?;
        // The manifest of the Debian package expects its files there, too.
        let target = workspace::root().join("target");
        let (folder, scratch) = (target.join("dist"), target.join("dist-scratch"));
        fs::create_dir_all(&folder).context("cannot create target/dist")?;
        let built = build::run(&platform, &target, &tools, &epoch)?;
        Ok(Self { version, epoch, folder, scratch, platform, built, tools })
    }

    /// The name of a file, with version and platform: `sluicegate-0.1.0-x86_64-linux`.
    pub(super) fn name(&self, what: &str) -> String {
        format!("{what}-{}-{}", self.version, self.platform.name())
    }

    /// An empty folder to put files together in.
    pub(super) fn empty(&self, name: &str) -> Result<PathBuf> {
        let folder = self.scratch.join(name);
        if folder.exists() {
            fs::remove_dir_all(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?;
        }
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create {}", folder.display()))?;
        Ok(folder)
    }
}

pub(super) fn git(arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    let output = shell::output(git.current_dir(workspace::root()).args(arguments));
    output.with_context(|| {
        format!("git {} failed: a release is built from a clone", arguments.join(" "))
    })
}

pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
