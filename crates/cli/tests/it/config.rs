//! Where settings come from: the command line, the environment, a file, and what goes by default.

use std::{fs, path::PathBuf};

use crate::run::{run, sluicegate};

/// A file of its own, until dropped.
struct File(PathBuf);

impl File {
    fn with(name: &str, text: &str) -> Self {
        let name = format!("sluicegate-cli-{}-{name}.toml", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, text).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[test]
fn a_flag_outweighs_the_environment_and_that_the_file() {
    let file = File::with(
        "order",
        "max-clients = 11\nlisten = \"127.0.0.1:1\"\nhttp = \"off\"\nrequirepass = \"hunter2\"\n\
         timeout = 7\ntest-clock = true\n",
    );
    let output = sluicegate()
        .args(["serve", "--print-config", "--listen", "127.0.0.1:3"])
        .env("SLUICEGATE_CONFIG", &file.0)
        .env("SLUICEGATE_LISTEN", "127.0.0.1:2")
        .env("SLUICEGATE_TIMEOUT", "8")
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for line in [
        "listen = \"127.0.0.1:3\" # the command line",
        "timeout = 8 # the environment",
        "max-clients = 11 # the file",
        "http = \"off\" # the file",
        "test-clock = true # the file",
        "requirepass = \"********\" # the file",
        "grpc = \"127.0.0.1:8081\" # by default",
        "# workers is not set",
    ] {
        assert!(text.lines().any(|told| told == line), "`{line}` is not in:\n{text}");
    }
    assert!(!text.contains("hunter2"));
    // What is printed can be read, and then says the same.
    let again = File::with("again", &text);
    let ended = run(&["serve", "--print-config", "--config", again.0.to_str().unwrap()], "");
    let settings = |text: &str| {
        let lines = text.lines().skip(1).map(|line| line.split(" # ").next().unwrap().to_owned());
        lines.collect::<Vec<_>>()
    };
    assert_eq!(settings(&ended.out), settings(&text));
}

#[test]
fn what_is_wrong_with_a_file_is_told() {
    for (name, text, expected) in [
        ("unknown", "lisen = \"x\"", "`lisen` is no setting; there are: listen, "),
        ("value", "max-clients = \"many\"", "invalid value 'many' for '--max-clients <N>'"),
        ("type", "listen = true", "`listen` is a text or a whole number, not true"),
        ("flag", "test-clock = 1", "`test-clock` is true or false"),
        ("toml", "listen = ", "line 1"),
    ] {
        let file = File::with(name, text);
        let ended = run(&["serve", "--config", file.0.to_str().unwrap()], "");
        assert_eq!(ended.code, Some(2), "{name}");
        assert!(ended.err.contains(expected), "{name}: {}", ended.err);
    }
    let ended = run(&["serve", "--config", "/nowhere.toml"], "");
    assert!(ended.err.contains("/nowhere.toml"), "{}", ended.err);
}
