//! Runs the command.

use std::{
    io::Write,
    path::PathBuf,
    process::{Command, Stdio},
    sync::mpsc,
    time::Duration,
};

use sluicegate_testing::TEST_TIMEOUT;

/// Some commands do long work, on a busy machine.
const TIMEOUT: Duration = TEST_TIMEOUT.saturating_mul(4);

/// The command, in an environment without its variables.
pub(crate) fn sluicegate() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if ["SLUICEGATE_", "OTEL_"].iter().any(|prefix| name_text.starts_with(prefix)) {
            command.env_remove(name);
        }
    }
    command
}

/// The exit status and the output of a command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

pub(crate) fn run(arguments: &[&str], input: impl AsRef<[u8]>) -> Ended {
    let mut child = sluicegate()
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // It may end without having read everything.
    let writer = std::thread::spawn(move || stdin.write_all(&input).is_ok());
    let id = child.id().to_string();
    let (sender, ended) = mpsc::channel();
    std::thread::spawn(move || sender.send(child.wait_with_output().unwrap()));
    let Ok(output) = ended.recv_timeout(TIMEOUT) else {
        // A server that was expected to be rejected, for example, runs for ever.
        let _ = Command::new("kill").args(["-KILL", &id]).status();
        panic!("not ended within {TIMEOUT:?}: {arguments:?}");
    };
    writer.join().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

/// The output of a command that succeeds.
pub(crate) fn output(arguments: &[&str], input: impl AsRef<[u8]>) -> String {
    let ended = run(arguments, input);
    assert_eq!((ended.code, &*ended.err), (Some(0), ""), "{arguments:?}");
    ended.out
}

pub(crate) fn scenarios() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}
