//! HTTP, the gate and the dashboard.

use std::net::{Ipv4Addr, Ipv6Addr};

use clap::Args;
use sluicegate_server::{Config, DashboardMode, HeaderName, HeaderStyle};

use crate::values::{self, Choices};

#[derive(Args, Debug)]
pub(super) struct Http {
    /// What the dashboard shows, at `/` of --http
    #[arg(long, value_name = "MODE", default_value = values::word(DASHBOARDS, &Config::default().dashboard), value_parser = values::choice(DASHBOARDS))]
    dashboard: DashboardMode,
    /// Token that HTTP clients must send (`Authorization: Bearer TOKEN`)
    #[arg(long, value_name = "TOKEN", value_parser = values::secret)]
    http_token: Option<String>,
    /// Host names that HTTP clients may use for this server, besides `localhost` and loopback addresses,
    /// separated by commas
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', value_parser = host)]
    http_allowed_hosts: Vec<String>,
    /// Rate limit headers of HTTP responses, unless a request chooses others
    #[arg(long, value_name = "HEADERS", default_value = values::word(HEADERS, &Config::default().http.headers), value_parser = values::choice(HEADERS))]
    http_headers: HeaderStyle,
    /// Number of trusted proxies in front of `/v1/gate`
    #[arg(long, value_name = "N", default_value = Config::default().http.trusted_hops.to_string(), value_parser = values::count)]
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
const HEADERS: Choices<HeaderStyle> = &[
    ("ietf", "", HeaderStyle::Ietf),
    ("x-ratelimit", "", HeaderStyle::XRateLimit),
    ("none", "", HeaderStyle::None),
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

/// A value of `Host`: a name or an address, with or without a port. Anything else would match no request, and forbid all
/// others.
fn host(text: &str) -> Result<String, String> {
    let text = text.trim();
    let (name, port) = match text.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, Some(port)),
        _ => (text, None),
    };
    let has_port = port.is_none_or(|text| {
        values::port(text).is_some_and(|port| port > 0 && port.to_string() == text)
    });
    let is_address = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
        Some(address) => address.parse::<Ipv6Addr>().is_ok(),
        None => name.parse::<Ipv4Addr>().is_ok(),
    };
    if has_port && (is_address || values::is_host(name) && !name.starts_with('.')) {
        return Ok(text.to_owned());
    }
    Err("expected a host name, such as `limits.example` or `limits.example:8443`".to_owned())
}

fn header(text: &str) -> Result<HeaderName, String> {
    text.parse().map_err(|_| "expected the name of a header, such as `X-Original-URI`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_is_a_value_of_the_header() {
        for text in [
            "limits.example",
            "limits.example:8443",
            "limits.example.",
            "Limits",
            "a_b-c.d1",
            "192.0.2.7",
            "192.0.2.7:80",
            "[2001:db8::7]",
            "[::1]:8080",
        ] {
            assert_eq!(host(&format!(" {text} ")).as_deref(), Ok(text));
        }
        for text in [
            "",
            " ",
            "*",
            "*.example.com",
            "https://limits.example",
            "limits.example/",
            "me@limits.example",
            "limits example",
            ".example.com",
            ".",
            "limits.example:",
            "limits.example:x",
            "limits.example:0",
            "limits.example:080",
            "limits.example:65536",
            "::1",
            "2001:db8::7",
            "[::1",
            "[192.0.2.7]",
            "[limits.example]",
            "limits.ex\u{e4}mple",
        ] {
            assert!(host(text).is_err(), "{text}");
        }
    }
}
