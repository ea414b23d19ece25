//! The workspace, by `cargo metadata`.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use cargo_metadata::{Metadata, MetadataCommand, Package, TargetKind};

/// The folder that holds the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().expect("xtask is a folder of the repository").to_owned()
}

/// Our packages, and all that they depend on.
pub(crate) fn metadata() -> Result<Metadata> {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .other_options(vec!["--locked".to_owned()])
        .exec()
        .context("cargo metadata failed")
}

/// Our packages alone.
pub(crate) fn packages() -> Result<Vec<Package>> {
    MetadataCommand::new()
        .manifest_path(root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .map(|metadata| metadata.packages)
        .context("cargo metadata failed")
}

/// Each benchmark with the package that has it.
pub(crate) fn benches(packages: &[Package]) -> Vec<(&str, &str)> {
    let benches = packages.iter().flat_map(|package| {
        let targets = package.targets.iter().filter(|it| it.kind.contains(&TargetKind::Bench));
        targets.map(|target| (target.name.as_str(), package.name.as_str()))
    });
    benches.collect()
}
