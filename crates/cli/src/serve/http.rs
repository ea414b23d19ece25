//! HTTP, the gate and the dashboard.

use clap::Args;
use sluicegate_server::{Config, DashboardMode, HeaderName, HttpHeaders};

use crate::values::{self, Choices};

#[derive(Args, Debug)]
pub(super) struct Http {
    /// What the dashboard shows, at `/` of --http
    #[arg(long, value_name = "MODE", default_value = "on", value_parser = values::choice(DASHBOARDS))]
    dashboard: DashboardMode,
    /// Token that HTTP clients must send (`Authorization: Bearer TOKEN`)
    #[arg(long, value_name = "TOKEN", value_parser = values::secret)]
    http_token: Option<String>,
    /// Host names that HTTP clients may use for this server, besides `localhost` and loopback addresses,
    /// separated by commas
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_parser = host)]
    http_allowed_hosts: Vec<String>,
    /// Rate limit headers of HTTP responses, unless a request chooses others
    #[arg(long, value_name = "HEADERS", default_value = "ietf", value_parser = values::choice(HEADERS))]
    http_headers: HttpHeaders,
    /// Number of trusted proxies in front of `/v1/gate`
    #[arg(long, value_name = "N", default_value = "1", value_parser = values::count)]
    http_trusted_hops: usize,
    /// Only header that holds the original path and query at `/v1/gate`; otherwise X-Forwarded-Uri,
    /// X-Original-URI and X-Original-URL, which must agree
    #[arg(long, value_name = "NAME", value_parser = header)]
    gate_uri_header: Option<HeaderName>,
    /// Only header that holds the original method; otherwise X-Forwarded-Method and X-Original-Method
    #[arg(long, value_name = "NAME", value_parser = header)]
    gate_method_header: Option<HeaderName>,
    /// Only header that holds the addresses of client and proxies; otherwise X-Forwarded-For and
    /// Forwarded
    #[arg(long, value_name = "NAME", value_parser = header)]
    gate_address_header: Option<HeaderName>,
}

const DASHBOARDS: Choices<DashboardMode> = &[
    ("on", "Everything, with the most frequent keys", DashboardMode::On),
    ("masked", "The same, with a tag instead of each key", DashboardMode::Masked),
    ("no-keys", "Everything but the keys", DashboardMode::NoKeys),
    ("off", "No dashboard", DashboardMode::Off),
];
const HEADERS: Choices<HttpHeaders> = &[
    ("ietf", "", HttpHeaders::Ietf),
    ("x-ratelimit", "", HttpHeaders::XRateLimit),
    ("none", "", HttpHeaders::None),
];

impl Http {
    pub(super) fn apply(self, config: &mut Config) {
        config.dashboard = self.dashboard;
        config.http.token = self.http_token;
        config.http.allowed_hosts = self.http_allowed_hosts;
        config.http.headers = self.http_headers;
        config.http.trusted_hops = self.http_trusted_hops;
        config.http.gate.uri_header = self.gate_uri_header;
        config.http.gate.method_header = self.gate_method_header;
        config.http.gate.address_header = self.gate_address_header;
    }
}

/// Rejects an empty name, which would match no request and forbid all others.
fn host(text: &str) -> Result<String, String> {
    if text.trim().is_empty() {
        return Err("expected host names, separated by commas".to_owned());
    }
    Ok(text.trim().to_owned())
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "expected the name of a header, such as `X-Original-URI`".to_owned())
}
