//! The JavaScript package: builds it, runs its tests, and packs it.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{install, shell, wasm, workspace};

/// The file with the lock file that the installed packages come from.
const STAMP: &str = "node_modules/.installed";

/// Builds the package and what its tests run, and runs them.
///
/// With `--pack`, it only packs the package into `target/javascript`.
pub(crate) fn run(arguments: &[&str]) -> Result<()> {
    if arguments == ["--pack"] {
        let folder = workspace::root().join("target/javascript");
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        shell::print(pack(&folder)?.display());
        return Ok(());
    }
    // Redis, and Valkey.
    install::ensure_some(&["redis-server", "servers"])?;
    build()?;
    for words in
        [["-p", "sluicegate-cli", "--bins"], ["-p", "sluicegate-conformance", "--examples"]]
    {
        let mut cargo = shell::cargo();
        shell::run(cargo.current_dir(workspace::root()).args(["build", "--locked"]).args(words))?;
    }
    let mut test = npm()?;
    if arguments.is_empty() {
        test.args(["run", "--silent", "test"]);
    } else {
        test.args(["exec", "--offline", "--", "node", "--test"]).args(arguments);
    }
    shell::run(test.env("VALKEY_SERVER", install::valkey_server()?))
}

/// Builds the module, and compiles the package around it.
pub(crate) fn build() -> Result<()> {
    wasm::run()?;
    install_packages()?;
    shell::run(npm()?.args(["run", "--silent", "build"]))
}

/// Packs the package into `folder`, and returns the path of the archive.
pub(crate) fn pack(folder: &Path) -> Result<PathBuf> {
    build()?;
    shell::run(npm()?.args(["pack", "--silent", "--pack-destination"]).arg(folder))?;
    let mut files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(files.next().context("npm has packed nothing")??.path())
}

/// Compares the package with other limiters.
pub(crate) fn bench(arguments: &[&str]) -> Result<()> {
    install::ensure_some(&["redis-server"])?;
    build()?;
    let mut module = shell::cargo();
    module.current_dir(workspace::root()).args(["build", "--locked", "--profile", "production"]);
    shell::run(module.args(["-p", "sluicegate-module"]))?;
    let module = workspace::root().join("target/production/libsluicegate_module.so");
    let mut node = Command::new("node");
    node.current_dir(package()).env("PATH", path()?).env("SLUICEGATE_MODULE", module);
    shell::run(node.arg("bench/bench.mjs").args(arguments))
}

fn package() -> PathBuf {
    workspace::root().join("bindings/javascript")
}

/// npm in the folder of the package.
pub(crate) fn npm() -> Result<Command> {
    let mut npm = Command::new("npm");
    npm.current_dir(package()).env("PATH", path()?);
    Ok(npm)
}

/// The search path, with the Cargo that runs this program: tests call it.
fn path() -> Result<std::ffi::OsString> {
    let path = install::path()?;
    let cargo = env::var_os("CARGO").map(PathBuf::from);
    let folder = cargo.as_deref().and_then(Path::parent).map(Path::to_owned);
    env::join_paths(env::split_paths(&path).chain(folder)).context("the search path is invalid")
}

/// Installs what builds and tests the package, as its lock file says.
fn install_packages() -> Result<()> {
    let lock = fs::read_to_string(package().join("package-lock.json"))?;
    let stamp = package().join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|it| it == lock) {
        return Ok(());
    }
    // The runtimes are in packages of the platform: no script is needed.
    shell::run(npm()?.args(["ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"]))?;
    fs::write(&stamp, lock).with_context(|| stamp.display().to_string())
}
