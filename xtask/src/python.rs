//! The Python package: builds its wheel, and runs its tests against the wheel in an environment of their own.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};

use crate::{extent::Extent, install, shell, workspace};

/// What tests the package every day, from PyPI.
const TOOLS: [&str; 17] = [
    "asgiref==3.13.0",
    "django==5.2.19",
    "fastapi==0.165.0",
    "flask-limiter[cli]==4.1.1",
    "flask==3.1.3",
    "gunicorn==27.0.1",
    "httpx==0.28.1",
    "limits==5.8.0",
    "pytest==9.2.0",
    "pytest-asyncio==1.5.0",
    "pytest-xdist==3.8.0",
    "redis==8.1.0",
    "requests==2.34.2",
    "slowapi==0.1.10",
    "starlette==1.10.0",
    "uvicorn==0.54.0",
    "uvloop==0.23.0",
];
/// What builds its wheel, further frameworks, type checkers, and what the tests of `limits` need: for `--all`.
const TOOLS_ALL: [&str; 10] = [
    "celery==5.7.0",
    "dramatiq==2.2.1",
    "hatch-vcs==0.5.0",
    "hatchling==1.33.0",
    "maturin==1.16.0",
    "mypy==2.4.1",
    "openai==3.54.0",
    // With a Node.js of its own.
    "pyright[nodejs]==1.1.414",
    "pytest-lazy-fixtures==1.4.1",
    "pytest-rerunfailures==16.7",
];
/// arq requires an older `redis`, but works with this one.
const ARQ: [&str; 2] = ["--no-deps", "arq==0.28.0"];
/// It requires an older gunicorn, which it does not use here.
const LITELLM: [&str; 1] = ["litellm[proxy]==1.108.7"];
/// Files of tests that import what only `--all` installs.
const FILES_ALL: [&str; 7] = [
    "tests/test_ext_arq.py",
    "tests/test_ext_celery.py",
    "tests/test_ext_dramatiq.py",
    // It imports every framework.
    "tests/test_ext_kinds.py",
    "tests/test_ext_litellm.py",
    "tests/test_ext_openai.py",
    // It runs the type checkers.
    "tests/test_types.py",
];
/// Tests that do, in other files.
const TESTS_ALL: [&str; 2] = [
    "tests/test_docs.py::test_program_of_a_document_runs",
    "tests/test_ext_limits.py::test_suite_of_limits_passes",
];

/// The result of a test run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Tested {
    Passed,
    /// The tools cannot be installed.
    Skipped,
}

/// Builds the program that some tests run, and runs all of them.
pub(crate) fn run() -> Result<()> {
    let mut program = shell::cargo();
    program.current_dir(workspace::root());
    shell::run(program.args(["build", "--locked", "-p", "sluicegate-cli"]))?;
    test(Extent::All).map(drop)
}

