//! `--help`, `--version`, and the texts about wrong arguments.

use crate::run::{output, run};

#[test]
fn help_first_screen_has_examples() {
    let help = output(&["--help"], "");
    assert!(help.lines().count() <= 40, "{help}");
    for command in ["serve", "take", "peek", "reset", "info", "policy", "simulate", "Examples:"] {
        assert!(help.contains(command), "{help}");
    }
    assert!(help.contains("sluicegate simulate --policy fixed-window:100/60s:align=clock"));
}

#[test]
fn version_is_that_of_the_package() {
    assert_eq!(output(&["--version"], ""), concat!("sluicegate ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn policy_is_explained_in_words() {
    let words = output(&["policy", "gcra:30/60s:burst=16"], "");
    assert!(words.starts_with("gcra:30/1m:burst=16\n"), "{words}");
    assert!(words.contains("at most    16 units in any second, 45 in any 1m, 43215 in any day"));
}

#[test]
fn texts_of_others_are_printable() {
    let check = |arguments: &[&str], expected: &str| {
        let ended = run(arguments, "");
        assert_eq!(ended.code, Some(2));
        assert!(ended.err.contains(expected), "{}", ended.err);
        let is_raw = |it: char| it.is_control() && it != '\n';
        assert!(!ended.err.contains(is_raw), "{:?}", ended.err);
    };
    check(&["policy", "gcra:30/\u{1b}[31m"], "invalid POLICY `gcra:30/\\u{1b}[31m`: ");
    check(&["policy", "gcra:30/1m\n"], r"invalid POLICY `gcra:30/1m\n`: ");
    check(&["serve", "--listen", "\u{7f}"], "invalid --listen `\\u{7f}`: ");
    check(&["serve", "--fo\u{1b}o"], "--fo\\u{1b}o");
    check(&["serve", "--lease", "abc"], "invalid --lease `abc`: expected a whole number");
}

#[test]
fn policy_invalid_argument_is_an_error() {
    let ended = run(&["policy", "gcra:0/1s"], "");
    assert_eq!(ended.code, Some(2));
    assert!(ended.err.starts_with("error: invalid POLICY `gcra:0/1s`: "), "{}", ended.err);
    assert_eq!(run(&["take", "key"], "").code, Some(2));
    for (key, policy, expected) in [
        ("k", "gcraa:1/1s", "error: unknown algorithm `gcraa`: did you mean `gcra`?\n"),
        (
            "gcra:1/1s",
            "user7",
            "error: invalid policy `user7`: the key `gcra:1/1s` looks like a policy; expected the key first, then the policy\n",
        ),
    ] {
        let ended = run(&["take", key, policy], "");
        assert_eq!((ended.code, &*ended.err), (Some(2), expected));
    }
    assert_eq!(run(&["take", "key", "gcra:1/1s", "--cost", "4294967296"], "").code, Some(2));
    assert_eq!(run(&["simulate", "--store", "redis://localhost:1", "-"], "").code, Some(2));
    assert_eq!(run(&["serve", "--listen", "here"], "").code, Some(2));
}

#[test]
fn version_names_commit_date_and_target() {
    let version = output(&["version"], "");
    let lines: Vec<Vec<&str>> =
        version.lines().map(|line| line.split_whitespace().collect()).collect();
    let names: Vec<&str> = lines.iter().map(|words| words[0]).collect();
    assert_eq!(names, ["sluicegate", "commit", "date", "target"]);
    let [_, commit, date, target] = [0, 1, 2, 3].map(|line| lines[line][1]);
    let is_commit = commit.len() == 12 && commit.chars().all(|char| char.is_ascii_hexdigit());
    assert!(is_commit || commit == "unknown", "{version}");
    assert!(date.split('-').count() == 3 || date == "unknown", "{version}");
    assert!(target.contains('-'), "{version}");
}

/// Cargo passes the variables of a build script to the programs that `cargo run` and `cargo test` start, and `serve`
/// warns about unknown variables with its prefix.
#[test]
fn build_script_sets_no_variable_that_serve_would_warn_about() {
    let script = include_str!("../../build.rs");
    assert!(script.contains("cargo::rustc-env=BUILD_COMMIT="));
    assert!(!script.contains("cargo::rustc-env=SLUICEGATE_"));
}
