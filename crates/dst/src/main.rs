//! `cargo xtask dst`: deterministic simulation.
//!
//! One seed is one run: production code, clients, a server and the network between them, in one thread and in virtual
//! time. Equal seeds give equal runs. While faults happen, every answer is checked ([`check`]). `docs/testing.md` explains
//! it to users.

mod check;
mod event_log;
mod explore;
mod generate;
mod meter;
mod network;
mod oracle;
mod plan;
mod quotas;
mod random;
mod redis_model;
mod run;
mod server;
mod shared;
mod shrink;
mod table;
mod text;
mod time;
mod worlds;

use std::{env, fs, process::ExitCode};

use anyhow::{Context as _, Result, bail};

use crate::{
    event_log::{Output, print_line},
    explore::{Seeds, explore},
    worlds::{AnyPlan, KINDS, from_seed},
};

/// More threads than this make no sense.
const MAX_JOBS: usize = 256;

const HELP: &str = "\
usage: cargo xtask dst [--seeds N] [--from SEED] [--minutes M] [--jobs N] [--only KINDS]
       cargo xtask dst --replay SEED
       cargo xtask dst --script FILE

  --seeds N      runs N seeds (1000), the first of which is --from (0)
  --minutes M    stops after M minutes
  --jobs N       runs seeds in N threads (1)
  --only KINDS   runs only these kinds of seeds: processes (with one server), cluster, table, server,
                 quotas
  --replay SEED  runs one seed, and prints what happens
  --script FILE  runs a script, and prints what happens
  --no-shrink    prints no script for a violation
  --marks        prints how often each state was reached that production code marks. A run of 10000 seeds
                 fails if it never reached one";

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
    let mut seeds = Seeds {
        first: 0,
        count: 1000,
        minutes: u64::MAX,
        jobs: 1,
        shrinks: true,
        marks: false,
        kinds: [true; KINDS.len()],
    };
    let (mut replayed, mut script): (Option<u64>, Option<Box<dyn AnyPlan>>) = (None, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        let mut number = || {
            let value = value()?;
            value.parse::<u64>().with_context(|| format!("invalid {word} `{value}`"))
        };
        match word.as_str() {
            "--seeds" => seeds.count = number()?,
            "--from" => seeds.first = number()?,
            "--minutes" => seeds.minutes = number()?,
            "--jobs" => seeds.jobs = usize::try_from(number()?)?.clamp(1, MAX_JOBS),
            "--only" => {
                let names: Vec<_> = value()?.split(',').collect();
                seeds.kinds = KINDS.map(|name| names.contains(&name));
                if let Some(name) = names.iter().find(|it| !KINDS.contains(it)) {
                    bail!("invalid --only `{name}`: expected {}", KINDS.join(", "));
                }
            }
            "--no-shrink" => seeds.shrinks = false,
            "--marks" => seeds.marks = true,
            "--replay" => replayed = Some(number()?),
            "--script" => {
                let path = value()?;
                let text = fs::read_to_string(path).with_context(|| path.clone())?;
                script = Some(worlds::read(&text)?);
            }
            _ => bail!("unknown option `{word}`"),
        }
    }
    match script.or_else(|| replayed.map(from_seed)) {
        Some(plan) => Ok(replay(&*plan)),
        None => explore(seeds),
    }
}

/// Runs one plan, and prints its events and the violation. Returns whether there was none.
fn replay(plan: &dyn AnyPlan) -> bool {
    let outcome = plan.run(Output::Text);
    print_line(format_args!("{} events, hash {:016x}", outcome.events, outcome.hash));
    if let Some(violation) = &outcome.violation {
        print_line(format_args!("violation: {violation}"));
    }
    outcome.violation.is_none()
}
