//! `cargo xtask bench`: one benchmark by its name. Those that compare us with others are the crate
//! `bench`; the rest are bench targets of the crates that they are about.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{install, javascript, python, shell, workspace};

/// Comparisons that the crate `bench` can run.
const COMPARISONS: [&str; 16] = [
    "memory",
    "resp",
    "http",
    "grpc",
    "dashboard",
    "denials",
    "redis",
    "module",
    "fleet",
    "holds",
    "quota",
    "tower",
    "python",
    "javascript",
    "replay",
    "all",
];

/// The programs, and the folders of `target/tools`, that a comparison starts.
fn needs(comparison: &str) -> &'static [&'static str] {
    match comparison {
        "resp" | "fleet" => &["redis-server"],
        "redis" | "module" | "holds" => &["redis-server", "python3", "servers"],
        "quota" => &["redis-server", "python3", "envoy"],
        "replay" => &["goaccess"],
        "all" => &["redis-server", "python3", "servers", "goaccess"],
        _ => &[],
    }
}

/// Runs the benchmark of this name; installs what it needs first.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    let packages = workspace::packages()?;
    let benches = workspace::benches(&packages);
    let names = benches.iter().map(|(name, _)| *name);
    let names: Vec<_> = COMPARISONS.into_iter().chain(names).collect();
    let Some((name, rest)) = arguments.split_first() else {
        println!("benchmarks: {}", names.join(", "));
        return Ok(());
    };
    let rest = rest.strip_prefix(&["--"]).unwrap_or(rest);
    if *name == "python" {
        return python::bench(rest);
    }
    if *name == "javascript" {
        return javascript::bench(rest);
    }
    if COMPARISONS.contains(name) {
        // Before the build, which takes minutes.
        install::ensure_some(needs(name))?;
        if ["replay", "all"].contains(name) {
            shell::run(&mut program())?;
        }
        return shell::run(&mut comparison(name, rest));
    }
    let Some((_, package)) = benches.iter().find(|(known, _)| known == name) else {
        bail!("benchmark `{name}` is unknown; there are: {}", names.join(", "));
    };
    shell::run(&mut command(package, name, rest))
}

/// Cargo, with the flags of users: without those that the repository sets for the simulation.
fn cargo() -> Command {
    let mut command = shell::cargo();
    command.current_dir(workspace::root()).env("RUSTFLAGS", "");
    command
}

/// The command that runs one benchmark.
fn command(package: &str, name: &str, arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args(["bench", "--locked", "-p", package, "--bench", name]);
    if !arguments.is_empty() {
        command.arg("--").args(arguments);
    }
    command
}

/// The command `sluicegate`, which `replay` runs as people do.
fn program() -> Command {
    let mut command = cargo();
    command.args(["build", "--profile", "production", "--locked", "-p", "sluicegate-cli"]);
    command
}

fn comparison(name: &str, arguments: &[&str]) -> Command {
    let mut command = cargo();
    command.args([
        "run",
        "--profile",
        "production",
        "--locked",
        "-p",
        "sluicegate-bench",
        "--",
        name,
    ]);
    command.args(arguments);
    command
}
