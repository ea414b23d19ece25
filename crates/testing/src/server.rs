use std::{
    fs,
    net::TcpListener,
    process::{Child, Command, Stdio},
};

use redis::{Client, Connection, FromRedisValue, RedisResult};

use crate::{Engine, Folder, Peer, eventually};

/// A server until dropped.
#[derive(Debug)]
pub struct Server {
    engine: Engine,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Child,
    folder: Folder,
}

impl Server {
    /// One that keeps nothing on disk.
    #[must_use]
    pub fn start(engine: Engine) -> Self {
        Self::with(engine, &[])
    }

    /// With arguments of its own.
    ///
    /// # Panics
    /// It ends by itself.
    #[must_use]
    pub fn with(engine: Engine, arguments: &[&str]) -> Self {
        Self::within(engine, Folder::new(), arguments, &[]).expect("it begins to serve")
    }

    /// In a folder, with arguments and an environment of its own.
    ///
    /// # Errors
    /// What it logged, if it ends by itself.
    pub fn within(
        engine: Engine,
        mut folder: Folder,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        let environment: Vec<_> =
            environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut told = String::new();
        for _ in 0..5 {
            // A port that is free now may be taken by another before the server has it.
            let port = free_port();
            let child = spawn(engine, port, &folder, &arguments, &environment);
            let (arguments, environment) = (arguments.clone(), environment.clone());
            let mut server = Self { engine, port, arguments, environment, child, folder };
            if server.is_ready() {
                return Ok(server);
            }
            told = server.log();
            folder = server.into_folder();
            if !told.contains("Address already in use") {
                break;
            }
        }
        Err(told)
    }

    /// A sentinel of Redis 7.0, by the lines of its configuration.
    ///
    /// # Panics
    /// It ends by itself.
    #[must_use]
    pub fn sentinel(configuration: &str) -> Self {
        let folder = Folder::new();
        let file = folder.path().join("configuration");
        fs::write(&file, configuration).unwrap();
        let arguments = [file.to_str().unwrap(), "--sentinel"];
        Self::within(Engine::Redis70, folder, &arguments, &[]).expect("it begins to serve")
    }

    /// Waits until it answers. False if it ended.
    fn is_ready(&mut self) -> bool {
        eventually(&format!("{:?} answers", self.engine), || {
            if self.child.try_wait().unwrap().is_some() {
                return Ok(false);
            }
            if self.answers() { Ok(true) } else { Err(self.log()) }
        })
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
        Client::open(self.url()).unwrap()
    }

    /// Where it listens, on the loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// As clients are told where it is.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// Where it keeps its files.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// A new connection.
    #[must_use]
    pub fn connect(&self) -> Connection {
        self.client().get_connection().unwrap()
    }

    /// A new connection that asks in words.
    #[must_use]
    pub fn peer(&self) -> Peer {
        Peer(self.connect())
    }

    /// A new connection that speaks RESP3.
    #[must_use]
    pub fn peer_with_maps(&self) -> Peer {
        let client = Client::open(format!("{}?protocol=resp3", self.url()));
        Peer(client.unwrap().get_connection().unwrap())
    }

    /// Asks it by words that are parted by blanks.
    pub fn ask<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_ask(words).unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// The same, where an error is an answer.
    ///
    /// # Errors
    /// It can't be asked, or answers with an error or with something else.
    pub fn try_ask<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.client().get_connection()?)
    }

    /// Stops it in its tracks, or lets it go on.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Kills it. What it wrote is still there.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew at the same place, with the files that it wrote.
    pub fn restart(&mut self) {
        let Self { engine, port, folder, arguments, environment, .. } = self;
        self.child = spawn(*engine, *port, folder, arguments, environment);
        assert!(self.is_ready(), "{}", self.log());
    }

    /// Kills it, and gives its folder.
    #[must_use]
    pub fn into_folder(mut self) -> Folder {
        std::mem::take(&mut self.folder)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // One that has ended by itself is no concern.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What goes before the server's own arguments. It is killed with this thread, however that ends.
fn spawn(
    engine: Engine,
    port: u16,
    folder: &Folder,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    let program = engine.program().unwrap_or_else(|error| panic!("{engine:?}: {error}"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir(folder.path());
    // A file of configuration comes first.
    let (file, arguments) = match arguments {
        [file, rest @ ..] if !file.starts_with('-') => (Some(file), rest),
        all => (None, all),
    };
    command.args(file).args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
    if file.is_none() {
        command.args(["--save", "", "--repl-diskless-sync-delay", "0"]);
        if engine != Engine::Redis62 {
            command.args(["--enable-debug-command", "yes", "--enable-module-command", "yes"]);
        }
    }
    command.args(arguments);
    for (name, value) in environment {
        command.env(name, value);
    }
    let log = fs::File::create(folder.path().join("log")).unwrap();
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    command.spawn().unwrap_or_else(|error| {
        panic!("{engine:?} could not be run ({error}); `cargo xtask test` installs it")
    })
}

/// A port that nobody listens on.
#[must_use]
pub fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
