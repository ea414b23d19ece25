//! `cargo xtask dst`: deterministic simulation.
//!
//! One seed is one run: production code, clients, a server and the network between them, in one thread and in virtual
//! time. Equal seeds give equal runs. While faults happen, every answer is checked ([`check`]). `docs/testing.md` explains
//! it to users.

mod check;
mod event_log;
mod generate;
mod library;
mod meter;
mod network;
mod oracle;
mod outcome;
mod picture;
mod plan;
mod process;
mod random;
mod recording;
mod redis_model;
mod run;
mod script;
mod server;
mod shrink;
mod table;
mod time;

use std::{
    env, fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{event_log::Output, outcome::RunOutcome, plan::Plan};

const HELP: &str = "\
usage: cargo xtask dst [--seeds N] [--from SEED] [--minutes M]
       cargo xtask dst --replay SEED [--html FILE | --svg FILE]
       cargo xtask dst --script FILE [--html FILE | --svg FILE]

  --seeds N      runs N seeds (1000), the first of which is --from (0)
  --minutes M    stops after M minutes
  --replay SEED  runs one seed, and prints what happens
  --script FILE  runs a script, and prints what happens
  --html FILE    writes a page with a picture of the run in place of its events
  --svg FILE     writes the picture alone
  --no-shrink    prints no script for a violation";

fn main() -> ExitCode {
    run::watch_panics();
    match command(&env::args().skip(1).collect::<Vec<_>>()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}\n{HELP}");
            ExitCode::FAILURE
        }
    }
}

/// Whether nothing was violated.
fn command(arguments: &[String]) -> Result<bool> {
    let (mut seeds, mut from, mut minutes, mut shrinks) = (1000, 0, u64::MAX, true);
    let (mut replayed, mut drawn): (Option<Plan>, Option<Drawn<'_>>) = (None, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        let mut number = || {
            let value = value()?;
            value.parse::<u64>().with_context(|| format!("invalid {word} `{value}`"))
        };
        match word.as_str() {
            "--seeds" => seeds = number()?,
            "--from" => from = number()?,
            "--minutes" => minutes = number()?,
            "--no-shrink" => shrinks = false,
            "--replay" => replayed = Some(Plan::from_seed(number()?)),
            "--script" => {
                let path = value()?;
                let script = fs::read_to_string(path).with_context(|| path.clone())?;
                replayed = Some(script.parse()?);
            }
            "--html" => drawn = Some((value()?, picture::page)),
            "--svg" => drawn = Some((value()?, picture::svg)),
            _ => bail!("unknown option `{word}`"),
        }
    }
    match (replayed, drawn) {
        (Some(plan), None) => replay(&plan),
        (Some(plan), Some(drawn)) => draw(&plan, drawn),
        (None, None) => explore(from, seeds, minutes, shrinks),
        (None, Some(_)) => bail!("--html and --svg need --replay or --script"),
    }
}

/// A file, and what is written to it.
type Drawn<'a> = (&'a String, fn(&Plan, &RunOutcome) -> String);

/// Runs one plan, and prints its events.
fn replay(plan: &Plan) -> Result<bool> {
    let outcome = run::run(plan, Output::Text)?;
    println!("{} events, hash {:016x}", outcome.events, outcome.hash);
    Ok(report(&outcome))
}

/// Runs one plan, and writes a picture of it.
fn draw(plan: &Plan, (path, drawing): Drawn<'_>) -> Result<bool> {
    let outcome = run::run(plan, Output::Picture)?;
    fs::write(path, drawing(plan, &outcome)).with_context(|| path.clone())?;
    Ok(report(&outcome))
}

/// Prints what was violated. Whether nothing was.
fn report(outcome: &RunOutcome) -> bool {
    if let Some(violation) = &outcome.violation {
        println!("violation: {violation}");
    }
    outcome.violation.is_none()
}

/// Every so many seeds, one runs twice, and both runs must be equal.
const TWICE: u64 = 64;

/// Runs seeds until one violates something, which it shrinks to a script.
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
fn explore(from: u64, seeds: u64, minutes: u64, shrinks: bool) -> Result<bool> {
    let (begin, mut events, mut hash, mut done) = (Instant::now(), 0, 0_u64, 0);
    // Milliseconds of virtual time, and real time: of processes, of tables, and of servers.
    let mut times = [(0, Duration::ZERO); 3];
    for seed in from..from + seeds {
        let plan = Plan::from_seed(seed);
        let started = Instant::now();
        let outcome = run::run(&plan, Output::Nothing)?;
        let (millis, took) =
            &mut times[if plan.server.is_some() { 2 } else { usize::from(plan.table.is_some()) }];
        (*millis, *took) = (*millis + outcome.millis, *took + started.elapsed());
        if cfg!(tokio_unstable) && seed % TWICE == 0 && run::run(&plan, Output::Nothing)? != outcome
        {
            println!("seed {seed}: two runs differ");
            return Ok(false);
        }
        if let Some(violation) = outcome.violation {
            println!("seed {seed}: {violation}");
            if shrinks {
                let script = shrink::shrink(&plan)?;
                println!("# the shortest script that shows it, for --script:\n{script}");
            }
            return Ok(false);
        }
        hash = hash.rotate_left(1) ^ outcome.hash;
        events += outcome.events;
        done += 1;
        if begin.elapsed() >= Duration::from_secs(minutes.saturating_mul(60)) {
            break;
        }
    }
    let took = begin.elapsed().as_secs_f64();
    let [processes, tables, servers] =
        times.map(|(millis, took)| millis as f64 / 1000.0 / took.as_secs_f64().max(1e-9));
    println!(
        "figure: {done} seeds from {from} without a violation: {events} events, hash {hash:016x}, {:.0} seeds a \
         second; as fast as real time: processes {processes:.0} times, tables {tables:.0} times, servers {servers:.0} times",
        done as f64 / took
    );
    Ok(true)
}
