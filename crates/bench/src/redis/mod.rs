//! The store on Redis and Valkey: its scripts compared with others on one server, and the savings by its caches.
//!
//! The scripts of the peers are read from their installed packages at run time.

mod peers;
mod store;
mod subject;
pub(crate) mod wire;

use std::io;

use sluicegate_resp::Value;
use sluicegate_testing::Engine;

use crate::{
    others::Others,
    pin,
    report::{Bar, Peer, Table},
    resp::servers::Server,
};
use peers::Peers;
use subject::{CONNECTIONS, FULL, PIPELINE, QUICK, Sizes, Subject};
use wire::{Connection, Span, load};

/// The minimum of any script: read the clock and the key, write the key, return seven integers.
const EMPTY: &str = "\
redis.call('TIME')
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], ARGV[1], 'PX', 60000)
return { 1, 1, 1, 1, 1, 1, 1 }";

pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { QUICK } else { FULL };
    let peers = Peers::installed()?;
    let Sizes { rounds, keys, .. } = sizes;
    println!("redis: {rounds} rounds, {keys} keys, {CONNECTIONS} connections, pipeline {PIPELINE}");
    let (all, (load, _)) = (pin::cores()?, pin::load_and_server_core()?);
    let others = Others::start();
    let mut table = Table::comparison();
    let mut cpu = 0.0;
    for engine in Engine::NEWER {
        pin::pin(&all)?;
        let server = peers.start(engine)?;
        // This thread, the load generator, runs on the other core.
        pin::pin(&[load])?;
        gcra(engine, &server, &peers, &sizes, &mut table)?;
        logs(engine, &server, &peers, &sizes, &mut table)?;
        if engine == Engine::Redis70 {
            store::measure(&server, &sizes, &mut table)?;
        }
        cpu += server.cpu()?.unwrap_or_default();
    }
    pin::pin(&all)?;
    print!("{table}");
    println!(
        "Our script returns one integer for a common take, from which the client derives the decision; the\n\
         empty script returns the seven integers of a decision, and throttled-py's script four."
    );
    println!("{}", others.summary(cpu));
    Ok(())
}

/// Measures subjects in turn, round by round.
fn measure(server: &Server, subjects: &mut [Subject], keys: u64, sizes: &Sizes) -> io::Result<()> {
    for round in 0..sizes.rounds {
        let count = subjects.len();
        for turn in 0..count {
            // Every second round in reverse order, so that none always follows the same one.
            let index = if round % 2 == 0 { turn } else { count - 1 - turn };
            let subject = &mut subjects[index];
            let span = Span::Time(sizes.measured);
            subject.figures.push(load(
                server.address,
                &subject.command,
                CONNECTIONS,
                PIPELINE,
                keys,
                span,
            )?);
        }
    }
    Ok(())
}

fn flush(server: &Server) -> io::Result<()> {
    Connection::new(server.address)?.call(&[b"FLUSHALL"]).map(drop)
}

fn bytes(server: &Server, key: &str) -> io::Result<f64> {
    let mut connection = Connection::new(server.address)?;
    let words: [&[u8]; 5] = [b"MEMORY", b"USAGE", key.as_bytes(), b"SAMPLES", b"0"];
    match connection.call(&words)? {
        Value::Integer(bytes) => Ok(bytes as f64),
        other => Err(io::Error::other(format!("{key}: {other:?}"))),
    }
}

