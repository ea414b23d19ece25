//! Comparison of servers over TCP: Sluicegate, a baseline server without limits, and other rate limiters.

mod baseline;
pub(crate) mod command;
mod contenders;
pub(crate) mod load;
pub(crate) mod peers;
mod results;
pub(crate) mod servers;

use std::{
    io::{self, Write},
    net::TcpListener,
    rc::Rc,
    time::Duration,
};

use contenders::{Contender, PIPELINES};

use crate::{
    keys::{KeySequence, MAX_KEYS, Random},
    load::{Load, Sample, Sizes},
    others::Others,
};

const FULL: Sizes = Sizes {
    rounds: 5,
    connections: 50,
    keys: MAX_KEYS,
    warm_up: Duration::from_millis(300),
    measured: Duration::from_millis(1500),
};
pub(crate) fn run(quick: bool) -> io::Result<()> {
    let sizes = if quick { Sizes::QUICK } else { FULL };
    let mut contenders =
        if quick { contenders::in_process()? } else { contenders::as_processes()? };
    let (rounds, connections, keys) = (sizes.rounds, sizes.connections, sizes.keys);
    println!("resp: {rounds} rounds, {connections} connections, {keys} keys at random");
    let others = Others::start();
    let before = servers_cpu(&contenders)?;

    for contender in &contenders {
        let load = connect(contender, &sizes, PIPELINES[2], KeySequence::InOrder(0));
        load.and_then(|load| load.send_at_least(keys)).map_err(|error| named(contender, &error))?;
    }
    for round in 0..rounds {
        for pipeline in PIPELINES {
            for contender in in_turn(&mut contenders, round) {
                if contender.pipelines.contains(&pipeline) {
                    let seed = 1 + round as u64 * 1000 + pipeline as u64;
                    let sample = measure(contender, &sizes, pipeline, seed);
                    let sample = sample.map_err(|error| named(contender, &error))?;
                    contender.samples.push((pipeline, sample));
                }
            }
        }
        print!(".");
        io::stdout().flush()?;
    }
    println!();
    let others = others.summary(servers_cpu(&contenders)? - before);
    results::print(&contenders);
    println!("{others}");
    Ok(())
}

/// Seconds of processor time of all servers, each counted once.
fn servers_cpu(contenders: &[Contender]) -> io::Result<f64> {
    let mut servers: Vec<_> = contenders.iter().map(|it| &it.server).collect();
    servers.dedup_by(|one, other| Rc::ptr_eq(one, other));
    servers.into_iter().map(|it| Ok(it.cpu()?.unwrap_or(0.0))).sum()
}

/// All contenders, in reverse order in every second round, so that none always follows the same one.
fn in_turn(
    contenders: &mut [Contender],
    round: usize,
) -> Box<dyn Iterator<Item = &mut Contender> + '_> {
    let all = contenders.iter_mut();
    if round.is_multiple_of(2) { Box::new(all) } else { Box::new(all.rev()) }
}

fn measure(contender: &Contender, sizes: &Sizes, pipeline: usize, seed: u64) -> io::Result<Sample> {
    let draw = KeySequence::Random(Random::new(seed), sizes.keys);
    let load = connect(contender, sizes, pipeline, draw)?;
    load.measure(sizes, || contender.server.cpu())
}

fn connect(
    contender: &Contender,
    sizes: &Sizes,
    pipeline: usize,
    draw: KeySequence,
) -> io::Result<Load<load::Pipeline>> {
    let (address, command) = (contender.server.address, &contender.command);
    load::connect(address, sizes.connections, pipeline, command, draw)
}

fn named(contender: &Contender, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", contender.name))
}

/// Runs the baseline server, by default on a free port.
pub(crate) fn serve_baseline(address: Option<&str>) -> io::Result<()> {
    let listener = TcpListener::bind(address.unwrap_or("127.0.0.1:0"))?;
    println!("listening on {}", listener.local_addr()?);
    baseline::serve(&listener)
}
