//! Sources of settings: the command line, the environment, a file, and the defaults.

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
fn config_flags_override_the_environment_and_that_the_file() {
    let file = File::with(
        "order",
        "# all\nmax-clients = 11\nlisten = \"127.0.0.1:1\"\nhttp = \"off\"\nrequirepass = \"hunter2\"\n\
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
    for line in &[
        "listen = \"127.0.0.1:3\" # command line",
        "timeout = 8 # SLUICEGATE_TIMEOUT",
        &format!("max-clients = 11 # {}: line 2", file.0.display()),
        &format!("http = \"off\" # {}: line 4", file.0.display()),
        &format!("test-clock = true # {}: line 7", file.0.display()),
        &format!("requirepass = \"********\" # {}: line 5", file.0.display()),
        "grpc = \"127.0.0.1:8081\" # default",
        "max-memory = \"1gb\" # default",
        "when-full = \"deny\" # default",
        "# dashboard = \"on\" # default, without effect: http is off",
        "# http-headers = \"ietf\" # default, without effect: http is off",
        "# on-error = \"deny\" # default, without effect: store is not set",
        "# store-deadline = \"15ms\" # default, without effect: store is not set",
        "# http-token is not set",
        "# rules is not set",
    ] {
        assert!(text.lines().any(|actual| actual == *line), "`{line}` is not in:\n{text}");
    }
    assert!(!text.contains("hunter2"));
    // The printed configuration can be read, and prints the same. A masked secret is not accepted as the secret.
    let again = File::with("masked", &text);
    let ended = run(&["serve", "--print-config", "--config", again.0.to_str().unwrap()], "");
    assert!(ended.err.contains("requirepass is masked: replace ********"), "{}", ended.err);
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with("requirepass"))
        .map(|line| format!("{line}\n"))
        .collect();
    let again = File::with("again", &text);
    let ended = run(&["serve", "--print-config", "--config", again.0.to_str().unwrap()], "");
    let settings = |text: &str| {
        let lines = text.lines().skip(1).map(|line| line.split(" # ").next().unwrap().to_owned());
        lines.collect::<Vec<_>>()
    };
    let printed = settings(&ended.out);
    let printed = printed.into_iter().filter(|line| line != "# requirepass is not set");
    assert_eq!(printed.collect::<Vec<_>>(), settings(&text));
}

#[test]
fn config_invalid_file_names_the_line_and_the_mistake() {
    for (name, text, expected) in [
        ("unknown", "lisen = \"x\"", ": line 1: unknown setting `lisen`: did you mean `listen`?"),
        (
            "value",
            "max-clients = \"many\"",
            ": line 1: invalid max-clients `many`: expected a whole number, at least 1",
        ),
        ("type", "listen = true", ": line 1: invalid listen: expected a string"),
        ("flag", "test-clock = 1", ": line 1: invalid test-clock: expected true or false"),
        ("toml", "listen = ", ": line 1: invalid TOML: "),
    ] {
        let file = File::with(name, text);
        let ended = run(&["serve", "--config", file.0.to_str().unwrap()], "");
        assert_eq!(ended.code, Some(2), "{name}");
        assert!(ended.err.contains(expected), "{name}: {}", ended.err);
    }
    let ended = run(&["serve", "--config", "/nowhere.toml"], "");
    assert_eq!(
        ended.err,
        "error: cannot read the configuration file /nowhere.toml: no such file or directory\n"
    );
}

#[test]
fn config_every_setting_is_documented() {
    let document = fs::read_to_string("../../docs/server.md").unwrap();
    let printed = run(&["serve", "--print-config"], "").out;
    for line in printed.lines().skip(1) {
        let name = line.trim_start_matches("# ").split(' ').next().unwrap();
        assert!(document.contains(&format!("`--{name}")), "--{name} is not in docs/server.md");
    }
}

/// As in Redis, a number without a unit is in seconds for some durations, which the documentation lists.
#[test]
fn config_durations_without_a_unit_are_documented() {
    let document = fs::read_to_string("../../docs/server.md").unwrap();
    let line = document.lines().find(|line| line.starts_with("| DURATION | ")).unwrap();
    let (_, listed) = line.split_once("without a unit").unwrap();
    let help = run(&["serve", "--help"], "").out;
    let names = help.split_whitespace().zip(help.split_whitespace().skip(1));
    let names: Vec<_> =
        names.filter(|(_, value)| *value == "<DURATION>").map(|(name, _)| name).collect();
    assert!(names.len() >= 7, "{names:?}");
    for name in names {
        let needed = match name {
            "--snapshot-every" => ["--state-file", "x"],
            name if name.starts_with("--store") => ["--store", "redis://a"],
            _ => ["--listen", ":1"],
        };
        let ended = run(&[&["serve", "--print-config", name, "30"], &needed[..]].concat(), "");
        let is_listed = listed.contains(&format!("`{name}`"));
        assert_eq!(ended.code, Some(if is_listed { 0 } else { 2 }), "{name}: {}", ended.err);
    }
}

/// Settings of a listener that is off are comments in what `--print-config` prints, so that the output can be read.
#[test]
fn config_settings_of_listeners_that_are_off_are_without_effect() {
    let ended = run(&["serve", "--print-config", "--http", "off", "--grpc", "off"], "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    for line in [
        "# dashboard = \"on\" # default, without effect: http is off",
        "# http-trusted-hops = 1 # default, without effect: http is off",
        "# envoy-headers = \"none\" # default, without effect: grpc is off",
        "# envoy-metadata = false # default, without effect: grpc is off",
        "# snapshot-every = \"1m\" # default, without effect: state-file is not set",
        "# unix-permissions = 700 # default, without effect: unix is not set",
    ] {
        assert!(
            ended.out.lines().any(|actual| actual == line),
            "`{line}` is not in:\n{}",
            ended.out
        );
    }
    let file = File::with("off", &ended.out);
    let again = run(&["serve", "--print-config", "--config", file.0.to_str().unwrap()], "");
    assert_eq!(again.code, Some(0), "{}", again.err);
    // What is switched off is not a setting.
    let off = "--http off --grpc off --dashboard off --http-headers none --envoy-headers none";
    let line = format!("serve --print-config {off}");
    let ended = run(&line.split(' ').collect::<Vec<_>>(), "");
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    // The environment may be that of other servers, too.
    let output = sluicegate()
        .args(["serve", "--print-config", "--grpc", "off", "--http", "off"])
        .env("SLUICEGATE_ENVOY_METADATA", "true")
        .env("SLUICEGATE_HTTP_TOKEN", "secret")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
