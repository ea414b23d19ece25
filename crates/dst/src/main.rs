//! `cargo xtask dst`: deterministic simulation.
//!
//! One seed is one run: production code, clients, a server and the network between them, in one thread and in virtual
//! time. Equal seeds give equal runs. While faults happen, every answer is checked ([`check`]). `docs/testing.md` explains
//! it to users.

mod check;
mod event_log;
mod generate;
mod meter;
mod network;
mod outcome;
mod plan;
mod process;
mod random;
mod redis_model;
mod run;
mod script;
mod shrink;
mod table;
mod time;

use std::{
    env, fs,
    process::ExitCode,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::plan::Plan;

const HELP: &str = "\
usage: cargo xtask dst [--seeds N] [--from SEED] [--minutes M]
       cargo xtask dst --replay SEED
       cargo xtask dst --script FILE

  --seeds N      runs N seeds (1000), the first of which is --from (0)
  --minutes M    stops after M minutes
  --replay SEED  runs one seed, and prints what happens
  --script FILE  runs a script, and prints what happens
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
            "--replay" => return replay(&Plan::from_seed(number()?)),
            "--script" => {
                let path = value()?;
                let script = fs::read_to_string(path).with_context(|| path.clone())?;
                return replay(&script.parse()?);
            }
            _ => bail!("unknown option `{word}`"),
        }
    }
    explore(from, seeds, minutes, shrinks)
}

/// Runs one plan, and prints its events.
fn replay(plan: &Plan) -> Result<bool> {
    let outcome = run::run(plan, true)?;
    println!("{} events, hash {:016x}", outcome.events, outcome.hash);
    if let Some(violation) = &outcome.violation {
        println!("violation: {violation}");
    }
    Ok(outcome.violation.is_none())
}

/// Every so many seeds, one runs twice, and both runs must be equal.
const TWICE: u64 = 64;

/// Runs seeds until one violates something, which it shrinks to a script.
#[expect(clippy::disallowed_methods, reason = "how long it takes is printed")]
fn explore(from: u64, seeds: u64, minutes: u64, shrinks: bool) -> Result<bool> {
    let (begin, mut millis, mut events, mut hash) = (Instant::now(), 0, 0, 0_u64);
    let mut done = 0;
    for seed in from..from + seeds {
        let plan = Plan::from_seed(seed);
        let outcome = run::run(&plan, false)?;
        if cfg!(tokio_unstable) && seed % TWICE == 0 && run::run(&plan, false)? != outcome {
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
        millis += outcome.millis;
        events += outcome.events;
        done += 1;
        if begin.elapsed() >= Duration::from_secs(minutes.saturating_mul(60)) {
            break;
        }
    }
    let took = begin.elapsed().as_secs_f64();
    println!(
        "figure: {done} seeds from {from} without a violation: {events} events, hash {hash:016x}, {:.0} seeds a \
         second, {:.0} times as fast as real time",
        done as f64 / took,
        millis as f64 / 1000.0 / took
    );
    Ok(true)
}
