//! The module for Redis and Valkey, built.

use std::{
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::cargo;

/// Where Cargo puts what it builds.
#[must_use]
pub fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().into()
}

/// The path of the module, as the code is now.
///
/// # Panics
/// Where it does not build.
#[must_use]
pub fn module() -> &'static str {
    static MODULE: OnceLock<String> = OnceLock::new();
    MODULE.get_or_init(|| {
        // A `cdylib` is nobody's dependency, and a test of it is not given it: Cargo is asked for it here.
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../module/Cargo.toml");
        let mut build = cargo();
        build.args(["build", "--quiet", "--locked", "--manifest-path"]).arg(manifest);
        build.arg("--target-dir").arg(target());
        assert!(build.status().unwrap().success(), "the module does not build");
        target().join("debug/libsluicegate_module.so").to_str().unwrap().to_owned()
    })
}
