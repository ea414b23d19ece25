//! What may be said on the command line.

use std::{ffi::OsString, net::SocketAddr, path::PathBuf, str::FromStr};

use clap::{Args, Parser, Subcommand};
use sluicegate_core::{Policy, PolicyError};

use crate::simulate::Simulate;

const EXAMPLES: &str = "\
Examples:
  sluicegate serve
      serves on 127.0.0.1:6380, for any Redis client
  sluicegate take user7 gcra:30/1m:burst=16
      asks that server whether user7 may pass
  sluicegate policy sliding-log:30/1m,fixed-window:1000/day
      says in words what a policy lets through
  sluicegate simulate --policy fixed-window:100/60s:align=clock scenarios/boundary-burst.csv
      shows what a policy would have done to recorded traffic

A policy is ALGORITHM:N/PERIOD[:option[=value]]..., several limits joined by commas. The algorithms:
gcra, token-bucket, leaky-bucket, leaky-queue, fixed-window, sliding-log, sliding-counter.";

/// A rate limiter that is right to the microsecond.
#[derive(Debug, Parser)]
#[command(name = "sluicegate", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve decisions to Redis clients, over HTTP and by gRPC, with a dashboard
    Serve(Box<Serve>),
    /// Ask a server for units of a key: ends with 0 if allowed, 1 if denied
    Take(Question),
    /// Ask what `take` would answer, taking nothing: ends with 0 if allowed, 1 if denied
    Peek(Question),
    /// Make a key of a server as if never used
    Reset(Key),
    /// Show what a server keeps of a key
    Info(Key),
    /// Say in words what a policy lets through
    Policy {
        /// Policies, as `gcra:30/1m:burst=16`
        #[arg(required = true, value_name = "TEXT")]
        policies: Vec<Policy>,
    },
    /// Check files of rules, and run the examples in them
    #[command(subcommand)]
    Rules(Rules),
    /// Show what policies do to traffic, recorded or made up, in virtual time
    Simulate(Box<Simulate>),
    /// Look after the limits in a Redis or Valkey, and install functions for other languages
    #[command(subcommand)]
    Redis(Redis),
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
    /// Install the functions (`FCALL sg_take ...`) on every server, in place of another version
    Install(Url),
    /// Say which server it is, what is installed, and what is wrong: ends with 2 if something is
    Status(Url),
    /// Take the functions away from every server
    Uninstall(Url),
}

#[derive(Args, Debug)]
pub(crate) struct Url {
    /// redis://USER:PASSWORD@HOST:PORT/DB, of which only the host is needed; rediss:// for TLS,
    /// redis+cluster://HOST,HOST or redis+sentinel://HOST,HOST/NAME
    #[arg(env = "SLUICEGATE_REDIS", hide_env_values = true)]
    pub(crate) url: String,
}

#[derive(Args, Debug)]
pub(crate) struct Serve {
    /// A file with settings, in TOML, under the names of these flags: they go for what neither a
    /// flag nor the environment says
    #[arg(long, env = "SLUICEGATE_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings in force as such a file, secrets masked, and end
    #[arg(long)]
    pub(crate) print_config: bool,
    /// Where to listen for RESP; port 0 picks a free one
    #[arg(
        long,
        env = "SLUICEGATE_LISTEN",
        value_name = "ADDRESS:PORT",
        default_value = "127.0.0.1:6380"
    )]
    pub(crate) listen: SocketAddr,
    /// Where to listen for HTTP, or `off`
    #[arg(
        long,
        env = "SLUICEGATE_HTTP",
        value_name = "ADDRESS:PORT|off",
        default_value = "127.0.0.1:8080"
    )]
    pub(crate) http: Listen,
    /// Where to listen for gRPC, or `off`
    #[arg(
        long,
        env = "SLUICEGATE_GRPC",
        value_name = "ADDRESS:PORT|off",
        default_value = "127.0.0.1:8081"
    )]
    pub(crate) grpc: Listen,
    /// The password that clients must give
    #[arg(long, env = "SLUICEGATE_REQUIREPASS", hide_env_values = true, value_name = "PASSWORD")]
    pub(crate) requirepass: Option<String>,
    /// Most clients at a time
    #[arg(long, env = "SLUICEGATE_MAX_CLIENTS", value_name = "N", default_value_t = 10_000)]
    pub(crate) max_clients: usize,
    /// Let requests say what time it is (`AT us`): for tests and `simulate --store` only
    #[arg(long, env = "SLUICEGATE_TEST_CLOCK")]
    pub(crate) test_clock: bool,
    #[command(flatten)]
    pub(crate) settings: crate::serve::Settings,
}

/// Where a face listens that may be switched off.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listen(pub(crate) Option<SocketAddr>);

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.eq_ignore_ascii_case("off") {
            return Ok(Self(None));
        }
        let address = text.parse().map_err(|_| "`127.0.0.1:8080` or `off` would do".to_owned())?;
        Ok(Self(Some(address)))
    }
}

/// A server, from the client's side.
#[derive(Args, Debug)]
pub(crate) struct Connection {
    /// The server to ask
    #[arg(
        long,
        env = "SLUICEGATE_SERVER",
        value_name = "resp://HOST:PORT",
        default_value = "resp://127.0.0.1:6380"
    )]
    pub(crate) server: Address,
    #[command(flatten)]
    pub(crate) password: Password,
}

#[derive(Args, Debug)]
pub(crate) struct Password {
    /// The server's password
    #[arg(
        long = "password",
        env = "SLUICEGATE_PASSWORD",
        hide_env_values = true,
        value_name = "PASSWORD"
    )]
    pub(crate) text: Option<String>,
}

#[derive(Args, Debug)]
pub(crate) struct Question {
    /// Whom it is about: any text
    pub(crate) key: OsString,
    /// The policy, as `gcra:30/1m:burst=16`; or the name of one in the server's rules, as `@gold`
    pub(crate) policy: Named,
    /// Units asked for
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) cost: u32,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

#[derive(Args, Debug)]
pub(crate) struct Key {
    /// Whom it is about: any text
    pub(crate) key: OsString,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// A policy, or the name of one that the server knows.
#[derive(Clone, Debug)]
pub(crate) struct Named(pub(crate) String);

impl FromStr for Named {
    type Err = PolicyError;

    fn from_str(text: &str) -> Result<Self, PolicyError> {
        let named = text.starts_with('@');
        Ok(Self(if named { text.to_owned() } else { text.parse::<Policy>()?.to_string() }))
    }
}

/// `HOST:PORT` of a server.
#[derive(Clone, Debug)]
pub(crate) struct Address(pub(crate) String);

pub(crate) const SCHEME: &str = "resp://";

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = text.strip_prefix(SCHEME).unwrap_or(text);
        match address.rsplit_once(':') {
            Some((host, port)) if !host.is_empty() && port.parse::<u16>().is_ok() => {
                Ok(Self(address.to_owned()))
            }
            _ => Err("`resp://HOST:PORT` would do, as `resp://127.0.0.1:6380`".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn addresses_are_checked() {
        for text in ["resp://localhost:6380", "127.0.0.1:1", "[::1]:6380"] {
            assert!(text.parse::<Address>().is_ok(), "{text}");
        }
        for text in ["", "localhost", ":6380", "resp://h:port", "resp://h:65536"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
