//! The program and the module, stripped, with their debug symbols apart.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{install::ReleaseTools, shell, workspace};

/// glibc that programs for `*-linux-gnu` need at least: zig links against this version.
const GLIBC: &str = "2.17";

/// A target of a release.
pub(super) struct Platform {
    /// The target of Rust.
    pub(super) triple: String,
}

impl Platform {
    /// The one that every part is built for. Others have the tarball, and the module where there is glibc.
    pub(super) const FULL: &str = "x86_64-unknown-linux-gnu";

    /// The name in files: `x86_64-linux`, `aarch64-linux-musl`, `aarch64-macos`.
    pub(super) fn name(&self) -> String {
        let name = self.triple.replace("-unknown-linux-gnu", "-linux");
        name.replace("-unknown-linux", "-linux").replace("-apple-darwin", "-macos")
    }

    pub(super) fn parts(&self) -> &'static [&'static str] {
        match &*self.triple {
            Self::FULL => &[
                "tarball",
                "module",
                "deb",
                "wheel",
                "python",
                "javascript",
                "image",
                "sbom",
                "crates",
            ],
            triple if triple.ends_with("-linux-gnu") => &["tarball", "module"],
            _ => &["tarball"],
        }
    }

    pub(super) fn is_linux(&self) -> bool {
        self.triple.contains("-linux-")
    }
}

/// The result of a build.
pub(super) struct Built {
    /// The folder of the stripped files and their symbols.
    pub(super) folder: PathBuf,
    pub(super) program: PathBuf,
    pub(super) module: PathBuf,
}

pub(super) fn run(
    platform: &Platform,
    target: &Path,
    tools: &ReleaseTools,
    epoch: &str,
) -> Result<Built> {
    let triple = &platform.triple;
    let mut build = shell::cargo();
    // Before anything else in the search path, so that `cargo zigbuild` and its zig are the pinned ones.
    build.current_dir(workspace::root()).env("PATH", tools.path()?);
    build.arg(if platform.is_linux() { "zigbuild" } else { "build" });
    build.args(["--profile", "production", "--locked", "--target"]);
    let glibc = if triple.ends_with("-gnu") { format!(".{GLIBC}") } else { String::new() };
    build.arg(format!("{triple}{glibc}"));
    let symbols = if platform.is_linux() { "debug='line-tables-only'" } else { "strip='symbols'" };
    build.args(["--config", &format!("profile.production.{symbols}"), "-p", "sluicegate-cli"]);
    let has_module = platform.parts().contains(&"module");
    if has_module {
        build.args(["-p", "sluicegate-module"]);
    }
    build.arg("--target-dir").arg(target);
    build.env("CARGO_ENCODED_RUSTFLAGS", remapped_paths()?).env("SOURCE_DATE_EPOCH", epoch);
    shell::run(&mut build)?;

    let compiled = target.join(triple).join("production");
    let folder = target.join("dist-scratch/built");
    fs::create_dir_all(&folder)?;
    let (program, module) = (folder.join("sluicegate"), folder.join("sluicegate.so"));
    if platform.is_linux() {
        split(&compiled.join("sluicegate"), &program)?;
    } else {
        fs::copy(compiled.join("sluicegate"), &program)?;
    }
    if has_module {
        split(&compiled.join("libsluicegate_module.so"), &module)?;
    }
    Ok(Built { folder, program, module })
}

/// The paths of sources on this machine must not be in the program: they would disturb readers of a backtrace, and
/// make two builds differ.
pub(super) fn remapped_paths() -> Result<String> {
    let home = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cargo")));
    let registries =
        home.context("neither CARGO_HOME nor a home folder is set")?.join("registry/src");
    let mut flags =
        vec![format!("--remap-path-prefix={}=/sluicegate", workspace::root().display())];
    for registry in fs::read_dir(&registries).with_context(|| registries.display().to_string())? {
        flags.push(format!("--remap-path-prefix={}=/registry", registry?.path().display()));
    }
    // The separator of this variable.
    Ok(flags.join("\x1f"))
}

/// Copies `from` without its debug symbols to `to`, and the symbols beside it to `to.debug`, where debuggers find them.
fn split(from: &Path, to: &Path) -> Result<()> {
    let symbols = PathBuf::from(format!("{}.debug", to.display()));
    shell::run(Command::new("objcopy").args(["--only-keep-debug"]).arg(from).arg(&symbols))?;
    let mut strip = Command::new("objcopy");
    strip.args(["--strip-all"]).arg(format!("--add-gnu-debuglink={}", symbols.display()));
    shell::run(strip.arg(from).arg(to))
}
