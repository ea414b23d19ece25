//! Runs other programs, and prints each command line.

use std::{
    cell::RefCell,
    env,
    ffi::OsStr,
    fmt::{Display, Write as _},
    fs::File,
    io::Write as _,
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};

thread_local! {
    /// The file to which this thread writes, with the programs that it runs, in place of the standard output.
    static LOG: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// From now on, this thread and the programs that it runs write to `log`.
pub(crate) fn write_to(log: File) {
    LOG.set(Some(log));
}

/// Prints a line.
pub(crate) fn print(line: impl Display) {
    LOG.with_borrow_mut(|log| match log {
        // Like the standard output, it can be full, which is no reason to stop.
        Some(log) => drop(writeln!(log, "{line}")),
        None => println!("{line}"),
    });
}

/// Prints the next step in one line.
pub(crate) fn announce(what: &str) {
    print(format_args!("==> {what}"));
}

/// The Cargo that runs this program.
pub(crate) fn cargo() -> Command {
    calling_cargo(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// A program that runs Cargo, without the variables that Cargo sets for its children: a build script that reads those
/// (as that of ring does) would rebuild whenever the caller changes.
pub(crate) fn calling_cargo(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// `command` as typed in a shell.
pub(crate) fn command_line(command: &Command) -> String {
    let mut text = String::new();
    for (name, value) in command.get_envs() {
        // A changed PATH is long and does not help the reader.
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
    let text = command_line(command);
    announce(&text);
    LOG.with_borrow(|log| {
        if let Some(log) = log {
            command.stdout(log.try_clone()?).stderr(log.try_clone()?);
        }
        anyhow::Ok(())
    })?;
    let status = command.status().with_context(|| format!("`{text}` did not start"))?;
    if !status.success() {
        bail!("`{text}` failed ({status})");
    }
    Ok(())
}

/// The output of `command`, or `None` if it does not start or fails.
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
    fn command_line_is_as_typed() {
        let mut command = Command::new("/some/where/cargo");
        command.args(["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings").env("PATH", "/bin");
        assert_eq!(command_line(&command), "RUSTDOCFLAGS='-D warnings' cargo doc --no-deps");
    }

    #[test]
    fn write_to_log_has_lines_and_output_of_programs_in_order() {
        let path = env::temp_dir().join(format!("sluicegate-xtask-log-{}", std::process::id()));
        let log = File::create(&path).unwrap();
        let writer = std::thread::spawn(|| {
            write_to(log);
            run(Command::new("sh").args(["-c", "echo one; echo two >&2"])).unwrap();
            print("three");
        });
        writer.join().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "==> sh -c 'echo one; echo two >&2'\none\ntwo\nthree\n");
    }

    #[test]
    fn exists_searches_the_path() {
        assert!(exists("sh"));
        assert!(!exists("no-program-has-this-name"));
    }
}
