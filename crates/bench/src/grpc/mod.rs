//! Envoy's rate limit service, compared with a service that only echoes.

mod echo;
mod frames;
mod load;

use std::{
    env, fs, io,
    io::Write,
    net::{SocketAddr, TcpListener},
    process::Command as Program,
    sync::mpsc,
    thread,
    time::Duration,
};

use sluicegate_server::{Config, Server as OurServer};

use crate::{
    keys::{KeySequence, Random},
    load::{Sample, Sizes},
    others::Others,
    pin,
    report::{Bar, Peer, Table, median, ratio},
    resp::{
        peers,
        servers::{Server, free_address},
    },
};

/// Keys are users.
const FULL: Sizes = Sizes {
    rounds: 9,
    connections: 8,
    keys: 1_000_000,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(1000),
};
const QUICK: Sizes = Sizes {
    rounds: 2,
    connections: 2,
    keys: 100,
    warm_up: Duration::from_millis(2),
    measured: Duration::from_millis(10),
};
/// Concurrent calls per connection, in a full and in a quick run.
const CALLS: [u64; 2] = [16, 2];

/// Rules for both descriptors of a call, in Sluicegate's format and in that of envoyproxy/ratelimit.
const FORMS: [(&str, &str); 2] = [
    (
        "our rules",
        "
rules:
  - name: users
    match: {domain: bench, descriptor.plan: free}
    key: descriptor.user
    policy: gcra:100/1m
  - name: paths
    match: {domain: bench, descriptor.method: GET}
    key: descriptor.path
    policy: gcra:1000000000/1m
",
    ),
    (
        "envoyproxy's rules",
        "
domain: bench
descriptors:
  - key: plan
    value: free
    descriptors:
      - key: user
        rate_limit: {unit: minute, requests_per_unit: 100}
  - key: method
    value: GET
    descriptors:
      - key: path
        rate_limit: {unit: minute, requests_per_unit: 1000000000}
",
    ),
];
const ECHO: &str = "only echoes";

/// A service with its measurements.
struct Contender {
    name: &'static str,
    server: Server,
    samples: Vec<Sample>,
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let (sizes, calls) = if quick { (QUICK, CALLS[1]) } else { (FULL, CALLS[0]) };
    let mut contenders = if quick { in_process()? } else { as_processes()? };
    println!(
        "grpc: {} rounds, {} connections with {} calls of 2 descriptors at a time, {} users",
        sizes.rounds, sizes.connections, calls, sizes.keys
    );
    let others = Others::start();
    let before = servers_cpu(&contenders)?;
    for contender in &contenders {
        let (address, users) = (contender.server.address, KeySequence::InOrder(0));
        load::connect(address, sizes.connections, calls, users)?.send_at_least(sizes.keys)?;
    }
    for round in 0..sizes.rounds {
        // In reverse order in every second round, so that none always follows the same one.
        contenders.reverse();
        for contender in &mut contenders {
            let users = KeySequence::Random(Random::new(1 + round as u64), sizes.keys);
            let sample = measure(contender, &sizes, calls, users);
            let named = |error| io::Error::other(format!("{}: {error}", contender.name));
            contender.samples.push(sample.map_err(named)?);
        }
        print!(".");
        io::stdout().flush()?;
    }
    println!();
    let others = others.summary(servers_cpu(&contenders)? - before);
    print(&contenders);
    println!("{others}");
    Ok(())
}

fn servers_cpu(contenders: &[Contender]) -> io::Result<f64> {
    contenders.iter().map(|it| Ok(it.server.cpu()?.unwrap_or(0.0))).sum()
}

fn measure(
    contender: &Contender,
    sizes: &Sizes,
    calls: u64,
    users: KeySequence,
) -> io::Result<Sample> {
    let load = load::connect(contender.server.address, sizes.connections, calls, users)?;
    load.measure(sizes, || contender.server.cpu())
}

