//! The settings of `serve`, in the order in which `--print-config` prints them.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, Args};
use sluicegate_server::{Config, WhenFull};

use super::{envoy::Envoy, http::Http, log::Log, otlp::Otlp, store::Store, tls::Tls};
use crate::{
    usage::Origins,
    values::{self, Choices, ListenAddress, OptionalListener},
};

#[derive(Args, Debug)]
#[command(mut_args(with_variable))]
pub(crate) struct Serve {
    /// TOML file of settings named like these options; options and environment variables override it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print every setting in force and its source, as a file for --config, and exit; secrets are masked
    #[arg(long)]
    pub(crate) print_config: bool,
    #[command(flatten, next_help_heading = "Listeners")]
    listeners: Listeners,
    #[command(flatten, next_help_heading = "TLS")]
    tls: Tls,
    #[command(flatten, next_help_heading = "HTTP and dashboard")]
    http: Http,
    #[command(flatten, next_help_heading = "Envoy")]
    envoy: Envoy,
    #[command(flatten, next_help_heading = "Rules")]
    rules: RuleFiles,
    #[command(flatten, next_help_heading = "Clients and threads")]
    limits: Limits,
    #[command(flatten, next_help_heading = "State in memory")]
    memory: Memory,
    #[command(flatten, next_help_heading = "State in Redis or Valkey")]
    store: Store,
    #[command(flatten, next_help_heading = "Log")]
    pub(super) log: Log,
    #[command(flatten, next_help_heading = "OpenTelemetry")]
    otlp: Otlp,
    #[command(flatten, next_help_heading = "Tests")]
    tests: Tests,
}

#[derive(Args, Debug)]
struct Listeners {
    /// Address for Redis clients (RESP): ADDRESS:PORT, HOST:PORT or :PORT; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        default_value = Config::default().resp.address.to_string(),
        value_parser = values::listen_address(Some(Config::default().resp.address))
    )]
    listen: ListenAddress,
    /// Address for HTTP, or `off`
    #[arg(
        long,
        value_name = "ADDRESS:PORT|off",
        default_value = values::listener_text(Config::default().http.address),
        value_parser = values::optional_listener(Config::default().http.address)
    )]
    http: OptionalListener,
    /// Address for gRPC (Envoy), or `off`
    #[arg(
        long,
        value_name = "ADDRESS:PORT|off",
        default_value = values::listener_text(Config::default().envoy.address),
        value_parser = values::optional_listener(Config::default().envoy.address)
    )]
    grpc: OptionalListener,
    /// Additional Unix socket for Redis clients
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Permissions of the Unix socket, in octal
    #[arg(long, value_name = "MODE", default_value = format!("{:o}", Config::default().resp.unix_permissions), value_parser = octal)]
    unix_permissions: u32,
    /// Password that Redis clients must send (`AUTH`)
    #[arg(long, value_name = "PASSWORD", value_parser = values::secret)]
    requirepass: Option<String>,
    /// Do not start if a port beyond loopback has no password, token or client certificates
    #[arg(long, value_parser = values::switch)]
    require_secrets: bool,
}

#[derive(Args, Debug)]
struct RuleFiles {
    /// Rules file (YAML or TOML), or folder of rules files; repeat the option, or use commas, for several
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    rules: Vec<PathBuf>,
}

#[derive(Args, Debug)]
struct Limits {
    /// Maximum number of connected clients, all protocols together
    #[arg(long, value_name = "N", default_value = Config::default().max_clients.to_string(), value_parser = values::positive)]
    max_clients: usize,
    /// Memory for requests and replies in transit, all clients together
    #[arg(long, value_name = "SIZE", default_value = values::size_text(Config::default().max_buffer_memory), value_parser = values::buffer_memory)]
    max_buffer_memory: usize,
    /// Close clients that send no request for this long; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = values::span_text(Config::default().timeouts.idle), value_parser = values::seconds)]
    timeout: Duration,
    /// Close clients that do not finish a request within this time; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = values::span_text(Config::default().timeouts.input), value_parser = values::seconds)]
    input_timeout: Duration,
    /// Close clients that stop reading replies for this long; at least 1s
    #[arg(
        long,
        value_name = "DURATION",
        default_value = values::span_text(Config::default().timeouts.output),
        value_parser = values::seconds_from_one
    )]
    output_timeout: Duration,
    /// Threads that serve clients; `auto` is one per core
    #[arg(long, value_name = "N|auto", default_value = workers_text(Config::default().workers), value_parser = workers)]
    workers: Workers,
}

