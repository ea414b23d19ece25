//! The servers and the peers' packages.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{self, Stdio},
};

use sluicegate_testing::Engine;

use crate::{
    pin,
    resp::{
        peers::folder,
        servers::{Server, free_address},
    },
};

/// The peers, with their versions.
const PACKAGES: [&str; 2] = ["throttled-py==3.5.0", "limits==5.8.0"];

/// The package folder of a Python environment.
fn packages(environment: &Path) -> Option<PathBuf> {
    let mut versions = fs::read_dir(environment.join("lib")).ok()?.map_while(Result::ok);
    versions.find_map(|it| Some(it.path().join("site-packages")).filter(|it| it.exists()))
}

/// The peers' packages.
pub(super) struct Peers(PathBuf);

impl Peers {
    /// Installs the packages if necessary.
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

    /// Starts a server on the servers' core.
    pub(super) fn start(&self, engine: Engine) -> io::Result<Server> {
        let address = free_address()?;
        let mut command = process::Command::new(engine.program()?);
        command.args(["--bind", "127.0.0.1", "--port", &address.port().to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"]);
        let log = folder()?.join(format!("{}.log", engine.name().replace(' ', "-")));
        let (_, core) = pin::load_and_server_core()?;
        Server::start(command, address, core, &log)
    }
}

fn run(command: &mut process::Command) -> io::Result<()> {
    let status = command.stdin(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{command:?}: {status}"))) }
}