fn print(contenders: &[Contender]) {
    let rates =
        |it: &Contender| it.samples.iter().map(|it| it.requests / it.seconds).collect::<Vec<_>>();
    let shown = |rate: f64| format!("{:.1} k/s", rate / 1e3);
    let mut table = Table::new(&["service", "calls/s", "server CPU/call"]);
    for contender in contenders {
        let cpu: Option<Vec<_>> =
            contender.samples.iter().map(|it| Some(it.cpu? / it.requests * 1e6)).collect();
        let cpu = cpu.map(|it| format!("{:.2} us", median(&it))).unwrap_or_default();
        table.row(vec![contender.name.to_owned(), shown(median(&rates(contender))), cpu]);
    }
    println!("{table}");
    let Some(echo) = contenders.iter().find(|it| it.name == ECHO).map(rates) else { return };
    let mut table = Table::comparison();
    for contender in contenders.iter().filter(|it| it.name != ECHO) {
        let ours = rates(contender);
        let work = format!("ShouldRateLimit, {}", contender.name);
        let peer = Peer::new(ECHO, shown(median(&echo)));
        let (shown, ratio) = (shown(median(&ours)), ratio(&ours, &echo));
        table.compare(&work, shown, peer, ratio, "x", Bar::AtLeast(0.75));
    }
    println!("{table}");
}

/// All services, in this process.
fn in_process() -> io::Result<Vec<Contender>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let server = Server::in_process(listener.local_addr()?);
    // All end with the process.
    thread::spawn(move || echo::serve(listener));
    let mut contenders = vec![Contender { name: ECHO, server, samples: Vec::new() }];
    let folder = env::temp_dir();
    for (name, text) in FORMS {
        let file =
            folder.join(format!("sluicegate-bench-{}-{}.yaml", std::process::id(), name.len()));
        fs::write(&file, text)?;
        let server = Server::in_process(serve_ours(&file)?);
        fs::remove_file(file)?;
        contenders.push(Contender { name, server, samples: Vec::new() });
    }
    Ok(contenders)
}

/// Starts a Sluicegate server in a thread, and returns its address.
fn serve_ours(rules: &std::path::Path) -> io::Result<SocketAddr> {
    let (sender, receiver) = mpsc::channel();
    let mut config = Config::default();
    config.resp.address.set_port(0);
    config.http.address = None;
    config.envoy.address = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    config.rules = vec![rules.to_owned()];
    thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let server = OurServer::bind(config).await?;
            // The receiver may have been dropped.
            let _ = sender.send(server.grpc_addr());
            server.run(std::future::pending()).await
        })
    });
    let address = receiver.recv().map_err(|_| io::Error::other("our server does not listen"))?;
    address.ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

/// All services, each as a process on the servers' core.
fn as_processes() -> io::Result<Vec<Contender>> {
    let (program, us) = (peers::ours()?, env::current_exe()?);
    let (load_core, core) = pin::load_and_server_core()?;
    let folder = peers::folder()?;
    let start = |name: &'static str, arguments: &dyn Fn(&mut Program, SocketAddr), program| {
        let address = free_address()?;
        let mut run = Program::new(program);
        arguments(&mut run, address);
        let log = folder.join(format!("grpc-{}.log", name.replace([' ', '\''], "-")));
        let server = Server::start(run, address, core, &log)?;
        io::Result::Ok(Contender { name, server, samples: Vec::new() })
    };
    let echo = |run: &mut Program, address: SocketAddr| {
        run.arg("grpc-echo").arg(address.to_string());
    };
    let mut contenders = vec![start(ECHO, &echo, &us)?];
    for (index, (name, text)) in FORMS.into_iter().enumerate() {
        let file = folder.join(format!("grpc-{index}.yaml"));
        fs::write(&file, text)?;
        let ours = |run: &mut Program, address: SocketAddr| {
            run.args(["serve", "--listen", "127.0.0.1:0", "--http", "off"]);
            run.args(["--grpc", &address.to_string(), "--rules"]).arg(&file);
        };
        contenders.push(start(name, &ours, &program)?);
    }
    // From here on, this thread is the load generator.
    pin::pin(&[load_core])?;
    Ok(contenders)
}

/// Runs the baseline service at an address.
pub(crate) fn serve_echo(address: &str) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    println!("listening on {}", listener.local_addr()?);
    match echo::serve(listener)? {}
}
