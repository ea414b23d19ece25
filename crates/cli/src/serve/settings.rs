//! The settings of `serve`, in the order in which `--print-config` prints them.

use std::{path::PathBuf, time::Duration};

use clap::{Arg, Args};
use sluicegate_server::{
    Config, EnvoyConfig, EnvoyHeaders, OtlpEndpoint, Telemetry, TlsConfig, WhenFull,
};

use super::{http::Http, log::Log, store::Store};
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

#[derive(Args, Debug)]
pub(super) struct Envoy {
    /// Rate limit headers that Envoy is to add to responses; Envoy can also add its own
    #[arg(long, value_name = "HEADERS", default_value = values::word(HEADERS, &EnvoyConfig::default().headers), value_parser = values::choice(HEADERS))]
    envoy_headers: EnvoyHeaders,
    /// Return the descriptors of each request to Envoy, as dynamic metadata
    #[arg(long, value_parser = values::switch)]
    envoy_metadata: bool,
    /// Close gRPC connections at about this age, to rebalance clients over servers; 0 disables it
    #[arg(long, value_name = "DURATION", default_value = values::span_text(EnvoyConfig::default().max_age), value_parser = values::seconds)]
    grpc_max_age: Duration,
    /// Maximum number of Envoys that are assigned quotas at a time
    #[arg(long, value_name = "COUNT", default_value = EnvoyConfig::default().max_quota_streams.to_string(), value_parser = values::count)]
    quota_max_streams: usize,
    /// Maximum number of quota buckets of one Envoy
    #[arg(long, value_name = "COUNT", default_value = EnvoyConfig::default().max_quota_buckets.to_string(), value_parser = values::count)]
    quota_max_buckets: usize,
}

const HEADERS: Choices<EnvoyHeaders> = &[
    ("none", "", EnvoyHeaders::None),
    ("ratelimit", "", EnvoyHeaders::RateLimit),
    ("x-ratelimit", "", EnvoyHeaders::XRateLimit),
];

impl Envoy {
    pub(super) fn apply(self, config: &mut EnvoyConfig) {
        config.headers = self.envoy_headers;
        config.metadata = self.envoy_metadata;
        config.max_age = self.grpc_max_age;
        config.max_quota_streams = self.quota_max_streams;
        config.max_quota_buckets = self.quota_max_buckets;
    }
}

#[derive(Args, Debug)]
pub(super) struct Otlp {
    /// Send spans of requests, and of round trips to the store, to this OpenTelemetry collector (OTLP over
    /// HTTP): http://HOST:4318
    #[arg(long, value_name = "URL")]
    otlp: Option<OtlpEndpoint>,
    /// Share of the requests to record, from 0 to 1, among those whose caller sends no `traceparent`
    #[arg(long, value_name = "RATIO", default_value = "0.01", value_parser = ratio)]
    otlp_sample: f64,
}

impl Otlp {
    /// The recorder of spans, if there is a collector.
    pub(super) fn telemetry(self) -> Option<Telemetry> {
        self.otlp.map(|endpoint| Telemetry::new(endpoint, self.otlp_sample))
    }
}

fn ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| "expected a number from 0 to 1, such as 0.01".to_owned())
}

#[derive(Args, Debug)]
pub(super) struct Tls {
    /// Certificate (PEM): --listen then accepts TLS only
    #[arg(long, value_name = "PATH")]
    tls_cert: Option<PathBuf>,
    /// Private key of --tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --listen
    #[arg(long, value_name = "PATH")]
    tls_client_ca: Option<PathBuf>,
    /// Certificate (PEM): --http then accepts TLS only
    #[arg(long, value_name = "PATH")]
    http_tls_cert: Option<PathBuf>,
    /// Private key of --http-tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    http_tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --http
    #[arg(long, value_name = "PATH")]
    http_tls_client_ca: Option<PathBuf>,
    /// Certificate (PEM): --grpc then accepts TLS only
    #[arg(long, value_name = "PATH")]
    grpc_tls_cert: Option<PathBuf>,
    /// Private key of --grpc-tls-cert (PEM)
    #[arg(long, value_name = "PATH")]
    grpc_tls_key: Option<PathBuf>,
    /// Accept only clients with a certificate of these authorities (PEM) at --grpc
    #[arg(long, value_name = "PATH")]
    grpc_tls_client_ca: Option<PathBuf>,
}

impl Tls {
    pub(super) fn apply(self, config: &mut Config) {
        config.resp.tls = tls(self.tls_cert, self.tls_key, self.tls_client_ca);
        config.http.tls = tls(self.http_tls_cert, self.http_tls_key, self.http_tls_client_ca);
        config.envoy.tls = tls(self.grpc_tls_cert, self.grpc_tls_key, self.grpc_tls_client_ca);
    }
}

fn tls(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Option<TlsConfig> {
    cert.zip(key).map(|(cert, key)| TlsConfig { cert, key, client_ca })
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

#[cfg(test)]
mod otlp_tests {
    use super::*;

    #[test]
    fn ratio_is_from_0_to_1() {
        assert_eq!((ratio("0"), ratio("0.25"), ratio("1")), (Ok(0.0), Ok(0.25), Ok(1.0)));
        for text in ["", "-0.1", "1.1", "NaN", "inf", "1%"] {
            assert!(ratio(text).is_err(), "{text}");
        }
    }
}
