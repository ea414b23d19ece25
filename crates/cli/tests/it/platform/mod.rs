//! The files of `dist` and `.github` for other programs, tested with those programs: Prometheus, the schemas of
//! Kubernetes, and actionlint.

mod github;
mod grafana;
mod kubernetes;
mod otlp;
mod prometheus;

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Output},
};

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file of the repository.
fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A file that `cargo xtask test --all` puts into `target/tools`, or into the folder of `SLUICEGATE_TOOLS`.
fn tool(path: &str) -> PathBuf {
    let tools =
        env::var_os("SLUICEGATE_TOOLS").map_or_else(|| "target/tools".into(), PathBuf::from);
    let file = root().join(tools).join(path);
    assert!(file.exists(), "{}: `cargo xtask test --all` installs it", file.display());
    file
}

/// The output of a command that must succeed.
fn succeed(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap_or_else(|error| {
        panic!("{command:?} did not start ({error}); `cargo xtask test --all` installs it")
    });
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{command:?}:\n{out}{err}");
    out.into_owned()
}

/// The blocks of code of a language in a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let open = format!("```{language}\n");
    let blocks = page.split(open.as_str()).skip(1);
    blocks.map(|block| block.split("\n```").next().unwrap()).collect()
}

/// The anchors of the headings of a page.
fn anchors(page: &str) -> Vec<String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect()
    };
    headings.map(anchor).collect()
}
