//! The Python package: builds its wheel, and runs its tests against the wheel in an environment of their own.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{install, shell, workspace};

/// What builds and tests the package, from PyPI.
const TOOLS: [&str; 27] = [
    "asgiref==3.13.0",
    "celery==5.7.0",
    "django==5.2.19",
    "dramatiq==2.2.1",
    "fastapi==0.165.0",
    "flask-limiter[cli]==4.1.1",
    "flask==3.1.3",
    "gunicorn==27.0.1",
    "hatch-vcs==0.5.0",
    "hatchling==1.33.0",
    "httpx==0.28.1",
    "limits==5.8.0",
    "maturin==1.16.0",
    "mypy==2.4.1",
    "openai==3.54.0",
    // With a Node.js of its own.
    "pyright[nodejs]==1.1.414",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-lazy-fixtures==1.4.1",
    "pytest-rerunfailures==16.7",
    "pytest-xdist==3.8.0",
    "redis==8.1.0",
    "requests==2.34.2",
    "slowapi==0.1.10",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
];
/// arq requires an older `redis`, but works with this one.
const ARQ: [&str; 2] = ["--no-deps", "arq==0.28.0"];

/// The result of a test run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tested {
    Passed,
    /// The tools cannot be installed.
    Skipped,
}

/// Builds the wheel, installs it into a fresh environment, and runs its tests, the examples of its documentation, and the
/// type checkers.
pub(crate) fn test() -> Result<Tested> {
    let (tools, arq) = (tools(), arq());
    if let Err(error) = ensure_tools() {
        shell::print(format_args!("{error:#}"));
        shell::announce(
            "SKIPPED: the tests of the Python package, whose tools cannot be installed",
        );
        return Ok(Tested::Skipped);
    }
    let mut maturin = maturin(&tools);
    let wheel = build(maturin.args(["--profile", "dev"]), &folder().join("wheel"))?;
    let python = fresh(&[&tools, &arq], &wheel)?;
    // The program is a part of it. Built alone, its dependencies have other features, and are compiled again.
    let mut program = shell::cargo();
    program.current_dir(workspace::root());
    shell::run(program.args(["test", "--workspace", "--locked", "--no-run"]))?;

    let package = workspace::root().join("bindings/python");
    let pytest = |arguments: &[&str]| {
        let mut command = Command::new(&python);
        command.current_dir(&package).args(["-m", "pytest", "--quiet"]).args(arguments);
        shell::run(&mut command)
    };
    // In several processes, because they wait more than they compute.
    pytest(&["-n", "4", "tests"])?;
    pytest(&["--doctest-modules", "--pyargs", "sluicegate"])?;
    let sources = ["python/sluicegate", "examples"];
    let mut mypy = Command::new(&python);
    shell::run(mypy.current_dir(&package).args(["-m", "mypy"]).args(sources))?;
    let mut pyright = Command::new(&python);
    pyright.current_dir(&package).args(["-m", "pyright", "--pythonpath"]).arg(&python);
    shell::run(pyright.args(sources))?;
    Ok(Tested::Passed)
}

/// Installs what builds and tests the package.
pub(crate) fn ensure_tools() -> Result<()> {
    install::ensure_python(&tools(), &TOOLS)?;
    install::ensure_python(&arq(), &ARQ)
}

/// Other limiters, each in its newest release when the figures were written down.
const PEERS: [&str; 8] = [
    "aiolimiter==1.3.0",
    // The faster parser of `redis`.
    "hiredis==3.5.0",
    "limits==5.8.0",
    "pyrate-limiter==4.5.1",
    "redis==8.1.0",
    "slowapi==0.1.10",
    "starlette==1.10.0",
    "throttled-py==3.5.0",
];

/// Compares the package with other limiters.
pub(crate) fn bench(arguments: &[&str]) -> Result<()> {
    let (tools, peers) = (tools(), workspace::root().join("target/tools/python-peers"));
    install::ensure_python(&tools, &TOOLS)?;
    install::ensure_python(&peers, &PEERS)?;
    // Redis, before the long build.
    let path = install::ensure()?;
    let mut maturin = maturin(&tools);
    let wheel =
        build(maturin.args(["--profile", "production"]), &folder().join("wheel-production"))?;
    let mut bench = Command::new(fresh(&[&peers], &wheel)?);
    bench.arg(workspace::root().join("bindings/python/bench/bench.py")).env("PATH", path);
    shell::run(bench.args(arguments))
}

/// Builds the wheel of a release into `folder`, and returns its path: linked by zig, which is in the search path `path`, against
/// the glibc of `manylinux`.
pub(crate) fn release_wheel(
    path: &OsStr,
    flags: &str,
    epoch: &str,
    folder: &Path,
) -> Result<PathBuf> {
    let tools = tools();
    install::ensure_python(&tools, &TOOLS)?;
    let mut maturin = maturin(&tools);
    maturin.args(["--profile", "production", "--zig", "--compatibility", "manylinux2014"]);
    maturin.args(["--target", "x86_64-unknown-linux-gnu"]);
    maturin.env("PATH", path).env("CARGO_ENCODED_RUSTFLAGS", flags).env("SOURCE_DATE_EPOCH", epoch);
    build(&mut maturin, folder)
}

/// The kind of wheel to build.
fn folder() -> PathBuf {
    workspace::root().join("target/python")
}

fn tools() -> PathBuf {
    workspace::root().join("target/tools/python")
}

fn arq() -> PathBuf {
    workspace::root().join("target/tools/python-arq")
}

fn maturin(tools: &Path) -> Command {
    let mut maturin = shell::calling_cargo(tools.join("bin/maturin"));
    maturin.current_dir(workspace::root().join("bindings/python"));
    maturin.args(["build", "--locked", "--quiet"]);
    maturin
}

/// Runs `maturin`, and returns the path of the wheel in `folder`.
fn build(maturin: &mut Command, folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    shell::run(maturin.arg("--out").arg(folder))?;
    let mut files = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(files.next().context("maturin has built no wheel")??.path())
}

/// The Python of an environment with the wheel, and with the packages of other environments, but without the sources.
fn fresh(others: &[&Path], wheel: &Path) -> Result<PathBuf> {
    let folder = folder().join("venv");
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = folder.join("bin/python");
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    shell::run(pip.arg(wheel))?;
    // The packages of the others, after those of this environment.
    let packages = |python: &Path| {
        let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
        let path = shell::output(Command::new(python).args(["-c", code]));
        path.map(PathBuf::from).context("Python does not tell where its packages are")
    };
    let link = packages(&python)?.join("tools.pth");
    let mut folders = String::new();
    for other in others {
        folders += &format!("{}\n", packages(&other.join("bin/python"))?.display());
    }
    fs::write(&link, folders).with_context(|| link.display().to_string())?;
    Ok(python)
}
