//! Builds the module for Redis and Valkey.

use std::{
    env,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::cargo;

/// Cargo's target folder.
#[must_use]
pub fn target() -> PathBuf {
    env::current_exe().unwrap().ancestors().nth(3).unwrap().into()
}

/// The path of the module, built from the current code: by `cargo xtask test`, which sets `TESTS_MODULE` to it, or here.
///
/// # Panics
/// If the build fails.
#[must_use]
pub fn module() -> &'static str {
    static MODULE: OnceLock<String> = OnceLock::new();
    MODULE.get_or_init(|| {
        if let Ok(built) = env::var("TESTS_MODULE") {
            return built;
        }
        // No crate can depend on a `cdylib`, and Cargo does not give its tests the file. Therefore it is built here.
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../module/Cargo.toml");
        let mut build = cargo();
        build.args(["build", "--quiet", "--locked", "--manifest-path"]).arg(manifest);
        build.arg("--target-dir").arg(target());
        assert!(build.status().unwrap().success(), "the module does not build");
        target().join("debug/libsluicegate_module.so").to_str().unwrap().to_owned()
    })
}
