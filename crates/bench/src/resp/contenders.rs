//! The servers that are compared, and the command that each receives.

use std::{
    env, io,
    net::{SocketAddr, TcpListener},
    process::Command as Program,
    rc::Rc,
    thread,
};

use super::{
    baseline,
    command::Command,
    peers,
    servers::{Server, free_address},
};
use crate::{load::Sample, ours, pin};

pub(super) const BASELINE: &str = "baseline server";
pub(super) const OURS: &str = "sluicegate";
pub(super) const OURS_SMALL: &str = "sluicegate, CL.THROTTLE key 15 30 60";
pub(super) const OURS_TEXT: &str = "sluicegate, SG.TAKE key gcra:30/60s:burst=16";
pub(super) const REDIS_CELL: &str = "redis-cell on Redis";
pub(super) const THROTTLECRAB: &str = "throttlecrab-server";

/// Depths of pipelines.
pub(super) const PIPELINES: [usize; 3] = [1, 16, 128];

/// One unit per hour and a burst of ten thousand: no key is exhausted, and none recovers during the run.
const LIMIT: [&str; 3] = ["9999", "24", "86400"];

/// A server with the command that it receives.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    pub(super) server: Rc<Server>,
    pub(super) command: Command,
    pub(super) pipelines: &'static [usize],
    /// Measurements, each with the depth of the pipeline.
    pub(super) samples: Vec<(usize, Sample)>,
}

impl Contender {
    fn new(name: &'static str, server: &Rc<Server>, command: &[&str]) -> Self {
        let (server, command) = (Rc::clone(server), Command::new(command));
        Self { name, server, command, pipelines: &PIPELINES, samples: Vec::new() }
    }

    /// Omits the pipeline of one command, because the kernel determines its cost.
    fn pipelined(mut self) -> Self {
        self.pipelines = &PIPELINES[1..];
        self
    }
}

/// Our server and the baseline server, in this process.
pub(super) fn in_process() -> io::Result<Vec<Contender>> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let baseline = Server::in_process(listener.local_addr()?);
    // Both end with the process.
    thread::spawn(move || baseline::serve(&listener));
    Ok(ours(baseline, Server::in_process(ours::serve(None)?.resp)))
}

/// All servers, each as a process on the servers' core. Peers that cannot be installed are left out.
pub(super) fn as_processes() -> io::Result<Vec<Contender>> {
    let program = peers::ours()?;
    let peers = [
        (REDIS_CELL, peers::redis_cell().map(redis)),
        (THROTTLECRAB, peers::throttlecrab().map(throttlecrab)),
    ];
    let (load_core, core) = pin::load_and_server_core()?;
    let start = |name: &str, run: Run| {
        let address = free_address()?;
        let log = peers::folder()?.join(format!("{}.log", name.replace(' ', "-")));
        Server::start(run(address), address, core, &log)
    };

    let us = env::current_exe()?;
    let baseline: Run = Box::new(move |address| {
        let mut run = Program::new(&us);
        run.arg("baseline").arg(address.to_string());
        run
    });
    let serve: Run = Box::new(move |address| {
        let mut run = Program::new(&program);
        run.args(["serve", "--listen", &address.to_string(), "--http", "off", "--grpc", "off"]);
        run
    });
    let mut contenders = ours(start("baseline", baseline)?, start("sluicegate", serve)?);
    for (name, run) in peers {
        let words = if name == REDIS_CELL { "CL.THROTTLE" } else { "THROTTLE" };
        let started = run.and_then(|run| start(name, run)).and_then(|server| {
            let contender = Contender::new(name, &Rc::new(server), &with_limit(words));
            let answer = contender.command.call(contender.server.address)?;
            // The first of five integers is 0 for an allowed request in redis-cell, and 1 in throttlecrab-server.
            let works = answer.len() == 5 && (answer[0] == 0) == (name == REDIS_CELL);
            if works { Ok(contender) } else { Err(io::Error::other(format!("{answer:?}"))) }
        });
        match started {
            Ok(contender) => contenders.push(contender),
            Err(error) => println!("\n*** {name} IS LEFT OUT: {error} ***\n"),
        }
    }
    // From here on, this thread is the load generator.
    pin::pin(&[load_core])?;
    Ok(contenders)
}

/// Creates the command that runs a server at an address.
type Run = Box<dyn FnOnce(SocketAddr) -> Program>;

fn ours(baseline: Server, server: Server) -> Vec<Contender> {
    let (baseline, server) = (Rc::new(baseline), Rc::new(server));
    let small = ["CL.THROTTLE", "throttled:", "15", "30", "60"];
    let text = ["SG.TAKE", "taken-key:", "gcra:30/60s:burst=16"];
    vec![
        Contender::new(BASELINE, &baseline, &with_limit("CL.THROTTLE")),
        Contender::new(OURS, &server, &with_limit("CL.THROTTLE")),
        Contender::new(OURS_SMALL, &server, &small).pipelined(),
        Contender::new(OURS_TEXT, &server, &text).pipelined(),
    ]
}

fn with_limit(name: &'static str) -> [&'static str; 5] {
    let [burst, count, period] = LIMIT;
    [name, "sluicegate", burst, count, period]
}

fn redis(module: std::path::PathBuf) -> Run {
    Box::new(move |address| {
        let mut run = Program::new("redis-server");
        run.args(["--bind", &address.ip().to_string(), "--port", &address.port().to_string()]);
        run.args(["--save", "", "--appendonly", "no", "--loadmodule"]).arg(module);
        run
    })
}

fn throttlecrab(program: std::path::PathBuf) -> Run {
    Box::new(move |address| {
        let mut run = Program::new(program);
        run.args(["--redis", "--redis-host", &address.ip().to_string()]);
        run.args(["--redis-port", &address.port().to_string(), "--log-level", "error"]);
        run
    })
}
