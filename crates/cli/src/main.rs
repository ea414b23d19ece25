//! The command `sluicegate`: serves, asks a server, explains policies and simulates traffic.

mod arguments;
mod ask;
mod client;
mod explain;
mod promise;
mod redis;
mod rules;
mod serve;
mod simulate;
mod table;
mod words;

use std::{io, process::ExitCode};

use clap::FromArgMatches;

use arguments::{Arguments, Command};

/// What a command ends with when it is about a request that was denied.
const DENIED: u8 = 1;
/// What it ends with when it failed.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match command().and_then(run) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

/// What is said on the command line, in the environment and in the file of settings.
fn command() -> anyhow::Result<Command> {
    let matches = serve::read()?;
    let mut arguments = Arguments::from_arg_matches(&matches)?;
    if let (Command::Simulate(options), Some((_, matches))) =
        (&mut arguments.command, matches.subcommand())
    {
        options.note_order(matches);
    }
    Ok(arguments.command)
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(options) => serve::serve(*options)?,
        Command::Take(question) => return ask::take(&question),
        Command::Peek(question) => return ask::peek(&question),
        Command::Reset(key) => ask::reset(&key)?,
        Command::Info(key) => ask::info(&key)?,
        Command::Policy { policies } => explain::explain(&policies, &mut io::stdout().lock())?,
        Command::Simulate(options) => simulate::simulate(&options)?,
        Command::Rules(command) => return rules::run(&command),
        Command::Redis(command) => return redis::run(&command),
    }
    Ok(ExitCode::SUCCESS)
}

/// Whoever read our output has seen enough.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