#[derive(Args, Debug)]
struct Memory {
    /// Memory for the state of keys
    #[arg(long, value_name = "SIZE", default_value = values::size_text(Config::default().memory.max_bytes), value_parser = values::state_memory)]
    max_memory: usize,
    /// Decision for a new key when the table is full
    #[arg(long, value_name = "DECISION", default_value = values::word(WHEN_FULL, &Config::default().memory.when_full), value_parser = values::choice(WHEN_FULL))]
    when_full: WhenFull,
    /// File that keeps the state over a restart
    #[arg(long, value_name = "PATH")]
    state_file: Option<PathBuf>,
    /// Interval of writes to the state file; 0 writes only when the server stops
    #[arg(long, value_name = "DURATION", default_value = values::span_text(Config::default().memory.snapshot_every), value_parser = values::seconds)]
    snapshot_every: Duration,
}

#[derive(Args, Debug)]
struct Tests {
    /// Accept the time from clients (`AT us`): only for tests and `simulate --store`
    #[arg(long, value_parser = values::switch)]
    test_clock: bool,
}

const WHEN_FULL: Choices<WhenFull> =
    &[("deny", "", WhenFull::Deny), ("allow", "", WhenFull::Allow)];

/// `None`: one per core.
#[derive(Clone, Copy, Debug)]
struct Workers(Option<usize>);

impl Serve {
    /// These settings, with the addresses looked up.
    pub(super) fn config(self, origins: &Origins<'_>) -> anyhow::Result<Config> {
        let address = |name: &str, address: &ListenAddress| {
            let found = address.resolve();
            found.map_err(|expected| origins.invalid(name, &address.to_string(), &expected))
        };
        let optional = |name: &str, listener: &OptionalListener| {
            listener.0.as_ref().map(|listener| address(name, listener)).transpose()
        };
        let mut config = Config::default();
        let Listeners { listen, http, grpc, unix, unix_permissions, .. } = self.listeners;
        config.resp.address = address("listen", &listen)?;
        config.http.address = optional("http", &http)?;
        config.envoy.address = optional("grpc", &grpc)?;
        (config.resp.unix, config.resp.unix_permissions) = (unix, unix_permissions);
        config.resp.password = self.listeners.requirepass;
        config.require_secrets = self.listeners.require_secrets;
        self.tls.apply(&mut config);
        self.http.apply(&mut config);
        self.envoy.apply(&mut config.envoy);
        config.rules = self.rules.rules;
        config.max_clients = self.limits.max_clients;
        config.max_buffer_memory = self.limits.max_buffer_memory;
        config.timeouts.idle = self.limits.timeout;
        config.timeouts.input = self.limits.input_timeout;
        config.timeouts.output = self.limits.output_timeout;
        config.workers = self.limits.workers.0;
        config.memory.max_bytes = self.memory.max_memory;
        config.memory.when_full = self.memory.when_full;
        config.memory.state_file = self.memory.state_file;
        config.memory.snapshot_every = self.memory.snapshot_every;
        self.store.apply(&mut config);
        config.denial_log = self.log.denial_log();
        config.telemetry = self.otlp.telemetry();
        config.test_clock = self.tests.test_clock;
        Ok(config)
    }
}

/// Adds the environment variable: `SLUICEGATE_MAX_CLIENTS` for `--max-clients`.
fn with_variable(argument: Arg) -> Arg {
    match argument.get_long() {
        Some(name) if argument.get_env().is_none() && name != "print-config" => {
            let variable = format!("SLUICEGATE_{}", name.replace('-', "_").to_uppercase());
            argument.env(variable)
        }
        _ => argument,
    }
}

fn octal(text: &str) -> Result<u32, String> {
    // TOML writes octal numbers with a prefix.
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let is_signed = digits.starts_with('+');
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| !is_signed && *mode <= 0o777);
    mode.ok_or_else(|| "expected three octal digits, such as `770`".to_owned())
}

fn workers(text: &str) -> Result<Workers, String> {
    if text.eq_ignore_ascii_case("auto") {
        return Ok(Workers(None));
    }
    let count = values::positive(text).ok().filter(|count| *count <= 1024);
    count
        .map(|count| Workers(Some(count)))
        .ok_or_else(|| "expected a whole number from 1 to 1024, or `auto`".to_owned())
}

fn workers_text(count: Option<usize>) -> String {
    count.map_or_else(|| "auto".to_owned(), |count| count.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_and_workers_are_checked() {
        assert_eq!((octal("770"), octal("0o770")), (Ok(0o770), Ok(0o770)));
        assert!(octal("1000").is_err() && octal("rwx").is_err() && octal("+770").is_err());
        assert_eq!((workers("2").unwrap().0, workers("AUTO").unwrap().0), (Some(2), None));
        assert!(workers("0").is_err() && workers("1025").is_err());
    }
}
