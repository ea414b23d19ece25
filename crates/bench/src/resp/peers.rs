//! The programs that are compared. Cargo builds them in the target folder: ours from this workspace, the peers from
//! their packages, unless they exist already.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The repository's manifest.
const MANIFEST: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
const REDIS_CELL: &str = "redis-cell = \"=0.2.2\"";
/// The compiler of protocol buffers that the build of throttlecrab-server needs.
const PROTOC: &str = "protoc-bin-vendored = \"3\"";
const PROTOC_MAIN: &str =
    "fn main() { print!(\"{}\", protoc_bin_vendored::protoc_bin_path().unwrap().display()) }";

/// Cargo's target folder, in which this program was built.
fn target() -> io::Result<PathBuf> {
    let program = env::current_exe()?;
    let folder = program.ancestors().nth(2).ok_or(io::ErrorKind::NotFound)?;
    Ok(folder.to_owned())
}

/// The folder for the peers, and for the logs of servers.
pub(crate) fn folder() -> io::Result<PathBuf> {
    let folder = target()?.join("bench-peers");
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Our server, built from the current code.
pub(crate) fn ours() -> io::Result<PathBuf> {
    let target = target()?;
    let mut build =
        cargo(&["build", "--profile", "production", "--locked", "-p", "sluicegate-cli"]);
    run(build.args(["--manifest-path", MANIFEST, "--target-dir"]).arg(&target))?;
    Ok(target.join("production/sluicegate"))
}

/// Our module, built from the current code.
pub(crate) fn module() -> io::Result<PathBuf> {
    let target = target()?;
    let mut build =
        cargo(&["build", "--profile", "production", "--locked", "-p", "sluicegate-module"]);
    run(build.args(["--manifest-path", MANIFEST, "--target-dir"]).arg(&target))?;
    Ok(target.join("production/libsluicegate_module.so"))
}

/// redis-cell, as a module that Redis loads. Cargo does not build the `cdylib` of a dependency; therefore the package
/// is vendored and built in its own folder.
pub(crate) fn redis_cell() -> io::Result<PathBuf> {
    let scratch = folder()?.join("redis-cell");
    let module = scratch.join("built/release/libredis_cell.so");
    if !module.exists() {
        package(&scratch, REDIS_CELL, "")?;
        run(cargo(&["vendor", "--quiet", "vendor"]).current_dir(&scratch).stdout(Stdio::null()))?;
        let mut build = cargo(&["build", "--release", "--quiet", "--target-dir", "built"]);
        build.args(["--manifest-path", "vendor/redis-cell/Cargo.toml"]);
        // Warnings of this old package do not matter here.
        run(build.current_dir(&scratch).env("RUSTFLAGS", "--cap-lints=allow"))?;
    }
    Ok(module)
}

/// throttlecrab-server.
pub(crate) fn throttlecrab() -> io::Result<PathBuf> {
    let folder = folder()?;
    let program = folder.join("bin/throttlecrab-server");
    if !program.exists() {
        let mut install = cargo(&["install", "--quiet", "--locked", "throttlecrab-server"]);
        install.args(["--version", "^0.4", "--root"]).arg(&folder);
        install.arg("--target-dir").arg(folder.join("build")).env("PROTOC", protoc(&folder)?);
        run(&mut install)?;
    }
    Ok(program)
}

/// The path of `protoc`: from the environment, or from a package.
fn protoc(folder: &Path) -> io::Result<PathBuf> {
    if let Some(set) = env::var_os("PROTOC") {
        return Ok(set.into());
    }
    let scratch = folder.join("protoc");
    package(&scratch, PROTOC, PROTOC_MAIN)?;
    let output = cargo(&["run", "--quiet", "--target-dir", "built"])
        .current_dir(&scratch)
        .stderr(Stdio::inherit())
        .output()?;
    let path = String::from_utf8(output.stdout).map_err(io::Error::other)?;
    if path.is_empty() { Err(io::Error::other("`protoc` is unavailable")) } else { Ok(path.into()) }
}

/// A package whose only purpose is to fetch a dependency.
fn package(folder: &Path, dependency: &str, main: &str) -> io::Result<()> {
    fs::create_dir_all(folder.join("src"))?;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nedition = \"2024\"\n\n[dependencies]\n{dependency}\n\n\
         [workspace]\nexclude = [\"vendor\"]\n"
    );
    fs::write(folder.join("Cargo.toml"), manifest)?;
    fs::write(folder.join(if main.is_empty() { "src/lib.rs" } else { "src/main.rs" }), main)
}

fn cargo(arguments: &[&str]) -> Command {
    let mut command = sluicegate_testing::cargo();
    command.args(arguments);
    command
}

fn run(command: &mut Command) -> io::Result<()> {
    let words: Vec<_> = command.get_args().map(|it| it.to_string_lossy()).collect();
    let words = words.join(" ");
    println!("==> cargo {words}");
    let status = command.status()?;
    if !status.success() {
        return Err(io::Error::other(format!("`cargo {words}` failed ({status})")));
    }
    Ok(())
}
