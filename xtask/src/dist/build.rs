//! The program and the module for x86-64 Linux with glibc 2.17 or later, stripped, with their debug symbols apart.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{install::ReleaseTools, shell, workspace};

/// The target of Rust; zig links against this version of glibc.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const GLIBC: &str = "2.17";
/// The platform in the names of files.
pub(super) const PLATFORM: &str = "x86_64-linux";

/// What was built.
pub(super) struct Built {
    /// The folder of the stripped files and their symbols.
    pub(super) folder: PathBuf,
    pub(super) program: PathBuf,
    pub(super) module: PathBuf,
}

pub(super) fn run(target: &Path, tools: &ReleaseTools, epoch: &str) -> Result<Built> {
    let mut build = shell::cargo();
    // Before anything else in the search path, so that `cargo zigbuild` and its zig are the pinned ones.
    build.current_dir(workspace::root()).env("PATH", tools.path()?);
    build.args(["zigbuild", "--profile", "production", "--locked"]);
    build.args(["--config", "profile.production.debug='line-tables-only'"]);
    build.args(["--target", &format!("{TARGET}.{GLIBC}")]);
    build.args(["-p", "sluicegate-cli", "-p", "sluicegate-module", "--target-dir"]).arg(target);
    build.env("CARGO_ENCODED_RUSTFLAGS", remapped_paths()?).env("SOURCE_DATE_EPOCH", epoch);
    shell::run(&mut build)?;

    let compiled = target.join(TARGET).join("production");
    let folder = target.join("dist-scratch/built");
    std::fs::create_dir_all(&folder)?;
    let program = split(&compiled.join("sluicegate"), &folder.join("sluicegate"))?;
    let module = split(&compiled.join("libsluicegate_module.so"), &folder.join("sluicegate.so"))?;
    Ok(Built { folder, program, module })
}

/// Where sources are on this machine must not be in the program: neither for who reads a backtrace, nor for who
/// compares two builds.
fn remapped_paths() -> Result<String> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cargo")));
    let registries =
        home.context("neither CARGO_HOME nor a home folder is set")?.join("registry/src");
    let mut flags =
        vec![format!("--remap-path-prefix={}=/sluicegate", workspace::root().display())];
    for registry in
        std::fs::read_dir(&registries).with_context(|| registries.display().to_string())?
    {
        flags.push(format!("--remap-path-prefix={}=/registry", registry?.path().display()));
    }
    // The separator of this variable.
    Ok(flags.join("\x1f"))
}

/// Copies `from` without its debug symbols to `to`, and the symbols beside it to `to.debug`, where debuggers find them.
fn split(from: &Path, to: &Path) -> Result<PathBuf> {
    let symbols = PathBuf::from(format!("{}.debug", to.display()));
    shell::run(Command::new("objcopy").args(["--only-keep-debug"]).arg(from).arg(&symbols))?;
    let mut strip = Command::new("objcopy");
    strip.args(["--strip-all"]).arg(format!("--add-gnu-debuglink={}", symbols.display()));
    shell::run(strip.arg(from).arg(to))?;
    Ok(to.to_owned())
}
