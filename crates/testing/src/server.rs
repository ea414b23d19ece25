use std::{
    fs, mem,
    net::{Ipv4Addr, SocketAddr},
    process::{Child, Command, Stdio},
};

use redis::{Client, Connection, FromRedisValue, RedisResult};
use socket2::{Domain, Socket, Type};

use crate::{Engine, RawClient, TempDir, eventually};

/// A server, which runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    engine: Engine,
    port: u16,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    child: Child,
    folder: TempDir,
}

impl Server {
    /// Starts a server without persistence.
    #[must_use]
    pub fn start(engine: Engine) -> Self {
        Self::with(engine, &[])
    }

    /// Starts a server with `arguments`.
    ///
    /// # Panics
    /// If the process exits.
    #[must_use]
    pub fn with(engine: Engine, arguments: &[&str]) -> Self {
        Self::within(engine, TempDir::new(), arguments, &[]).expect("the server starts")
    }

    /// Starts a server in a folder, with `arguments` and `environment`.
    ///
    /// # Errors
    /// Its log, if the process exits.
    pub fn within(
        engine: Engine,
        mut folder: TempDir,
        arguments: &[&str],
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let arguments: Vec<_> = arguments.iter().map(|&it| it.to_owned()).collect();
        let environment: Vec<_> =
            environment.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        let mut last_log = String::new();
        for _ in 0..5 {
            // Another process may take the free port before the server does.
            let port = free_port();
            let child = spawn(engine, port, &folder, &arguments, &environment);
            let (arguments, environment) = (arguments.clone(), environment.clone());
            let mut server = Self { engine, port, arguments, environment, child, folder };
            if server.is_ready() {
                return Ok(server);
            }
            last_log = server.log();
            folder = server.into_folder();
            if !last_log.contains("Address already in use") {
                break;
            }
        }
        Err(last_log)
    }

    /// Starts a sentinel of Redis 7.0 with the lines of its configuration.
    ///
    /// # Panics
    /// If the process exits.
    #[must_use]
    pub fn sentinel(configuration: &str) -> Self {
        let folder = TempDir::new();
        let file = folder.path().join("configuration");
        fs::write(&file, configuration).unwrap();
        let arguments = [file.to_str().unwrap(), "--sentinel"];
        Self::within(Engine::Redis70, folder, &arguments, &[]).expect("the server starts")
    }

    /// Waits until it replies. False if the process exits.
    fn is_ready(&mut self) -> bool {
        eventually(&format!("{:?} replies", self.engine), || {
            if self.child.try_wait().unwrap().is_some() {
                return Ok(false);
            }
            if self.replies() { Ok(true) } else { Err(self.log()) }
        })
    }

    fn replies(&self) -> bool {
        let Ok(mut connection) = self.client().get_connection() else { return false };
        match redis::cmd("PING").query::<String>(&mut connection) {
            Ok(_) => true,
            // It requires a password, so it is ready.
            Err(error) => error.code() == Some("NOAUTH"),
        }
    }

    fn client(&self) -> Client {
        Client::open(self.url()).unwrap()
    }

    /// Its port on loopback.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its URL for clients.
    #[must_use]
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The folder with its files.
    #[must_use]
    pub fn folder(&self) -> &TempDir {
        &self.folder
    }

    /// Its log so far.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap()
    }

    /// A new connection.
    #[must_use]
    pub fn connect(&self) -> Connection {
        self.client().get_connection().unwrap()
    }

    /// A new connection that sends commands given as text.
    #[must_use]
    pub fn raw_client(&self) -> RawClient {
        RawClient(self.connect())
    }

    /// A new connection that speaks RESP3.
    #[must_use]
    pub fn raw_client_with_maps(&self) -> RawClient {
        let client = Client::open(format!("{}?protocol=resp3", self.url()));
        RawClient(client.unwrap().get_connection().unwrap())
    }

    /// Sends a command whose arguments are separated by spaces, and returns its reply.
    pub fn query<T: FromRedisValue>(&self, words: &str) -> T {
        self.try_query(words).unwrap_or_else(|error| panic!("{words}: {error}"))
    }

    /// The same, but returns errors.
    ///
    /// # Errors
    /// If the connection fails, or the reply is an error or of another type.
    pub fn try_query<T: FromRedisValue>(&self, words: &str) -> RedisResult<T> {
        let mut words = words.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.client().get_connection()?)
    }

    /// Sends a signal, such as `-STOP` or `-CONT`.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(status.unwrap().success());
    }

    /// Kills it. Its files stay.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again on the same port, with its files.
    pub fn restart(&mut self) {
        let Self { engine, port, folder, arguments, environment, .. } = self;
        self.child = spawn(*engine, *port, folder, arguments, environment);
        assert!(self.is_ready(), "{}", self.log());
    }

    /// Kills it, and returns its folder.
    #[must_use]
    pub fn into_folder(mut self) -> TempDir {
        std::mem::take(&mut self.folder)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have exited already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts the program with the common arguments before its own. The process is killed when this thread ends.
fn spawn(
    engine: Engine,
    port: u16,
    folder: &TempDir,
    arguments: &[String],
    environment: &[(String, String)],
) -> Child {
    let program = engine.program().unwrap_or_else(|error| panic!("{engine:?}: {error}"));
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program).current_dir(folder.path());
    // The configuration file must be the first argument.
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

/// A port on which nothing listens. It is reserved until the process ends: the system gives it to no other socket, and
/// only a server that asks for it by number can listen on it, with `SO_REUSEADDR`, as servers do.
#[must_use]
pub fn free_port() -> u16 {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    // Two sockets can share a port if both allow it and neither listens yet.
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().unwrap().port();
    mem::forget(socket);
    port
}

#[cfg(test)]
mod tests {
    use std::{
        io::ErrorKind,
        net::{TcpListener, TcpStream},
    };

    use super::*;

    #[test]
    fn free_port_is_closed_and_reserved_for_a_server() {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let refused = TcpStream::connect(address).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
        // A socket that does not allow to share its port, such as a client's.
        let client = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        assert_eq!(client.bind(&address.into()).unwrap_err().kind(), ErrorKind::AddrInUse);
        let server = TcpListener::bind(address).unwrap();
        TcpStream::connect(server.local_addr().unwrap()).unwrap();
    }
}
