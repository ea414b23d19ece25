//! Servers with the module.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use sluicegate_testing::{Engine, Server};

/// The folder that Cargo builds into: the one that this test was built into.
pub(crate) fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// The module, as the code is now.
pub(crate) fn module() -> &'static str {
    static MODULE: OnceLock<String> = OnceLock::new();
    MODULE.get_or_init(|| {
        // A test of a `cdylib` is not given the library: Cargo is asked for it here.
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "sluicegate-module", "--manifest-path"]);
        build.arg(manifest).arg("--target-dir").arg(target());
        assert!(build.status().unwrap().success(), "the module does not build");
        target().join("debug/libsluicegate_module.so").to_str().unwrap().to_owned()
    })
}

/// With the module and nothing else.
pub(crate) fn serve(engine: Engine) -> Server {
    serve_with(engine, &[])
}

/// With the module, which takes `AT`.
pub(crate) fn with_test_clock(engine: Engine) -> Server {
    serve_with(engine, &["test-clock", "yes"])
}

/// With the module loaded with these arguments.
pub(crate) fn serve_with(engine: Engine, arguments: &[&str]) -> Server {
    Server::with(engine, &[&["--loadmodule", module()], arguments].concat())
}
