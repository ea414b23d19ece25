//! One limit that real Envoys divide by the quota service, beside one that they ask about for each request.
//!
//! Envoy is that of `cargo xtask test --all`; the server is this program in a process of its own, with its state in Redis.

use std::{
    fs,
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use sluicegate_server::{Config, Server, StoreConfig};
use sluicegate_testing::{Engine, Server as Redis, TempDir, eventually, free_port, pause};
use tokio::runtime::Builder;

use crate::{
    clock::instant,
    report::{Bar, Peer, Table},
};

const ENVOYS: usize = 3;
/// Clients of each Envoy.
const CLIENTS: usize = 4;
const RATE: f64 = 1000.0;
const BURST: f64 = 100.0;
/// Demand of all Envoys, in requests per second, and the parts of each.
const DEMAND: f64 = 1500.0;
const EVEN: [f64; 3] = [1.0 / 3.0; 3];
const UNEVEN: [f64; 3] = [0.9, 0.1, 0.0];
/// Buckets of each Envoy, for what many cost.
const BUCKETS: usize = 10_000;

const RULES: &str = "
rules:
  - {name: customer, match: {domain: shop}, key: descriptor.customer, policy: 'gcra:100/1s', quota: {proxies: 4}}
  - {name: shop, match: {domain: shop, descriptor.service: shop}, policy: 'gcra:1000/1s:burst=100', quota: {proxies: 4}}
  - {name: asked, match: {domain: shop, descriptor.plan: all}, policy: 'gcra:1000/1s:burst=100'}
";

struct Sizes {
    /// How long each distribution of demand lasts, and how long the measured end of it is.
    phase: Duration,
    measured: Duration,
    moves: usize,
    kills: usize,
    buckets: usize,
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let seconds = Duration::from_secs;
    let sizes = if quick {
        Sizes { phase: seconds(2), measured: seconds(1), moves: 1, kills: 1, buckets: 10 }
    } else {
        Sizes { phase: seconds(30), measured: seconds(15), moves: 4, kills: 5, buckets: BUCKETS }
    };
    let Some(envoy) = program() else {
        println!("quota: Envoy is not installed: `cargo xtask test --all` installs it");
        return Ok(());
    };
    println!("quota: {ENVOYS} Envoys, limit {RATE}/s, burst {BURST}, demand {DEMAND}/s");
    let mut fleet = Fleet::start(envoy.clone(), "quota.yaml", "", true)?;
    let mut table = Table::comparison();
    divide(&sizes, &mut fleet, &mut table)?;
    drop(fleet);
    // State in memory, so that all that is needed counts.
    let fleet = Fleet::start(envoy.clone(), "quota.yaml", "", false)?;
    many_buckets(&sizes, &fleet, &mut table)?;
    drop(fleet);
    let fleet = Fleet::start(envoy, "envoy.yaml", "x-plan: all\r\nx-user: ada\r\n", true)?;
    ask(&sizes, &fleet, &mut table);
    drop(fleet);
    println!("{table}");
    Ok(())
}

/// (a), (b), (c) and (e): what passes while demand is even, uneven and moves, and while servers and Envoys are killed.
fn divide(sizes: &Sizes, fleet: &mut Fleet, table: &mut Table) -> io::Result<()> {
    // Each bucket may begin full once: then the burst of the policy is given away.
    fleet.set([0.001; ENVOYS]);
    let used = |table: &mut Table, work: &str, passed: f64, span: Duration, bar| {
        let share = passed / (RATE * span.as_secs_f64());
        let ours = format!("{:.0}/s", passed / span.as_secs_f64());
        let peer = Peer::new("the limit", format!("{RATE}/s"));
        table.compare(&format!("{work}: use"), ours, peer, share * 100.0, "%", bar);
    };
    for (work, parts) in [("even demand", EVEN), ("demand 90/10/0", UNEVEN)] {
        fleet.set(parts);
        pause(sizes.phase - sizes.measured);
        let before = fleet.passed();
        pause(sizes.measured);
        used(table, work, (fleet.passed() - before) as f64, sizes.measured, Bar::AtLeast(95.0));
    }
    let before = fleet.passed();
    for turn in 0..sizes.moves {
        let mut parts = UNEVEN;
        parts.rotate_right((turn + 1) % ENVOYS);
        fleet.set(parts);
        pause(sizes.phase);
    }
    let span = sizes.phase * u32::try_from(sizes.moves).unwrap_or(1);
    let passed = (fleet.passed() - before) as f64;
    used(table, "demand 90/10/0, moved every 30 s", passed, span, Bar::AtLeast(85.0));
    let (messages, decisions) = (fleet.metric("sluicegate_quota_messages_total"), fleet.sent());
    let ours = format!("{messages} messages");
    let peer = Peer::new("requests", decisions.to_string());
    let per_thousand = messages * 1000.0 / decisions as f64;
    table.compare(
        "requests to us in 1000 decisions",
        ours,
        peer,
        per_thousand,
        "",
        Bar::Below(1.0),
    );
    excess(table, "demand moves", &fleet.take_passed(), 0);
    fleet.set(EVEN);
    for _ in 0..sizes.kills {
        fleet.restart_server()?;
        pause(sizes.phase / 3);
    }
    fleet.restart_envoy(0)?;
    pause(sizes.phase);
    // Assignments that expire while there is no server are given again, to full buckets.
    let made = ENVOYS * (sizes.kills + 1);
    excess(table, "servers and an Envoy are killed", &fleet.take_passed(), made);
    Ok(())
}

/// The most that passes in any interval beyond the rate, beside the bound with so many buckets that were made.
fn excess(table: &mut Table, work: &str, passed: &[Instant], made: usize) {
    let (mut most, mut excess, mut last) = (0.0_f64, 0.0_f64, None);
    for at in passed {
        let elapsed = last.map_or(0.0, |last: Instant| at.duration_since(last).as_secs_f64());
        excess = (excess - elapsed * RATE).max(0.0) + 1.0;
        most = most.max(excess);
        last = Some(*at);
    }
    // One fill is what comes in a second; none is needed, because Envoy fills continuously.
    let bound = BURST + made as f64 * (BURST / 4.0);
    let peer = Peer::new("bound", format!("{bound:.0}"));
    let work = format!("{work}: most beyond the rate");
    table.compare(&work, format!("{most:.0}"), peer, most / bound, "x", Bar::AtMost(1.0));
}

/// (d): what many buckets cost.
fn many_buckets(sizes: &Sizes, fleet: &Fleet, table: &mut Table) -> io::Result<()> {
    fleet.set([0.0; ENVOYS]);
    let addresses: Vec<_> = fleet.envoys.iter().map(|it| it.address.clone()).collect();
    thread::scope(|scope| {
        let request = |address: &String| -> io::Result<()> {
            let mut client = Client::connect(address)?;
            (0..sizes.buckets)
                .try_for_each(|user| client.get(&format!("x-customer: user{user}\r\n")).map(|_| ()))
        };
        let all: Vec<_> = addresses.iter().map(|it| scope.spawn(move || request(it))).collect();
        all.into_iter().try_for_each(|it| it.join().unwrap_or(Ok(())))
    })?;
    let expected = (sizes.buckets * ENVOYS) as f64;
    eventually("all buckets are known", || match fleet.metric("sluicegate_quota_buckets") {
        count if count >= expected => Ok(()),
        count => Err(count),
    });
    pause(sizes.phase);
    let pid = fleet.server.as_ref().map_or(0, Child::id);
    let (before, start) = (cpu_seconds(pid)?, instant());
    pause(sizes.measured);
    let cpu = (cpu_seconds(pid)? - before) / start.elapsed().as_secs_f64() * 100.0;
    let work = format!("{ENVOYS} x {} buckets", sizes.buckets);
    table.compare(
        &format!("{work}: CPU"),
        format!("{cpu:.1} %"),
        Peer::none(),
        cpu,
        "%",
        Bar::Below(5.0),
    );
    let resident = resident_bytes(pid)? / 1e6;
    let ours = format!("{resident:.0} MB");
    table.compare(
        &format!("{work}: memory"),
        ours,
        Peer::none(),
        resident,
        "MB",
        Bar::Below(100.0),
    );
    Ok(())
}

/// (f): the rate limit service, which Envoy asks about each request.
fn ask(sizes: &Sizes, fleet: &Fleet, table: &mut Table) {
    fleet.set(EVEN);
    pause(sizes.phase - sizes.measured);
    let before = [fleet.passed(), fleet.sent()];
    let asked = fleet.metric("sluicegate_requests_total{protocol=\"grpc\"}");
    pause(sizes.measured);
    let asked = fleet.metric("sluicegate_requests_total{protocol=\"grpc\"}") - asked;
    let [passed, sent] = [fleet.passed() - before[0], fleet.sent() - before[1]];
    let rate = passed as f64 / sizes.measured.as_secs_f64();
    let peer = Peer::new("the limit", format!("{RATE}/s"));
    table.compare(
        "asked each time: use",
        format!("{rate:.0}/s"),
        peer,
        rate / RATE * 100.0,
        "%",
        Bar::None,
    );
    let peer = Peer::new("requests", sent.to_string());
    let per_thousand = asked * 1000.0 / sent as f64;
    table.compare(
        "asked each time: requests to us in 1000 decisions",
        format!("{asked}"),
        peer,
        per_thousand,
        "",
        Bar::None,
    );
    excess(table, "asked each time", &fleet.take_passed(), 0);
}

/// Where the program of Envoy is.
fn program() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let tools = std::env::var_os("SLUICEGATE_TOOLS");
    let tools = root.join(tools.map_or_else(|| "target/tools".into(), PathBuf::from));
    let versions =
        fs::read_dir(tools.join("envoy/lib")).into_iter().flatten().map_while(Result::ok);
    versions.map(|it| it.path().join("site-packages/envoy/_bin/envoy")).find(|it| it.exists())
}

