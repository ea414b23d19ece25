//! The crates, as `cargo publish` would upload them: packed and built from the packages.

use std::fs;

use anyhow::Result;

use super::release::{Release, file_name};
use crate::{shell, workspace};

pub(super) fn package(release: &Release) -> Result<()> {
    let target = release.scratch.join("crates");
    let mut package = shell::cargo();
    package.current_dir(workspace::root());
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
