//! A real Envoy, as `examples/envoy` has it, before a small upstream.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use sluicegate_testing::eventually;

/// A folder of the repository.
pub(super) fn example(file: &str) -> String {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    fs::read_to_string(root.join("examples/envoy").join(file)).unwrap()
}

/// Where the program of Envoy is. `cargo xtask test --all` puts it there.
pub(crate) fn program() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let tools = std::env::var_os("SLUICEGATE_TOOLS");
    let tools = root.join(tools.map_or_else(|| "target/tools".into(), PathBuf::from));
    let versions = fs::read_dir(tools.join("envoy/lib")).into_iter().flatten();
    let mut found = versions
        .map_while(Result::ok)
        .map(|version| version.path().join("site-packages/envoy/_bin/envoy"));
    found.find(|it| it.exists()).expect("`cargo xtask test --all` installs Envoy")
}

/// An Envoy until dropped.
pub(super) struct Envoy {
    child: Child,
    folder: PathBuf,
    admin: String,
    /// Where clients connect to.
    pub(super) address: String,
}

impl Envoy {
    /// As in the example, except for its ports and the changes by `change`.
    pub(super) fn start(
        name: &str,
        sluicegate: &str,
        upstream: &Upstream,
        change: impl Fn(&str) -> String,
    ) -> Self {
        Self::start_with("envoy.yaml", name, sluicegate, upstream, change)
    }

    /// The same with another file of the example.
    pub(super) fn start_with(
        file: &str,
        name: &str,
        sluicegate: &str,
        upstream: &Upstream,
        change: impl Fn(&str) -> String,
    ) -> Self {
        let folder =
            std::env::temp_dir().join(format!("sluicegate-envoy-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (_, port) = sluicegate.rsplit_once(':').unwrap();
        let text = example(file);
        for own in ["port_value: 9901", "port_value: 10000", "port_value: 8081"] {
            assert_eq!(text.matches(own).count(), 1, "{own}");
        }
        let text = text
            .replace("port_value: 9901", "port_value: 0")
            .replace("port_value: 10000", "port_value: 0")
            // Another service replaces the shop of the example.
            .replacen("port_value: 10001", "port_value: 0", 1)
            .replace("port_value: 10001", &format!("port_value: {}", upstream.port))
            .replace("port_value: 8081", &format!("port_value: {port}"));
        fs::write(folder.join("envoy.yaml"), change(&text)).unwrap();

        let admin = folder.join("admin");
        let log = fs::File::create(folder.join("log")).unwrap();
        // Killed with this thread, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program());
        command.arg("--config-path").arg(folder.join("envoy.yaml"));
        command.arg("--admin-address-path").arg(&admin);
        command.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = command.spawn().unwrap();
        let mut envoy = Self { child, folder, admin: String::new(), address: String::new() };
        envoy.wait_for(|_| fs::read_to_string(&admin).is_ok_and(|it| it.contains(':')));
        envoy.admin = fs::read_to_string(&admin).unwrap();
        envoy.wait_for(|it| it.get("/ready").is_some_and(|text| text.contains("LIVE")));
        let listeners = envoy.get("/listeners").unwrap();
        let shop = listeners.lines().find_map(|line| line.trim().strip_prefix("shop::"));
        envoy.address = shop.unwrap().to_owned();
        envoy
    }

    fn wait_for(&mut self, ready: impl Fn(&Self) -> bool) {
        eventually("Envoy is ready", || {
            let ended = self.child.try_wait().unwrap();
            let log = fs::read_to_string(self.folder.join("log")).unwrap();
            assert!(ended.is_none(), "Envoy has ended: {log}");
            if ready(self) { Ok(()) } else { Err(log) }
        });
    }

    /// The response of its administration at `path`.
    fn get(&self, path: &str) -> Option<String> {
        let mut stream = TcpStream::connect(&self.admin).ok()?;
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).ok()?;
        let mut text = String::new();
        stream.read_to_string(&mut text).ok()?;
        Some(text)
    }

    /// A counter of its statistics.
    pub(super) fn counter(&self, name: &str) -> u64 {
        let text = self.get(&format!("/stats?filter={name}")).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |count| count.trim().parse().unwrap())
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A service that welcomes everybody, and counts them.
pub(super) struct Upstream {
    port: u16,
    served: Arc<AtomicU64>,
}

impl Upstream {
    pub(super) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let count = Arc::clone(&count);
                thread::spawn(move || welcome(stream, &count));
            }
        });
        Self { port, served }
    }

    /// One that runs already.
    pub(super) fn at(port: u16) -> Self {
        Self { port, served: Arc::default() }
    }

    pub(super) fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

/// Answers all requests of a connection; they have no bodies.
fn welcome(mut stream: TcpStream, served: &AtomicU64) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    while let Some(Ok(line)) = lines.next() {
        if line.is_empty() {
            served.fetch_add(1, Ordering::SeqCst);
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nwelcome\n";
            if stream.write_all(answer).is_err() {
                return;
            }
        }
    }
}

/// A client that keeps its connection.
pub(super) struct Client {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
}

/// A response: the status and the headers, their names in lower case.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) code: u16,
    fields: Vec<(String, String)>,
}

impl Answer {
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }
}

impl Client {
    pub(super) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        let reader = BufReader::new(stream.try_clone().unwrap());
        Self { stream, reader }
    }

    pub(super) fn get(&mut self, path: &str, fields: &[(&str, &str)]) -> Answer {
        let fields: Vec<_> =
            fields.iter().map(|(it, value)| format!("{it}: {value}\r\n")).collect();
        let request = format!("GET {path} HTTP/1.1\r\nhost: shop\r\n{}\r\n", fields.concat());
        self.stream.write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let code = line.split(' ').nth(1).unwrap().parse().unwrap();
        let mut answer = Answer { code, fields: Vec::new() };
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            answer.fields.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        let length = answer.field("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        answer
    }
}