fn gcra(
    engine: Engine,
    server: &Server,
    peers: &Peers,
    sizes: &Sizes,
    table: &mut Table,
) -> io::Result<()> {
    let (allowed, denied, cell) = match engine {
        Engine::Redis70 => (1.2, 1.3, 161.0),
        Engine::Valkey91 | Engine::Redis62 => (1.05, 1.15, 99.0),
    };
    let script = peers.script("throttled/rate_limiter/lua/gcra.lua")?;
    let name = engine.name();
    let empty_argument = [0; 36];
    // Emission interval in seconds, capacity, cost.
    let theirs = |interval: &str, capacity: &str, key: &str| {
        let words = [interval.as_bytes(), capacity.as_bytes(), b"1"];
        Subject::new(server, &script, key, &words)
    };
    // Keys that do not expire before their next use.
    let mut subjects = [
        Subject::ours(server, "gcra:100/1h", "ours")?,
        theirs("36", "100", "throttled")?,
        Subject::new(server, EMPTY, "empty", &[&empty_argument])?,
    ];
    for subject in &subjects {
        subject.fill(server, sizes.keys, 1)?;
    }
    measure(server, &mut subjects, sizes.keys, sizes)?;
    let [ours, throttled, empty] = &subjects;
    let rate = |subject: &Subject| format!("{:.0}/s", subject.median());
    let work = format!("{name}: gcra, allowed");
    let ratio = ours.median() / throttled.median();
    table.compare(
        &work,
        rate(ours),
        Peer::new("throttled-py", rate(throttled)),
        ratio,
        "x",
        Bar::AtLeast(allowed),
    );
    let ratio = ours.median() / empty.median();
    table.compare(
        &work,
        rate(ours),
        Peer::new("empty script", rate(empty)),
        ratio,
        "x",
        Bar::AtLeast(0.8),
    );
    let key = bytes(server, "ours______000000")?;
    let work = format!("{name}: bytes per key, gcra");
    table.compare(
        &work,
        format!("{key:.0} B"),
        Peer::new("redis-cell", format!("{cell:.0} B")),
        key,
        "B",
        Bar::AtMost(cell),
    );

    flush(server)?;
    let mut subjects =
        [Subject::ours(server, "gcra:1/1h", "ours")?, theirs("3600", "1", "throttled")?];
    for subject in &subjects {
        subject.fill(server, sizes.keys, 1)?;
    }
    measure(server, &mut subjects, sizes.keys, sizes)?;
    let [ours, throttled] = &subjects;
    let ratio = ours.median() / throttled.median();
    let work = format!("{name}: gcra, denied");
    table.compare(
        &work,
        rate(ours),
        Peer::new("throttled-py", rate(throttled)),
        ratio,
        "x",
        Bar::AtLeast(denied),
    );
    flush(server)
}

fn logs(
    engine: Engine,
    server: &Server,
    peers: &Peers,
    sizes: &Sizes,
    table: &mut Table,
) -> io::Result<()> {
    const KEYS: u64 = 50;
    let script = peers.script("limits/resources/redis/lua_scripts/acquire_moving_window.lua")?;
    let mut connection = Connection::new(server.address)?;
    let Value::Array(time) = connection.call(&[b"TIME"])? else {
        return Err(io::Error::other("TIME returned no time"));
    };
    let Some(Value::Bulk(seconds)) = time.first() else {
        return Err(io::Error::other("TIME returned no time"));
    };
    let seconds = String::from_utf8_lossy(seconds).into_owned() + ".123456";
    // The client's time, the limit, the period in seconds, the cost.
    let words: [&[u8]; 4] = [seconds.as_bytes(), b"1000", b"600", b"1"];
    let mut subjects = [
        Subject::ours(server, "sliding-log:1000/10m", "ours")?,
        Subject::new(server, &script, "limits", &words)?,
    ];
    for subject in &subjects {
        subject.fill(server, KEYS, 1001)?;
    }
    measure(server, &mut subjects, KEYS, sizes)?;
    let [ours, limits] = &subjects;
    let name = engine.name();
    let rate = |subject: &Subject| format!("{:.0}/s", subject.median());
    let ratio = ours.median() / limits.median();
    let work = format!("{name}: sliding log of 1000, full");
    table.compare(
        &work,
        rate(ours),
        Peer::new("limits", rate(limits)),
        ratio,
        "x",
        Bar::AtLeast(0.4),
    );
    let (own, theirs) = (bytes(server, "ours______000000")?, bytes(server, "limits____000000")?);
    let work = format!("{name}: bytes of the log");
    table.compare(
        &work,
        format!("{own:.0} B"),
        Peer::new("limits", format!("{theirs:.0} B")),
        own / theirs,
        "x",
        Bar::AtMost(0.4),
    );
    flush(server)
}