/// Installs the package into a fresh environment, and runs its tests and the examples in its sources; for
/// [`Extent::All`] from its wheel, with every framework, the documents and the type checkers. Needs the program and, for
/// [`Extent::Everyday`], the library that a build of the workspace has left in `target/debug`.
pub(crate) fn test(extent: Extent) -> Result<Tested> {
    if let Err(error) = ensure_tools(extent) {
        shell::print(format_args!("{error:#}"));
        shell::announce(
            "SKIPPED: the tests of the Python package, whose tools cannot be installed",
        );
        return Ok(Tested::Skipped);
    }
    let python = match extent {
        Extent::Everyday => {
            let python = fresh(&[tools()])?;
            place(&python)?;
            python
        }
        Extent::All => {
            let mut maturin = maturin();
            let wheel = build(maturin.args(["--profile", "dev"]), &folder().join("wheel"))?;
            let python = fresh(&[tools(), tools_all(), arq(), litellm()])?;
            install_wheel(&python, &wheel)?;
            python
        }
    };

    let package = workspace::root().join("bindings/python");
    let run = |module: &str, arguments: &[String]| {
        let mut command = Command::new(&python);
        shell::run(command.current_dir(&package).args(["-m", module]).args(arguments))
    };
    // In several processes, because they wait more than they compute. Tests of one group share what they start.
    let mut tests = words("--quiet -n 4 --dist loadgroup tests");
    let mut examples = words("--quiet --doctest-modules --pyargs sluicegate");
    if extent == Extent::Everyday {
        tests.extend(FILES_ALL.map(|file| format!("--ignore={file}")));
        tests.extend(TESTS_ALL.map(|test| format!("--deselect={test}")));
        examples.push("--doctest-ignore-import-errors".to_owned());
    }
    run("pytest", &tests)?;
    run("pytest", &examples)?;
    if extent == Extent::All {
        run("mypy", &words("python/sluicegate examples"))?;
        let mut pyright = words("python/sluicegate examples --pythonpath");
        pyright.push(python.display().to_string());
        run("pyright", &pyright)?;
    }
    Ok(Tested::Passed)
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Installs what builds and tests the package.
pub(crate) fn ensure_tools(extent: Extent) -> Result<()> {
    install::ensure_python(&tools(), &TOOLS)?;
    if extent == Extent::All {
        install::ensure_python(&tools_all(), &TOOLS_ALL)?;
        install::ensure_python(&arq(), &ARQ)?;
        install::ensure_python(&litellm(), &LITELLM)?;
    }
    Ok(())
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
    let peers = workspace::root().join("target/tools/python-peers");
    install::ensure_python(&tools_all(), &TOOLS_ALL)?;
    install::ensure_python(&peers, &PEERS)?;
    // Redis, before the long build.
    install::ensure_some(&["redis-server"])?;
    let path = install::path()?;
    let mut maturin = maturin();
    let wheel =
        build(maturin.args(["--profile", "production"]), &folder().join("wheel-production"))?;
    let python = fresh(&[peers])?;
    install_wheel(&python, &wheel)?;
    let mut bench = Command::new(python);
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
    install::ensure_python(&tools_all(), &TOOLS_ALL)?;
    let mut maturin = maturin();
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

fn tools_all() -> PathBuf {
    workspace::root().join("target/tools/python-all")
}

fn arq() -> PathBuf {
    workspace::root().join("target/tools/python-arq")
}

fn litellm() -> PathBuf {
    workspace::root().join("target/tools/python-litellm")
}

fn maturin() -> Command {
    let mut maturin = shell::calling_cargo(tools_all().join("bin/maturin"));
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

/// The Python of an environment with the packages of other environments.
fn fresh(others: &[PathBuf]) -> Result<PathBuf> {
    let folder = folder().join("venv");
    shell::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    let python = folder.join("bin/python");
    // The packages of the others, after those of this environment.
    let link = packages(&python)?.join("tools.pth");
    let mut folders = String::new();
    for other in others {
        folders += &format!("{}\n", packages(&other.join("bin/python"))?.display());
    }
    fs::write(&link, folders).with_context(|| link.display().to_string())?;
    Ok(python)
}

/// The folder with the packages of an environment.
fn packages(python: &Path) -> Result<PathBuf> {
    let code = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let path = shell::output(Command::new(python).args(["-c", code]));
    path.map(PathBuf::from).context("Python does not tell where its packages are")
}

fn install_wheel(python: &Path, wheel: &Path) -> Result<()> {
    let mut pip = Command::new(python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]);
    shell::run(pip.arg(wheel))
}

/// Puts the package where a wheel would, with the library that the tests of the workspace were built with. A build of its own
/// would compile its dependencies again, with other features.
fn place(python: &Path) -> Result<()> {
    let (root, packages) = (workspace::root(), packages(python)?);
    let mut copy = Command::new("cp");
    copy.arg("-r").arg(root.join("bindings/python/python/sluicegate")).arg(&packages);
    shell::run(&mut copy)?;
    let library = root.join("target/debug/lib_native.so");
    fs::copy(&library, packages.join("sluicegate/_native.abi3.so"))
        .with_context(|| library.display().to_string())?;
    let info = packages.join("sluicegate-0.dist-info");
    fs::create_dir_all(&info).with_context(|| info.display().to_string())?;
    fs::write(info.join("METADATA"), "Metadata-Version: 2.1\nName: sluicegate\nVersion: 0\n")?;
    fs::write(info.join("entry_points.txt"), "[pytest11]\nsluicegate = sluicegate.ext.pytest\n")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The everyday run would otherwise import what it does not install.
    #[test]
    fn tests_of_all_are_in_the_package() {
        let package = workspace::root().join("bindings/python");
        for file in FILES_ALL {
            assert!(package.join(file).is_file(), "{file}");
        }
        for test in TESTS_ALL {
            let (file, name) = test.split_once("::").unwrap();
            let text = fs::read_to_string(package.join(file)).unwrap();
            assert!(text.contains(&format!("\ndef {name}(")), "{test}");
        }
    }
}
