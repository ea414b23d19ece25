//! The command line.

use std::{ffi::OsString, path::PathBuf};

use clap::{Args, Parser, Subcommand};

use sluicegate_core::{Limit, Policy};
use sluicegate_server::Config;

use crate::{
    connection::Connection, generate, recommend::Recommend, serve::Serve, simulate::Simulate,
    values, why::Why,
};

const EXAMPLES: &str = "\
Examples:
  sluicegate serve
      start a server on 127.0.0.1:6380 for any Redis client
  sluicegate take user7 gcra:30/1m:burst=16
      take one unit of user7's limit from that server
  sluicegate policy sliding-log:30/1m,fixed-window:1000/day
      explain what a policy allows
  sluicegate simulate --policy fixed-window:100/60s:align=clock scenarios/boundary-burst.csv
      replay recorded traffic against a policy
  sluicegate recommend examples/logs/access.log
      find a limit for a log, and see which keys it denies

A policy is ALGORITHM:N/PERIOD[:option[=value]]...; commas join several limits. Algorithms:
";

/// The end of the help: examples, and the names of the algorithms.
fn after_help() -> String {
    let names: Vec<_> = Limit::names().collect();
    format!("{EXAMPLES}{}.", names.join(", "))
}

/// A rate limiter that is exact to the microsecond.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, after_help = after_help(), max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a server for Redis clients, HTTP and gRPC, with a dashboard
    Serve(Box<Serve>),
    /// Take units of a key's limit: exit status 0 if allowed, 1 if denied
    Take(KeyArguments),
    /// Check what `take` would return without taking: exit status 0 if allowed, 1 if denied
    Peek(KeyArguments),
    /// Reset a key
    Reset(Key),
    /// Show the state of a key
    Info(Key),
    /// Explain what a policy allows
    Policy {
        /// Policies, such as `gcra:30/1m:burst=16`
        #[arg(required = true, value_name = "POLICY")]
        policies: Vec<Policy>,
    },
    /// Check rules files, and run their tests
    #[command(subcommand)]
    Rules(Rules),
    /// Replay recorded or synthetic traffic against policies, in virtual time
    Simulate(Box<Simulate>),
    /// Show which keys of a log candidate policies deny, and recommend a policy
    Recommend(Box<Recommend>),
    /// Check a Redis or Valkey store, and install functions for other languages
    #[command(subcommand)]
    Redis(Redis),
    /// Explain the denials in a log of `serve --log-denials`
    Why(Why),
    /// Check whether a server is ready, by its HTTP port: exit status 0 if it is, 1 if not
    Health {
        /// Address of the server's HTTP port, without TLS
        #[arg(
            env = "SLUICEGATE_HTTP",
            value_name = "ADDRESS:PORT",
            default_value = values::listener_text(Config::default().http.address),
            value_parser = values::listen_address(Config::default().http.address)
        )]
        address: values::ListenAddress,
    },
    /// Print completions for a shell
    Completions {
        /// Shell that reads them
        shell: generate::Shell,
    },
    /// Write the man pages into a folder
    #[command(hide = true)]
    ManPages {
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Print version, commit, date and target of this program
    Version,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Rules {
    /// Explain the rules, or report all mistakes: exit status 2 if there is one
    Check {
        /// Rules files (YAML or TOML) or folders of them, read as one set
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Run the tests in rules files: exit status 1 if one fails
    Test {
        /// Rules files (YAML or TOML) or folders of them, read as one set
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Fail if there is no test
        #[arg(long)]
        require_tests: bool,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Redis {
    /// Install the functions (`FCALL sg_take ...`) on every node, replacing any other version
    Install(Url),
    /// Report versions, installed functions and problems: exit status 2 if there is a problem
    Status(Status),
    /// Remove the functions from every node
    Uninstall(Url),
}

#[derive(Args, Debug)]
pub(crate) struct Url {
    /// redis://USER:PASSWORD@HOST:PORT/DB (only the host is required); rediss:// for TLS,
    /// redis+cluster://HOST,HOST, redis+sentinel://HOST,HOST/NAME or unix:///PATH
    #[arg(env = "SLUICEGATE_REDIS", hide_env_values = true)]
    pub(crate) url: String,
}

#[derive(Args, Debug)]
pub(crate) struct Status {
    #[command(flatten)]
    pub(crate) at: Url,
    /// Prefix of the keys, as in `serve --store-prefix`: the trial take uses a key under it
    #[arg(long, value_name = "PREFIX", default_value = "")]
    pub(crate) prefix: String,
}

#[derive(Args, Debug)]
pub(crate) struct KeyArguments {
    /// Key that the limit applies to: a user, an address, any string
    pub(crate) key: OsString,
    /// Policy such as `gcra:30/1m:burst=16`, or the name of a policy in the server's rules as `@gold`
    pub(crate) policy: String,
    /// Units to take
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = values::cost)]
    pub(crate) cost: u32,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Args, Debug)]
pub(crate) struct Key {
    /// Key that the limit applies to
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }
}
