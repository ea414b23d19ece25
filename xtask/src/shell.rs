//! Running other programs, with a line that says so.

use std::{
    env,
    ffi::OsStr,
    fmt::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// Says in one line what comes next.
pub(crate) fn announce(what: &str) {
    println!("==> {what}");
}

/// The Cargo that runs us, without what it says of us to its children: a build script that asks for the
/// like (ring's does) would build anew each time that somebody else calls it.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// `command` as one would type it.
pub(crate) fn words(command: &Command) -> String {
    let mut text = String::new();
    for (name, value) in command.get_envs() {
        // A changed PATH is long and says nothing.
        if let Some(value) = value.filter(|_| name != "PATH") {
            let _ = write!(text, "{}={} ", name.display(), quoted(value));
        }
    }
    let program = PathBuf::from(command.get_program());
    text += &program.file_name().unwrap_or_default().to_string_lossy();
    for argument in command.get_args() {
        let _ = write!(text, " {}", quoted(argument));
    }
    text
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    if word.contains(' ') { format!("'{word}'") } else { word.into_owned() }
}

/// Announces `command`, runs it, and fails when it does.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let text = words(command);
    announce(&text);
    let status = command.status().with_context(|| format!("`{text}` did not start"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

/// What `command` prints, or `None` where it does not start or fails.
pub(crate) fn output(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    output.status.success().then_some(text)
}

/// Whether a program of this name is in the search path.
pub(crate) fn exists(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").env("PATH", "/bin");
        assert_eq!(words(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn programs_are_looked_for_in_the_search_path() {
        assert!(exists("sh"));
        assert!(!exists("no-program-has-this-name"));
    }
}
