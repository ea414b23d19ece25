//! Comparison of servers over HTTP/1.1: Sluicegate, a server that only echoes, and throttlecrab-server.

mod echo;
mod load;
mod reload;
mod servers;

use std::{
    env,
    io::{self, Write},
    net::TcpListener,
    process::Command as Program,
    thread,
    time::Duration,
};

use self::{
    load::Request,
    servers::{OURS, in_process_with, named, process_with, start},
};
use crate::{
    keys::{KeySequence, MAX_KEYS, Random},
    load::{Sample, Sizes},
    others::Others,
    pin,
    report::{Bar, Peer, Table, median, ratio},
    resp::{
        peers,
        servers::{Server, free_address},
    },
};

const FULL: Sizes = Sizes {
    rounds: 9,
    connections: 64,
    keys: MAX_KEYS,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(1200),
};

const ECHO: &str = "hyper, only echoes";
const THROTTLECRAB: &str = "throttlecrab-server";

/// A server with the request that it receives.
struct Contender {
    name: &'static str,
    server: Server,
    request: Request,
    samples: Vec<Sample>,
}

impl Contender {
    /// Sends one request first, so that a broken server fails before the measurement.
    fn new(name: &'static str, server: Server) -> io::Result<Self> {
        let request = request(name);
        load::send_one(server.address, &request).map_err(|error| named(name, &error))?;
        Ok(Self { name, server, request, samples: Vec::new() })
    }
}

/// A take of one unit. The limit is one unit per hour with a burst of ten thousand, which no key exhausts.
fn request(name: &str) -> Request {
    match name {
        THROTTLECRAB => Request::post(
            "/throttle",
            r#"{"key":"sluicegate######","max_burst":10000,"count_per_period":24,"period":86400,"quantity":1}"#,
        ),
        _ => Request::post(
            "/v1/take",
            r#"{"key":"sluicegate######","policy":"gcra:24/1d:burst=10000","cost":1}"#,
        ),
    }
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { Sizes::QUICK } else { FULL };
    let all_cores = pin::cores()?;
    let mut contenders = if quick { in_process()? } else { as_processes()? };
    let (rounds, connections, keys) = (sizes.rounds, sizes.connections, sizes.keys);
    println!("http: {rounds} rounds, {connections} connections, {keys} keys at random");
    let others = Others::start();
    let before = servers_cpu(&contenders)?;
    for contender in &contenders {
        let (address, draw) = (contender.server.address, KeySequence::InOrder(0));
        let load = load::connect(address, connections, &contender.request, draw);
        let filled = load.and_then(|load| load.send_at_least(keys));
        filled.map_err(|error| named(contender.name, &error))?;
    }
    for round in 0..rounds {
        // In reverse order in every second round, so that none always follows the same one.
        let mut turn: Vec<_> = contenders.iter_mut().collect();
        if round % 2 == 1 {
            turn.reverse();
        }
        for contender in turn {
            let sample = measure(contender, &sizes, 1 + round as u64);
            contender.samples.push(sample.map_err(|error| named(contender.name, &error))?);
        }
        print!(".");
        io::stdout().flush()?;
    }
    println!();
    let others = others.summary(servers_cpu(&contenders)? - before);
    print(&contenders);
    println!("{others}");
    drop(contenders);
    pin::pin(&all_cores)?;
    reload::run(&sizes, quick)
}

fn measure(contender: &Contender, sizes: &Sizes, seed: u64) -> io::Result<Sample> {
    let draw = KeySequence::Random(Random::new(seed), sizes.keys);
    let address = contender.server.address;
    let load = load::connect(address, sizes.connections, &contender.request, draw)?;
    load.measure(sizes, || contender.server.cpu())
}

/// Our server and the echo server, in this process.
fn in_process() -> io::Result<Vec<Contender>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let echo = Server::in_process(listener.local_addr()?);
    // It ends with the process.
    thread::spawn(move || echo::serve(listener));
    let ours = in_process_with(None)?;
    Ok(vec![Contender::new(ECHO, echo)?, Contender::new(OURS, ours)?])
}

/// All servers, each as a process on the servers' core. Peers that cannot be installed are left out.
fn as_processes() -> io::Result<Vec<Contender>> {
    let crab = peers::throttlecrab();
    let (load_core, _) = pin::load_and_server_core()?;
    let address = free_address()?;
    let mut echo = Program::new(env::current_exe()?);
    echo.arg("echo").arg(address.to_string());
    let mut contenders = vec![Contender::new(ECHO, start(ECHO, echo, address)?)?];
    contenders.push(Contender::new(OURS, process_with(None)?)?);
    let started = crab.and_then(|program| {
        let address = free_address()?;
        let mut run = Program::new(program);
        run.args(["--http", "--http-host", &address.ip().to_string()]);
        run.args(["--http-port", &address.port().to_string(), "--log-level", "error"]);
        Contender::new(THROTTLECRAB, start(THROTTLECRAB, run, address)?)
    });
    match started {
        Ok(contender) => contenders.push(contender),
        Err(error) => println!("\n*** {THROTTLECRAB} IS LEFT OUT: {error} ***\n"),
    }
    // From here on, this thread is the load generator.
    pin::pin(&[load_core])?;
    Ok(contenders)
}

/// Runs the echo server at an address.
pub(crate) fn serve_echo(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    echo::serve(listener)
}

fn servers_cpu(contenders: &[Contender]) -> io::Result<f64> {
    contenders.iter().map(|it| Ok(it.server.cpu()?.unwrap_or(0.0))).sum()
}

fn print(contenders: &[Contender]) {
    let mut table = Table::new(&["POST, JSON", "requests/s", "server CPU/request", "server busy"]);
    let figures = |name: &str, figure: &dyn Fn(&Sample) -> Option<f64>| {
        let contender = contenders.iter().find(|it| it.name == name)?;
        let figures: Vec<_> = contender.samples.iter().filter_map(figure).collect();
        (!figures.is_empty()).then_some(figures)
    };
    let rate = |name: &str| figures(name, &|it| Some(it.requests / it.seconds));
    let cpu = |name: &str| figures(name, &|it| Some(it.cpu? * 1e6 / it.requests));
    let busy = |name: &str| figures(name, &|it| Some(it.cpu? * 100.0 / it.seconds));
    let thousands = |it: f64| format!("{:.1} k/s", it / 1e3);
    let micros = |it: f64| format!("{it:.3} us");
    for Contender { name, .. } in contenders {
        let text = |figures: Option<Vec<f64>>, text: &dyn Fn(f64) -> String| {
            figures.map(|it| text(median(&it))).unwrap_or_default()
        };
        table.row(vec![
            (*name).to_owned(),
            text(rate(name), &thousands),
            text(cpu(name), &micros),
            text(busy(name), &|it| format!("{it:.0} %")),
        ]);
    }
    println!("{table}");
    let mut table = Table::comparison();
    let mut compare =
        |work, figures: [Option<Vec<f64>>; 2], text: &dyn Fn(f64) -> String, peer, bar| {
            let [Some(ours), Some(theirs)] = figures else { return };
            let peers = Peer::new(peer, text(median(&theirs)));
            table.compare(work, text(median(&ours)), peers, ratio(&ours, &theirs), "x", bar);
        };
    compare("requests/s", [rate(OURS), rate(ECHO)], &thousands, ECHO, Bar::AtLeast(0.8));
    let cpus = [cpu(OURS), cpu(THROTTLECRAB)];
    compare("CPU per request", cpus, &micros, THROTTLECRAB, Bar::AtMost(0.85));
    println!("{table}");
}
