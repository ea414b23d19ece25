//! Asking Cargo for what is built beside the tests.

use std::{env, process::Command};

/// The Cargo that runs us, without what it says of us to its children: a build script that asks for the
/// like (ring's does) would build anew each time that somebody else calls it.
#[must_use]
pub fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}
