//! The module in Redis and Valkey, compared with redis-cell, a plain `SET`, and our script.
//!
//! Each has a separate server process, of the same kind, on the same core. Microseconds per call are
//! those that the server reports (`commandstats`).

pub(crate) mod servers;

use std::{io, net::SocketAddr, rc::Rc, time::Duration};

use sluicegate_core::{Operation, Policy, Timestamp};
use sluicegate_redis::script::Plan;
use sluicegate_testing::Engine;

use crate::{
    keys::{KeySequence, MAX_KEYS, Random},
    load::Sizes,
    others::Others,
    pin,
    report::{Bar, Peer, Table, median, ratio},
    resp::{command::Command, load, peers, servers::Server},
};
use servers::{call, info_number};

const FULL: Sizes = Sizes {
    rounds: 9,
    connections: 50,
    keys: MAX_KEYS,
    warm_up: Duration::from_millis(200),
    measured: Duration::from_millis(700),
};
const QUICK: Sizes = Sizes {
    rounds: 1,
    connections: 4,
    keys: 1000,
    warm_up: Duration::from_millis(2),
    measured: Duration::from_millis(20),
};

/// The workloads, each with a depth of the pipeline.
const ALLOWED: Work = Work { name: "1M keys, allowed", pipeline: 16, one_key: false };
const DENIED: Work = Work { name: "one key, denied", pipeline: 16, one_key: true };
const DENIED_DEEP: Work = Work { name: "one key, denied", pipeline: 128, one_key: true };
const LOG: Work = Work { name: "sliding-log 1000/1m, full", pipeline: 16, one_key: true };

const OURS: &str = "CL.THROTTLE";
const OURS_TEXT: &str = "SG.TAKE gcra";
const OURS_LOG: &str = "SG.TAKE sliding-log";
const CELL: &str = "redis-cell";
const SET: &str = "SET PX";
const LUA: &str = "our Lua";

#[derive(Clone, Copy, PartialEq, Eq)]
struct Work {
    name: &'static str,
    pipeline: usize,
    one_key: bool,
}

/// A command on a server, with its measurements.
struct Subject {
    name: &'static str,
    work: Work,
    server: Rc<Server>,
    command: Command,
    /// Name of the command in `commandstats`.
    stats_name: &'static str,
    /// Bytes that its server used without keys.
    before: f64,
    /// Bytes per key: after the first take of each key, and after the measurement.
    bytes: Vec<f64>,
    rates: Vec<f64>,
    micros: Vec<f64>,
}

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { FULL };
    let (module, cell) = (peers::module()?, peers::redis_cell()?);
    let (module, cell) = (module.to_string_lossy(), cell.to_string_lossy());
    let Sizes { rounds, connections, keys, .. } = sizes;
    println!("module: {rounds} rounds, {connections} connections, {keys} keys");
    let others = Others::start();
    let mut cpu = 0.0;
    let mut table = Table::comparison();
    for engine in Engine::NEWER {
        let start = |arguments: &[&str]| servers::start(engine, arguments).map(Rc::new);
        let servers = [
            start(&["--loadmodule", &module])?,
            start(&["--loadmodule", &module])?,
            start(&["--loadmodule", &cell])?,
            start(&[])?,
        ];
        // From here on, this thread is the load generator.
        let all = pin::cores()?;
        pin::pin(&[pin::load_and_server_core()?.0])?;
        let mut subjects = subjects(&servers)?;
        fill(&mut subjects, &sizes)?;
        for round in 0..rounds {
            for index in 0..subjects.len() {
                // Every second round in reverse order, so that none always follows the same one.
                let index = if round % 2 == 0 { index } else { subjects.len() - 1 - index };
                subjects[index].measure(&sizes, 1 + round as u64)?;
            }
        }
        for subject in &mut subjects {
            subject.measure_bytes(&sizes)?;
        }
        pin::pin(&all)?;
        compare(engine, &subjects, &mut table);
        let written = written_by_denials(engine, &module)?;
        let work = format!("{}: bytes of append-only file per denial", engine.name());
        table.compare(&work, format!("{written} B"), Peer::none(), written, "B", Bar::AtMost(0.0));
        for server in &servers {
            cpu += server.cpu()?.unwrap_or_default();
        }
    }
    println!("{table}");
    println!("{}", others.summary(cpu));
    Ok(())
}

