//! A server in this process, and a client that sends arbitrary bytes.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::PathBuf,
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use sluicegate_resp::{Value, decode, encode_command};
use sluicegate_server::{Config, ReloadReport, Reloader, Server};
use sluicegate_testing::eventually_within;
use tokio::sync::oneshot;

/// The time after which a hanging server fails its test; no test comes near it.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A server on a port of its own, until dropped.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    /// Its address of HTTP, if there is one.
    pub(crate) http: Option<SocketAddr>,
    pub(crate) grpc: Option<SocketAddr>,
    reloader: Option<Reloader>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with_test_clock() -> Self {
        Self::with(|config| config.test_clock = true)
    }

    pub(crate) fn with(configure: impl FnOnce(&mut Config)) -> Self {
        let mut config = config();
        configure(&mut config);
        let (stop, stopped) = oneshot::channel::<()>();
        let (bound, address) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(async {
                let server = Server::bind(config).await.unwrap();
                let addresses =
                    (server.local_addr().unwrap(), server.http_addr(), server.grpc_addr());
                bound.send((addresses, server.reloader())).unwrap();
                let shutdown = async { drop(stopped.await) };
                server.run(shutdown).await.unwrap();
            });
        });
        let ((address, http, grpc), reloader) = address.recv().unwrap();
        let reloader = Some(reloader);
        Self { address, http, grpc, reloader, stop: Some(stop), thread: Some(thread) }
    }

    /// A server of another process, which ends by itself.
    pub(crate) const fn at_address(address: SocketAddr, http: Option<SocketAddr>) -> Self {
        Self { address, http, grpc: None, reloader: None, stop: None, thread: None }
    }

    pub(crate) fn connect(&self) -> RawClient {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        RawClient { stream, received: Vec::new() }
    }

    /// Has the server read its rules again, and waits until it has.
    pub(crate) fn reload(&self) -> Result<ReloadReport, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(self.reloader.as_ref().unwrap().reload())
    }

    /// Stops the server while the test continues.
    pub(crate) fn begin_to_stop(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// The number `name` in `INFO`, or 0.
    pub(crate) fn info_value(&self, name: &str) -> u64 {
        let Value::Bulk(text) = self.connect().call("INFO") else { panic!("no text") };
        let text = String::from_utf8(text).unwrap();
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let value = lines.find(|(found, _)| *found == name).map(|(_, value)| value);
        value.map_or(0, |value| value.trim_start_matches("calls=").parse().unwrap())
    }

    /// Waits until `INFO` shows more than `value` under `name`.
    pub(crate) fn until_more_than(&self, name: &str, value: u64) {
        self.until_info(name, |found| found > value);
    }

    /// Waits until `INFO` shows `value` under `name`.
    pub(crate) fn until_exactly(&self, name: &str, value: u64) {
        self.until_info(name, |found| found == value);
    }

    /// Waits until `INFO` shows at least `least` under `name`.
    pub(crate) fn until_at_least(&self, name: &str, least: u64) {
        self.until_info(name, |found| found >= least);
    }

    fn until_info(&self, name: &str, is_so: impl Fn(u64) -> bool) {
        eventually_within(TEST_TIMEOUT, &format!("INFO shows the expected {name}"), || {
            let found = self.info_value(name);
            if is_so(found) { Ok(()) } else { Err(found) }
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        // A test that fails does not wait for a server that may hang.
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            eventually_within(TEST_TIMEOUT, "the server stops", || {
                if thread.is_finished() { Ok(()) } else { Err("it runs") }
            });
            thread.join().unwrap();
        }
    }
}

/// The default, but on any port, and for RESP alone.
pub(crate) fn config() -> Config {
    let mut config = Config::default();
    config.resp.address.set_port(0);
    (config.http.address, config.envoy.address) = (None, None);
    config
}

/// Asks for a free port of this machine.
pub(crate) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// An address at which nothing listens, reserved for one server.
pub(crate) fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], sluicegate_testing::free_port()))
}

/// The server waits by the clock, therefore the test measures it.
#[expect(clippy::disallowed_methods, reason = "a test of waiting reads the clock")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A folder of its own, until dropped.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    pub(crate) fn new() -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let number = LAST.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluicegate-test-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of the files in it, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A connection.
pub(crate) struct RawClient {
    pub(crate) stream: TcpStream,
    received: Vec<u8>,
}

impl RawClient {
    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).unwrap();
    }

    /// Sends a command, its arguments separated by spaces.
    pub(crate) fn send_command(&mut self, line: &str) {
        let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.send_arguments(&arguments);
    }

    pub(crate) fn send_arguments(&mut self, arguments: &[&[u8]]) {
        let mut bytes = Vec::new();
        encode_command(arguments, &mut bytes);
        self.send(bytes);
    }

    /// The next reply.
    pub(crate) fn read_reply(&mut self) -> Value {
        loop {
            if let Some((value, taken)) = decode(&self.received).unwrap() {
                self.received.drain(..taken);
                return value;
            }
            assert!(self.read() > 0, "closed before a reply");
        }
    }

    /// A command, and its reply.
    pub(crate) fn call(&mut self, line: &str) -> Value {
        self.send_command(line);
        self.read_reply()
    }

    pub(crate) fn call_bytes(&mut self, arguments: &[&[u8]]) -> Value {
        self.send_arguments(arguments);
        self.read_reply()
    }

    /// A command, and its reply as integers.
    pub(crate) fn integers(&mut self, line: &str) -> Vec<i64> {
        integers(&self.call(line))
    }

    /// A command, and its reply as the text of an error.
    pub(crate) fn error(&mut self, line: &str) -> String {
        error(&self.call(line))
    }

    /// All that comes until the server closes, as text.
    pub(crate) fn rest(&mut self) -> String {
        while self.read() > 0 {}
        String::from_utf8(std::mem::take(&mut self.received)).unwrap()
    }

    fn read(&mut self) -> usize {
        let mut chunk = [0; 16_384];
        let count = self.stream.read(&mut chunk).unwrap();
        self.received.extend_from_slice(&chunk[..count]);
        count
    }
}

pub(crate) fn integers(value: &Value) -> Vec<i64> {
    let Value::Array(elements) = value else { panic!("no array: {value:?}") };
    let integers = elements.iter().map(|element| match element {
        Value::Integer(integer) => *integer,
        other => panic!("no integer: {other:?}"),
    });
    integers.collect()
}

pub(crate) fn error(value: &Value) -> String {
    let Value::Error(text) = value else { panic!("no error: {value:?}") };
    String::from_utf8(text.clone()).unwrap()
}

pub(crate) fn simple(text: &str) -> Value {
    Value::Simple(text.into())
}

pub(crate) fn bulk(text: &str) -> Value {
    Value::Bulk(text.into())
}

/// Pseudo-random numbers, the same each time.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

/// A number from the environment, for the full sizes.
pub(crate) fn size(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The root of the workspace.
pub(crate) fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}
