//! Cargo, as a command that tests run.

use std::{env, process::Command};

/// The Cargo that runs the test, without the variables that describe the crate of the test. Build scripts that read
/// them (ring's) otherwise run again whenever another crate calls Cargo.
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