fn subjects([ours, text, cell, plain]: &[Rc<Server>; 4]) -> io::Result<Vec<Subject>> {
    // One unit per hour and a burst of ten thousand: no key is exhausted, and none recovers during the run.
    let throttle = ["CL.THROTTLE", "sluicegate", "9999", "24", "86400"];
    // One unit per hour and a burst of one.
    let hot = ["CL.THROTTLE", "hotsluice:", "0", "24", "86400"];
    let take = ["SG.TAKE", "sluicegate", "gcra:24/1d:burst=10000"];
    let log = ["SG.TAKE", "log-of-us:", "sliding-log:1000/1m"];
    let set = ["SET", "sluicegate", "1700000000000000000", "PX", "86400000"];
    let lua = script(plain)?;
    let lua: Vec<&[u8]> = lua.iter().map(Vec::as_slice).collect();
    let of = |name, work, server: &Rc<Server>, stats_name, command| Subject {
        name,
        work,
        server: Rc::clone(server),
        command,
        stats_name,
        before: 0.0,
        bytes: Vec::new(),
        rates: Vec::new(),
        micros: Vec::new(),
    };
    let cl = "cl.throttle";
    Ok(vec![
        of(OURS, ALLOWED, ours, cl, Command::new(&throttle)),
        of(CELL, ALLOWED, cell, cl, Command::new(&throttle)),
        of(OURS_TEXT, ALLOWED, text, "sg.take", Command::new(&take)),
        of(SET, ALLOWED, plain, "set", Command::new(&set).with_simple_reply()),
        of(OURS, DENIED, ours, cl, Command::new(&hot)),
        of(CELL, DENIED, cell, cl, Command::new(&hot)),
        of(OURS, DENIED_DEEP, ours, cl, Command::new(&hot)),
        of(CELL, DENIED_DEEP, cell, cl, Command::new(&hot)),
        of(OURS_LOG, LOG, text, "sg.take", Command::new(&log)),
        of(LUA, LOG, plain, "evalsha", Command::with_key_at(3, &lua)),
    ])
}

/// Our script for a log, as a command.
fn script(server: &Server) -> io::Result<Vec<Vec<u8>>> {
    let policy: Policy = "sliding-log:1000/1m".parse().map_err(io::Error::other)?;
    let plan = Plan::new(&policy);
    call(server.address, &[b"SCRIPT", b"LOAD", plan.script().text().as_bytes()])?;
    let arguments = plan
        .arguments(Operation::Take(1), Timestamp::EPOCH, None, &[])
        .map_err(io::Error::other)?;
    let words: [&[u8]; 4] = [b"EVALSHA", plan.script().sha1().as_bytes(), b"1", b"log-of-lua"];
    Ok(words.into_iter().chain(arguments.iter()).map(<[u8]>::to_vec).collect())
}

/// Sends at least one command for every key.
fn fill(subjects: &mut [Subject], sizes: &Sizes) -> io::Result<()> {
    for subject in subjects {
        let address = subject.server.address;
        subject.before = used(address)?;
        let keys = if subject.work.one_key { 2000 } else { sizes.keys };
        let draw = if subject.work.one_key {
            KeySequence::Random(Random::new(1), 1)
        } else {
            KeySequence::InOrder(0)
        };
        let load = load::connect(address, sizes.connections, 16, &subject.command, draw)?;
        load.send_at_least(keys)?;
        subject.measure_bytes(sizes)?;
    }
    Ok(())
}

/// Bytes that a server uses.
fn used(address: SocketAddr) -> io::Result<f64> {
    info_number(address, "memory", "used_memory:")
}

impl Subject {
    /// Measures the bytes per key.
    fn measure_bytes(&mut self, sizes: &Sizes) -> io::Result<()> {
        self.bytes.push((used(self.server.address)? - self.before) / sizes.keys as f64);
        Ok(())
    }

