//! The command `sluicegate`: the server, its command-line client, explanations of policies, and simulation.

mod arguments;
mod ask;
mod client;
mod explain;
mod percent;
mod redis;
mod rules;
mod serve;
mod simulate;
mod table;
mod usage;
mod values;
mod version;
mod words;

use std::{io, process::ExitCode};

use clap::{CommandFactory, FromArgMatches};

use arguments::{Arguments, Command};

/// Exit status of a command whose request was denied.
const DENIED: u8 = 1;
/// Exit status of a command that failed.
const FAILED: u8 = 2;

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(FAILED)
        }
    }
}

fn start() -> anyhow::Result<ExitCode> {
    let definition = definition(Arguments::command());
    let (matches, settings) = serve::read(&definition)?;
    if let Some(settings) = settings {
        serve::serve(settings)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut arguments = Arguments::from_arg_matches(&matches)?;
    if let (Command::Simulate(options), Some((_, matches))) =
        (&mut arguments.command, matches.subcommand())
    {
        options.note_order(matches);
    }
    run(arguments.command)
}

/// Numbers may be negative, because the check of their value has the better error. The help is the same in
/// every environment.
fn definition(command: clap::Command) -> clap::Command {
    command
        .mut_args(|argument| {
            let has_value = argument.get_action().takes_values();
            let argument = argument.hide_env_values(true);
            if has_value { argument.allow_negative_numbers(true) } else { argument }
        })
        .mut_subcommands(definition)
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        // It was started with its settings.
        Command::Serve(_) => {}
        Command::Take(question) => return ask::take(&question),
        Command::Peek(question) => return ask::peek(&question),
        Command::Reset(key) => ask::reset(&key)?,
        Command::Info(key) => ask::info(&key)?,
        Command::Policy { policies } => explain::explain(&policies, &mut io::stdout().lock())?,
        Command::Simulate(options) => simulate::simulate(&options)?,
        Command::Rules(command) => return rules::run(&command),
        Command::Redis(command) => return redis::run(&command),
        Command::Version => version::print()?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether the reader of our output has closed it.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause
            .downcast_ref::<io::Error>()
            .is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}
