//! The crates, as `cargo publish` would upload them: packed and built from the packages.

use std::fs;

use anyhow::Result;

use super::release::{Release, file_name, git};
use crate::{shell, workspace};

/// Builds that only show that the packages are complete need no symbols.
pub(super) const NO_SYMBOLS: [(&str, &str); 1] = [("CARGO_PROFILE_DEV_DEBUG", "none")];

pub(super) fn package(release: &Release) -> Result<()> {
    // Cargo serves the packages to each other from a registry in this folder. It unpacks them into its home once per
    // registry and version, and never again, so another commit needs another registry.
    let commit = git(&["rev-parse", "HEAD"])?;
    let mut target = release.scratch.join("crates").join(&commit);
    if !target.exists() {
        target = release.empty("crates")?.join(commit);
    }
    let mut package = shell::cargo();
    package.current_dir(workspace::root()).envs(NO_SYMBOLS);
    // Without a list of packages, Cargo takes those that may be published, in the order of their dependencies.
    package.args(["package", "--workspace", "--locked", "--target-dir"]).arg(&target);
    for private in
        workspace::packages()?.iter().filter(|it| it.publish.as_ref().is_some_and(Vec::is_empty))
    {
        package.args(["--exclude", private.name.as_str()]);
    }
    shell::run(&mut package)?;
    let folder = release.folder.join("crates");
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir_all(&folder)?;
    for entry in fs::read_dir(target.join("package"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|it| it == "crate") {
            fs::copy(&path, folder.join(file_name(&path)))?;
        }
    }
    Ok(())
}