/// Serves until it is killed.
pub(crate) fn serve(grpc: &str, http: &str, store: &str, rules: &str) -> io::Result<()> {
    let address = |port: &str| -> io::Result<std::net::SocketAddr> {
        format!("127.0.0.1:{port}").parse().map_err(io::Error::other)
    };
    let mut config = Config::default();
    config.resp.address.set_port(0);
    (config.envoy.address, config.http.address) = (Some(address(grpc)?), Some(address(http)?));
    config.rules = vec![rules.into()];
    config.store = (!store.is_empty()).then(|| StoreConfig::new(store));
    Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(async { Server::bind(config).await?.run(std::future::pending()).await })
}

/// A server, Envoys, and clients of these.
struct Fleet {
    redis: Option<Redis>,
    folder: TempDir,
    ports: [u16; 2],
    server: Option<Child>,
    program: PathBuf,
    file: &'static str,
    envoys: Vec<Envoy>,
    load: Arc<Load>,
    clients: Vec<thread::JoinHandle<()>>,
}

struct Envoy {
    child: Child,
    ports: [u16; 3],
    address: String,
}

/// What clients are to do, and what they have seen.
#[derive(Default)]
struct Load {
    /// Requests per second of each Envoy, in thousandths.
    rates: [AtomicU64; ENVOYS],
    sent: AtomicU64,
    passed: Mutex<Vec<Instant>>,
    /// All that have passed so far.
    count: AtomicU64,
    ends: AtomicBool,
}

