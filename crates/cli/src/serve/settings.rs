//! What may be said of a server besides where it listens: memory, state, sockets, TLS.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{Args, ValueEnum};
use sluicegate_server::{Config, DashboardMode, HeaderName, HttpHeaders, TlsConfig, WhenFull};

use super::{envoy::Envoy, store::Store};

#[derive(Args, Debug)]
pub(crate) struct Settings {
    /// A Unix socket to listen on besides
    #[arg(long, env = "SLUICEGATE_UNIX", value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Who may use the Unix socket, in octal
    #[arg(
        long,
        env = "SLUICEGATE_UNIX_PERMISSIONS",
        value_name = "MODE",
        default_value = "700",
        value_parser = octal
    )]
    unix_permissions: u32,
    /// Speak TLS, with this certificate (PEM), and nothing else at --listen
    #[arg(long, env = "SLUICEGATE_TLS_CERT", value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the certificate (PEM)
    #[arg(long, env = "SLUICEGATE_TLS_KEY", value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Serve only clients with a certificate from these authorities (PEM)
    #[arg(long, env = "SLUICEGATE_TLS_CLIENT_CA", value_name = "PATH", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Speak TLS at --http, with this certificate (PEM), and nothing else
    #[arg(long, env = "SLUICEGATE_HTTP_TLS_CERT", value_name = "PATH", requires = "http_tls_key")]
    http_tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, env = "SLUICEGATE_HTTP_TLS_KEY", value_name = "PATH", requires = "http_tls_cert")]
    http_tls_key: Option<PathBuf>,
    /// At --http, serve only clients with a certificate from these authorities (PEM)
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_TLS_CLIENT_CA",
        value_name = "PATH",
        requires = "http_tls_cert"
    )]
    http_tls_client_ca: Option<PathBuf>,
    /// Speak TLS at --grpc, with this certificate (PEM), and nothing else
    #[arg(long, env = "SLUICEGATE_GRPC_TLS_CERT", value_name = "PATH", requires = "grpc_tls_key")]
    grpc_tls_cert: Option<PathBuf>,
    /// Its private key (PEM)
    #[arg(long, env = "SLUICEGATE_GRPC_TLS_KEY", value_name = "PATH", requires = "grpc_tls_cert")]
    grpc_tls_key: Option<PathBuf>,
    /// At --grpc, serve only clients with a certificate from these authorities (PEM)
    #[arg(
        long,
        env = "SLUICEGATE_GRPC_TLS_CLIENT_CA",
        value_name = "PATH",
        requires = "grpc_tls_cert"
    )]
    grpc_tls_client_ca: Option<PathBuf>,
    /// The token that clients of HTTP must give, as `Authorization: Bearer TOKEN`
    #[arg(long, env = "SLUICEGATE_HTTP_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    http_token: Option<String>,
    /// Names by which clients of HTTP may call the server, besides `localhost` and loopback
    /// addresses; separated by commas
    #[arg(
        long,
        env = "SLUICEGATE_HTTP_ALLOWED_HOSTS",
        value_name = "HOSTS",
        value_delimiter = ','
    )]
    http_allowed_hosts: Vec<String>,
    /// Which fields responses of HTTP have, unless a request says otherwise; `ietf` (RateLimit) if
    /// not given
    #[arg(long, env = "SLUICEGATE_HTTP_HEADERS", value_enum)]
    http_headers: Option<Headers>,
    /// How many proxies of ours a request has come through when one asks `/v1/gate` about it
    #[arg(long, env = "SLUICEGATE_HTTP_TRUSTED_HOPS", value_name = "N", default_value_t = 1)]
    http_trusted_hops: usize,
    /// Header with the original path and query at `/v1/gate`, and no other; X-Forwarded-Uri,
    /// X-Original-URI or X-Original-URL if not given, and those present must agree
    #[arg(long, env = "SLUICEGATE_GATE_URI_HEADER", value_name = "NAME", value_parser = header)]
    gate_uri_header: Option<HeaderName>,
    /// Header with the original method; X-Forwarded-Method or X-Original-Method if not given
    #[arg(long, env = "SLUICEGATE_GATE_METHOD_HEADER", value_name = "NAME", value_parser = header)]
    gate_method_header: Option<HeaderName>,
    /// Header with the addresses of client and proxies; X-Forwarded-For or Forwarded if not given
    #[arg(long, env = "SLUICEGATE_GATE_ADDRESS_HEADER", value_name = "NAME", value_parser = header)]
    gate_address_header: Option<HeaderName>,
    /// Close clients that do not finish a request for so long; 0: never
    #[arg(long, env = "SLUICEGATE_INPUT_TIMEOUT", value_name = "SECONDS", default_value_t = 30)]
    input_timeout: u64,
    /// Close clients that do not take their replies for so long; 0 is 1
    #[arg(long, env = "SLUICEGATE_OUTPUT_TIMEOUT", value_name = "SECONDS", default_value_t = 10)]
    output_timeout: u64,
    #[command(flatten)]
    envoy: Envoy,
    /// A file of rules (YAML or TOML), or a folder of such; may be given several times
    #[arg(long, env = "SLUICEGATE_RULES", value_name = "PATH", value_delimiter = ',')]
    rules: Vec<PathBuf>,
    /// Threads that serve clients; one a core if not given
    #[arg(long, env = "SLUICEGATE_WORKERS", value_name = "N", value_parser = workers)]
    workers: Option<usize>,
    /// Memory for requests and replies in transit, all clients together; 64mb if not given
    #[arg(long, env = "SLUICEGATE_MAX_BUFFER_MEMORY", value_name = "BYTES", value_parser = buffers)]
    max_buffer_memory: Option<usize>,
    /// What the state of keys may take up, as `256mb`; 1gb if not given
    #[arg(long, env = "SLUICEGATE_MAX_MEMORY", value_name = "BYTES", value_parser = bytes)]
    max_memory: Option<usize>,
    /// What to answer new keys for which there is no room; `deny` if not given
    #[arg(long, env = "SLUICEGATE_WHEN_FULL", value_enum)]
    when_full: Option<Full>,
    /// The file that state is read from, and kept in
    #[arg(long, env = "SLUICEGATE_STATE_FILE", value_name = "PATH", conflicts_with = "test_clock")]
    state_file: Option<PathBuf>,
    /// How often the state file is written; 0: only when the server stops
    #[arg(long, env = "SLUICEGATE_SNAPSHOT_EVERY", value_name = "SECONDS", default_value_t = 60)]
    snapshot_every: u64,
    /// What the dashboard shows, at `/` of --http; `on` if not given
    #[arg(long, env = "SLUICEGATE_DASHBOARD", value_enum)]
    dashboard: Option<Dashboard>,
    /// Close clients that ask nothing for so long; 0: never
    #[arg(long, env = "SLUICEGATE_TIMEOUT", value_name = "SECONDS", default_value_t = 0)]
    timeout: u64,
    #[command(flatten)]
    store: Store,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Full {
    Deny,
    Allow,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Dashboard {
    /// All that it can, the keys that are asked about most among it
    On,
    /// The same, with a tag in the place of each key
    Masked,
    /// All but those keys
    NoKeys,
    /// Nothing: there is no dashboard
    Off,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Headers {
    Ietf,
    #[value(name = "x-ratelimit")]
    XRateLimit,
    None,
}

impl Settings {
    pub(super) fn apply(self, config: &mut Config) -> anyhow::Result<()> {
        if let Some((store, fallback_denial)) = self.store.config() {
            (config.store, config.fallback_denial) = (Some(store), fallback_denial);
        }
        let here = [
            ("--state-file", self.state_file.is_some()),
            ("--max-memory", self.max_memory.is_some()),
            ("--when-full", self.when_full.is_some()),
        ];
        if let Some((given, _)) = here.iter().find(|it| config.store.is_some() && it.1) {
            bail!(
                "{given} is about state in this process, and with --store there is none; to leave out \
                 {given}, or --store, would do"
            );
        }
        config.unix = self.unix;
        config.unix_permissions = self.unix_permissions;
        config.tls = tls(self.tls_cert, self.tls_key, self.tls_client_ca);
        config.http_tls = tls(self.http_tls_cert, self.http_tls_key, self.http_tls_client_ca);
        config.grpc_tls = tls(self.grpc_tls_cert, self.grpc_tls_key, self.grpc_tls_client_ca);
        config.http_token = self.http_token;
        config.http_allowed_hosts = self.http_allowed_hosts;
        config.http_headers = match self.http_headers {
            Some(Headers::XRateLimit) => HttpHeaders::XRateLimit,
            Some(Headers::None) => HttpHeaders::None,
            Some(Headers::Ietf) | None => HttpHeaders::Ietf,
        };
        config.http_trusted_hops = self.http_trusted_hops;
        config.gate.uri_header = self.gate_uri_header;
        config.gate.method_header = self.gate_method_header;
        config.gate.address_header = self.gate_address_header;
        config.input_timeout = Duration::from_secs(self.input_timeout);
        config.output_timeout = Duration::from_secs(self.output_timeout.max(1));
        config.envoy = self.envoy.config();
        config.rules = self.rules;
        config.workers = self.workers;
        config.max_buffer_memory = self.max_buffer_memory.unwrap_or(config.max_buffer_memory);
        config.max_memory = self.max_memory.unwrap_or(config.max_memory);
        config.when_full = match self.when_full {
            Some(Full::Allow) => WhenFull::Allow,
            Some(Full::Deny) | None => WhenFull::Deny,
        };
        config.state_file = self.state_file;
        config.snapshot_every = Duration::from_secs(self.snapshot_every);
        config.dashboard = match self.dashboard {
            None | Some(Dashboard::On) => DashboardMode::On,
            Some(Dashboard::Masked) => DashboardMode::Masked,
            Some(Dashboard::NoKeys) => DashboardMode::NoKeys,
            Some(Dashboard::Off) => DashboardMode::Off,
        };
        config.timeout = Duration::from_secs(self.timeout);
        Ok(())
    }
}

fn tls(
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Option<TlsConfig> {
    cert.zip(key).map(|(cert, key)| TlsConfig { cert, key, client_ca })
}

/// A number of bytes, with or without a unit.
fn bytes(text: &str) -> Result<usize, String> {
    let lower = text.to_ascii_lowercase();
    let units = [("kb", 1 << 10), ("mb", 1 << 20), ("gb", 1 << 30)];
    let split = units.iter().find_map(|(name, unit)| Some((lower.strip_suffix(name)?, *unit)));
    let (digits, unit): (&str, usize) = split.unwrap_or((&lower, 1));
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let number = plain.then(|| digits.parse::<usize>().ok()).flatten();
    number
        .and_then(|number| number.checked_mul(unit))
        .ok_or_else(|| "a whole number of bytes, kb, mb or gb would do, as `256mb`".to_owned())
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "expected the name of a header, as `X-Original-URI`".to_owned())
}

/// Buffer memory: less than 1 MiB would not hold a single request.
fn buffers(text: &str) -> Result<usize, String> {
    let bytes = bytes(text)?;
    if bytes < 1 << 20 { Err("expected at least 1mb".to_owned()) } else { Ok(bytes) }
}

fn octal(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o777);
    mode.ok_or_else(|| "three octal digits would do, as `770`".to_owned())
}

fn workers(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=1024).contains(count));
    count.ok_or_else(|| "a whole number of 1..=1024 would do".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_their_units() {
        for (text, expected) in [
            ("0", Some(0)),
            ("4096", Some(4096)),
            ("64kb", Some(65_536)),
            ("256MB", Some(256 << 20)),
            ("2gb", Some(2 << 30)),
            ("", None),
            ("gb", None),
            ("1.5gb", None),
            ("-1", None),
            ("+1", None),
            ("1tb", None),
            ("99999999999gb", None),
        ] {
            assert_eq!(bytes(text).ok(), expected, "{text}");
        }
        assert_eq!((octal("770"), octal("1000").is_err()), (Ok(0o770), true));
        assert_eq!((workers("2"), workers("0").is_err()), (Ok(2), true));
    }
}
