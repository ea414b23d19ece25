//! The cost of the denial log: the server with `--log-denials` compared with the same without, over RESP, while one request
//! in ten is denied.
//!
//! One key in ten is exhausted before. Few keys share lines, whose counts grow; many have more denials than lines, which
//! are dropped and counted.

use std::{
    io::{self, Write},
    net::{SocketAddr, TcpStream},
    process::Command as Program,
    time::Duration,
};

use sluicegate_server::{Config, DenialOutput};

use crate::{
    keys::{KeySequence, MAX_KEYS, Random},
    load::{REPLY_TIMEOUT, Sample, Sizes},
    others::Others,
    ours, pin,
    report::{Bar, Peer, Table, median, ratio},
    resp::{
        command::Command,
        load, peers,
        servers::{Server, free_address},
    },
};

/// One key in this number is exhausted.
const DENIED: u64 = 10;
/// A unit in six minutes, and a burst that no key uses up: a key that is exhausted stays so.
const LIMIT: [&str; 5] = ["CL.THROTTLE", "sluicegate", "999999", "10", "3600"];
const ALL_UNITS: &str = "1000000";
/// Numbers of keys, and depths of pipelines.
const LOADS: [(u64, usize); 4] = [(1000, 16), (1000, 128), (MAX_KEYS, 16), (MAX_KEYS, 128)];
const ROUNDS: usize = 15;

const FULL: Sizes = Sizes {
    rounds: ROUNDS,
    connections: 50,
    keys: MAX_KEYS,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(800),
};

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { Sizes::QUICK } else { FULL };
    // Without the log, and with it.
    let servers = if quick { in_process()? } else { as_processes()? };
    let command = Command::new(&LIMIT);
    for server in &servers {
        exhaust(server.address, sizes.keys)?;
    }
    let (others, before) = (Others::start(), cpu(&servers)?);
    let mut samples = [const { Vec::new() }; LOADS.len()];
    for round in 0..sizes.rounds {
        for (index, (keys, pipeline)) in LOADS.into_iter().enumerate() {
            let keys = keys.min(sizes.keys);
            let mut pair = [None; 2];
            // Every second round in reverse order, so that neither always follows the other.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let server = &servers[which];
                let draw = KeySequence::Random(Random::new(1 + (round * 10 + index) as u64), keys);
                let (address, connections) = (server.address, sizes.connections);
                let load = load::connect(address, connections, pipeline, &command, draw)?;
                pair[which] = Some(load.measure(&sizes, || server.cpu())?);
            }
            samples[index].push(pair.map(|it| it.expect("both are measured")));
        }
        print!(".");
        io::stdout().flush()?;
    }
    let others = others.summary(cpu(&servers)? - before);
    println!(
        "\ndenials: {} rounds, {} connections, 1 in 10 denied",
        sizes.rounds, sizes.connections
    );
    let mut table = Table::comparison();
    for ((keys, pipeline), samples) in LOADS.into_iter().zip(&samples) {
        let rate = |it: &Sample| it.requests / it.seconds;
        let rates =
            [0, 1].map(|which| samples.iter().map(|it| rate(&it[which])).collect::<Vec<_>>());
        let [without, with] = &rates;
        let text = |rate: f64| format!("{:.1} k/s", rate / 1e3);
        let work = format!("--log-denials, {} keys, pipeline {pipeline}", keys.min(sizes.keys));
        let (ours, peer) = (text(median(with)), Peer::new("without", text(median(without))));
        table.compare(&work, ours, peer, ratio(with, without), "x", Bar::AtLeast(0.97));
        // It says more than the rate where other processes use the core.
        let cpu = |which: usize| {
            let of = |it: &[Sample; 2]| Some((it[which].cpu?, it[which].requests));
            let all = samples.iter().map(of).collect::<Option<Vec<_>>>()?;
            let (seconds, requests) =
                all.iter().fold((0.0, 0.0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
            Some(seconds * 1e6 / requests)
        };
        if let (Some(without), Some(with)) = (cpu(0), cpu(1)) {
            let text = |cpu: f64| format!("{cpu:.3} us");
            let peer = Peer::new("without", text(without));
            let figure = without / with;
            table.compare(
                "the same, CPU of the server per request",
                text(with),
                peer,
                figure,
                "x",
                Bar::None,
            );
        }
    }
    println!("{table}");
    println!("{others}");
    Ok(())
}

/// Takes all units of one key in [`DENIED`].
fn exhaust(address: SocketAddr, keys: u64) -> io::Result<()> {
    const DEPTH: usize = 100;
    let command = Command::new(&[&LIMIT[..], &[ALL_UNITS]].concat());
    let reply_lines = 1 + command.call(address)?.len();
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let (mut batch, mut next, mut buffer) = (command.batch(DEPTH), 0, vec![0; 1 << 16]);
    while next < keys {
        command.draw(&mut batch, || {
            next += DENIED;
            next - DENIED
        });
        socket.write_all(&batch)?;
        let mut lines = 0;
        while lines < DEPTH * reply_lines {
            let count = io::Read::read(&mut socket, &mut buffer)?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            lines += buffer[..count].iter().filter(|&&byte| byte == b'\n').count();
        }
    }
    Ok(())
}

/// Seconds of processor time of both servers.
fn cpu(servers: &[Server; 2]) -> io::Result<f64> {
    servers.iter().map(|it| Ok(it.cpu()?.unwrap_or(0.0))).sum()
}

fn in_process() -> io::Result<[Server; 2]> {
    let mut logging = Config::default();
    logging.denial_log = Some(DenialOutput::File("/dev/null".into()));
    let [without, with] = [Config::default(), logging].map(ours::serve_with);
    Ok([Server::in_process(without?.resp), Server::in_process(with?.resp)])
}

/// Each as a process on the servers' core; the log is a file.
fn as_processes() -> io::Result<[Server; 2]> {
    let program = peers::ours()?;
    let (load_core, core) = pin::load_and_server_core()?;
    let folder = peers::folder()?;
    let start = |name: &str, more: Option<String>| {
        let address = free_address()?;
        let mut run = Program::new(&program);
        run.args(["serve", "--listen", &address.to_string(), "--http", "off", "--grpc", "off"]);
        run.args(more);
        Server::start(run, address, core, &folder.join(format!("{name}.log")))
    };
    let log = folder.join("denials.jsonl");
    let servers = [
        start("without-denials", None)?,
        start("with-denials", Some(format!("--log-denials={}", log.display())))?,
    ];
    // From here on, this thread is the load generator.
    pin::pin(&[load_core])?;
    Ok(servers)
}