impl Fleet {
    fn start(
        program: PathBuf,
        file: &'static str,
        headers: &'static str,
        in_redis: bool,
    ) -> io::Result<Self> {
        let redis = in_redis.then(|| Redis::start(Engine::Redis70));
        let folder = TempDir::new();
        fs::write(folder.path().join("rules.yaml"), RULES)?;
        let ports = [free_port(), free_port()];
        let mut fleet = Self {
            redis,
            folder,
            ports,
            server: None,
            program,
            file,
            envoys: Vec::new(),
            load: Arc::default(),
            clients: Vec::new(),
        };
        fleet.restart_server()?;
        for at in 0..ENVOYS {
            let ports = [free_port(), free_port(), free_port()];
            let envoy = fleet.envoy(at, ports)?;
            fleet.envoys.push(envoy);
            for _ in 0..CLIENTS {
                let (load, address) = (Arc::clone(&fleet.load), fleet.envoys[at].address.clone());
                fleet.clients.push(thread::spawn(move || load.send(at, &address, headers)));
            }
        }
        Ok(fleet)
    }

    fn restart_server(&mut self) -> io::Result<()> {
        if let Some(mut child) = self.server.take() {
            child.kill()?;
            child.wait()?;
        }
        let [grpc, http] = self.ports.map(|port| port.to_string());
        let mut command = Command::new(std::env::current_exe()?);
        command.args([
            "quota-serve",
            &grpc,
            &http,
            &self.redis.as_ref().map_or_else(String::new, Redis::url),
        ]);
        command.arg(self.folder.path().join("rules.yaml"));
        self.server = Some(command.spawn()?);
        let address = format!("127.0.0.1:{http}");
        eventually("the server is ready", || TcpStream::connect(&address).map(|_| ()));
        Ok(())
    }