    fn measure(&mut self, sizes: &Sizes, seed: u64) -> io::Result<()> {
        let address = self.server.address;
        let keys = if self.work.one_key { 1 } else { sizes.keys };
        let draw = KeySequence::Random(Random::new(seed), keys);
        let (pipeline, command) = (self.work.pipeline, &self.command);
        let load = load::connect(address, sizes.connections, pipeline, command, draw)?;
        call(address, &[b"CONFIG", b"RESETSTAT"])?;
        let sample = load.measure(sizes, || Ok(None))?;
        self.rates.push(sample.requests / sample.seconds);
        let stats_name = format!("cmdstat_{}:", self.stats_name);
        let calls = info_number(address, "commandstats", &format!("{stats_name}calls="))?;
        let usec = format!("{stats_name}calls={calls},usec=");
        self.micros.push(info_number(address, "commandstats", &usec)? / calls);
        Ok(())
    }
}

/// Bytes that a denial adds to the append-only file.
fn written_by_denials(engine: Engine, module: &str) -> io::Result<f64> {
    // By default, the server writes later while an earlier write is being synced.
    let file = ["--appendonly", "yes", "--appendfsync", "no"];
    let server = servers::start(engine, &[&file[..], &["--loadmodule", module]].concat())?;
    let command = Command::new(&["CL.THROTTLE", "hotsluice:", "0", "24", "86400"]);
    let load = || {
        let draw = KeySequence::Random(Random::new(1), 1);
        load::connect(server.address, 1, 16, &command, draw)?.send_at_least(1000)
    };
    load()?;
    let written = || info_number(server.address, "persistence", "aof_current_size:");
    let before = written()?;
    load()?;
    let each = (written()? - before) / 1000.0;
    drop(server);
    Ok(each)
}

/// Adds the rows of a server to the table.
fn compare(engine: Engine, subjects: &[Subject], table: &mut Table) {
    let of = |name: &str, work: Work| subjects.iter().find(|it| it.name == name && it.work == work);
    let rates_of = |name, work| of(name, work).map_or(&[][..], |it| &it.rates);
    let micros_of = |name, work| of(name, work).map_or(&[][..], |it| &it.micros);
    let rates = [
        (ALLOWED, OURS, CELL, 1.6),
        (ALLOWED, OURS, SET, 0.85),
        (DENIED, OURS, CELL, 1.3),
        (DENIED_DEEP, OURS, CELL, 1.5),
        (ALLOWED, OURS_TEXT, OURS, 0.85),
        (LOG, OURS_LOG, LUA, 3.0),
    ];
    for (work, ours, peer, bar) in rates {
        let title = format!("{}: {ours}, {}, pipeline {}", engine.name(), work.name, work.pipeline);
        let (own, theirs) = (rates_of(ours, work), rates_of(peer, work));
        let text = |rates: &[f64]| format!("{:.1} k/s", median(rates) / 1e3);
        let (bar, ratio) = (Bar::AtLeast(bar), ratio(own, theirs));
        table.compare(&title, text(own), Peer::new(peer, text(theirs)), ratio, "x", bar);
    }
    let micros = [
        (DENIED, OURS, CELL, Bar::AtMost(0.5)),
        (ALLOWED, OURS, CELL, Bar::AtMost(0.6)),
        (LOG, OURS_LOG, LUA, Bar::AtMost(1.0 / 8.0)),
    ];
    for (work, ours, peer, bar) in micros {
        let title = format!("{}: {ours}, {}, us per call", engine.name(), work.name);
        let (own, theirs) = (micros_of(ours, work), micros_of(peer, work));
        let text = |micros: &[f64]| format!("{:.3} us", median(micros));
        table.compare(
            &title,
            text(own),
            Peer::new(peer, text(theirs)),
            ratio(own, theirs),
            "x",
            bar,
        );
    }
    for (index, (state, bar)) in
        [("", Bar::AtMost(1.0)), (", after the run", Bar::None)].into_iter().enumerate()
    {
        // Rounded: the fraction is memory for connections and statistics.
        let bytes = |name| of(name, ALLOWED).map_or(f64::NAN, |it| it.bytes[index].round());
        let (own, theirs) = (bytes(OURS), bytes(CELL));
        let text = |bytes: f64| format!("{bytes:.0} B");
        let title = format!("{}: bytes per key{state}", engine.name());
        table.compare(&title, text(own), Peer::new(CELL, text(theirs)), own / theirs, "x", bar);
    }
}
