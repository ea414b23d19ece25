//! The command `sluicegate`: the server, its command-line client, explanations of policies, and simulation.

mod arguments;
mod client;
mod connection;
mod drawing;
mod explain;
mod format;
mod generate;
mod health;
mod input;
mod key_commands;
mod output;
mod percent;
mod recommend;
mod redis;
mod rules;
mod serve;
mod simulate;
mod table;
mod usage;
mod values;
mod version;
mod why;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use arguments::{Arguments, Command};
use output::FAILED;
use output::{output, report};

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) if output::is_closed(&error) => ExitCode::SUCCESS,
        Err(error) => {
            report(format_args!("error: {error:#}"));
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
    match (&mut arguments.command, matches.subcommand()) {
        (Command::Simulate(options), Some((_, matches))) => options.note_order(matches),
        (Command::Recommend(options), Some((_, matches))) => options.note_given(matches),
        _ => {}
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
        // `start` has run it already, with its settings.
        Command::Serve(_) => {}
        Command::Take(arguments) => return key_commands::take(&arguments),
        Command::Peek(arguments) => return key_commands::peek(&arguments),
        Command::Reset(key) => key_commands::reset(&key)?,
        Command::Info(key) => key_commands::info(&key)?,
        Command::Policy { policies } => explain::explain(&policies, &mut output())?,
        Command::Simulate(options) => simulate::simulate(&options)?,
        Command::Recommend(options) => recommend::recommend(&options)?,
        Command::Rules(command) => return rules::run(&command),
        Command::Redis(command) => return redis::run(&command),
        Command::Why(options) => why::explain(&options)?,
        Command::Health { address } => return health::check(&address),
        Command::Completions { shell } => {
            generate::completions(shell, &mut definition(Arguments::command()))?;
        }
        Command::ManPages { folder } => {
            generate::man_pages(definition(Arguments::command()), &folder)?
        }
        Command::Version => version::print()?,
    }
    Ok(ExitCode::SUCCESS)
}