    fn envoy(&self, at: usize, ports: [u16; 3]) -> io::Result<Envoy> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/envoy");
        let mut text = fs::read_to_string(root.join(self.file))?;
        for (old, new) in [10_000, 10_001, 9901, 8081].into_iter().zip([
            ports[0],
            ports[1],
            ports[2],
            self.ports[0],
        ]) {
            text = text.replace(&format!("port_value: {old} "), &format!("port_value: {new} "));
        }
        // A busy machine may take long to answer, and requests would pass.
        let text = text.replace(" timeout: 0.25s", " timeout: 30s");
        let path = self.folder.path().join(format!("envoy{at}.yaml"));
        fs::write(&path, text)?;
        let mut command = Command::new(&self.program);
        command.arg("--config-path").arg(path);
        command.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let address = format!("127.0.0.1:{}", ports[0]);
        eventually("Envoy is ready", || TcpStream::connect(&address).map(|_| ()));
        Ok(Envoy { child, ports, address })
    }

    fn restart_envoy(&mut self, at: usize) -> io::Result<()> {
        self.envoys[at].child.kill()?;
        self.envoys[at].child.wait()?;
        self.envoys[at] = self.envoy(at, self.envoys[at].ports)?;
        Ok(())
    }

    /// Sets the demand, in parts.
    fn set(&self, parts: [f64; ENVOYS]) {
        for (rate, part) in self.load.rates.iter().zip(parts) {
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "some thousands"
            )]
            rate.store((DEMAND * part * 1000.0) as u64, Ordering::Relaxed);
        }
    }

    fn passed(&self) -> u64 {
        self.load.count.load(Ordering::Relaxed)
    }

    fn sent(&self) -> u64 {
        self.load.sent.load(Ordering::Relaxed)
    }

    /// When requests have passed since the last call, in order.
    fn take_passed(&self) -> Vec<Instant> {
        let mut passed = std::mem::take(&mut *self.load.passed.lock().expect("no client panics"));
        passed.sort_unstable();
        passed
    }

    /// A line of `/metrics`.
    fn metric(&self, name: &str) -> f64 {
        let get = || -> io::Result<String> {
            let mut stream = TcpStream::connect(("127.0.0.1", self.ports[1]))?;
            stream.write_all(
                b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            )?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        };
        let text = get().unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.and_then(|count| count.parse().ok()).unwrap_or(f64::NAN)
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.load.ends.store(true, Ordering::Relaxed);
        self.clients.drain(..).for_each(|it| drop(it.join()));
        let envoys = self.envoys.iter_mut().map(|it| &mut it.child);
        for child in envoys.chain(self.server.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Load {
    /// Sends requests to an Envoy, as many as it is to have, until the end.
    fn send(&self, at: usize, address: &str, headers: &str) {
        let (mut owed, mut last) = (0.0, instant());
        let mut client = None;
        while !self.ends.load(Ordering::Relaxed) {
            let now = instant();
            let rate = self.rates[at].load(Ordering::Relaxed) as f64 / 1000.0 / CLIENTS as f64;
            // A client that was late catches up with 50 ms at most.
            owed =
                (owed + now.duration_since(last).as_secs_f64() * rate).min((rate * 0.05).max(1.0));
            last = now;
            if owed < 1.0 {
                pause(Duration::from_millis(2));
                continue;
            }
            owed -= 1.0;
            let connected = match client.take() {
                Some(client) => Ok(client),
                None => Client::connect(address),
            };
            match connected.and_then(|mut it: Client| Ok((it.get(headers)?, it))) {
                Ok((passed, connected)) => {
                    self.sent.fetch_add(1, Ordering::Relaxed);
                    if passed {
                        self.count.fetch_add(1, Ordering::Relaxed);
                        self.passed.lock().expect("no client panics").push(instant());
                    }
                    client = Some(connected);
                }
                Err(_) => pause(Duration::from_millis(50)),
            }
        }
    }
}

/// A connection to an Envoy.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(address: &str) -> io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        Ok(Self(BufReader::new(stream)))
    }

    /// Whether a request with these headers passes.
    fn get(&mut self, headers: &str) -> io::Result<bool> {
        let request = format!("GET / HTTP/1.1\r\nhost: shop\r\n{headers}\r\n");
        self.0.get_mut().write_all(request.as_bytes())?;
        let (mut status, mut length) = (String::new(), 0);
        self.0.read_line(&mut status)?;
        loop {
            let mut line = String::new();
            if self.0.read_line(&mut line)? <= 2 {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.trim().parse().map_err(io::Error::other)?;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        match status.split(' ').nth(1) {
            Some("200") => Ok(true),
            Some("429") => Ok(false),
            _ => Err(io::Error::other(status)),
        }
    }
}

/// The CPU time of a process in seconds.
fn cpu_seconds(pid: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest.split_whitespace().skip(11).take(2).filter_map(|it| it.parse::<u64>().ok());
    Ok(ticks.sum::<u64>() as f64 / 100.0)
}

/// The memory of a process in bytes.
fn resident_bytes(pid: u32) -> io::Result<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm"))?;
    let pages = text.split_whitespace().nth(1).and_then(|it| it.parse::<u64>().ok());
    Ok(pages.unwrap_or_default() as f64 * 4096.0)
}
