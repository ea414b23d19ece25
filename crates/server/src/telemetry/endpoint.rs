//! Where the collector is.

use std::{fmt, str::FromStr};

use hyper::Uri;

/// The port of OTLP over HTTP.
const PORT: u16 = 4318;
const PATH: &str = "/v1/traces";

/// A collector that speaks OTLP over HTTP: `http://HOST[:PORT][/PATH]`. The port is 4318 unless given; `/v1/traces` is
/// added to the path.
///
/// ```
/// use sluicegate_server::OtlpEndpoint;
///
/// let endpoint: OtlpEndpoint = "http://collector".parse()?;
/// assert_eq!(endpoint.to_string(), "http://collector:4318/v1/traces");
/// assert!("http://user:password@collector".parse::<OtlpEndpoint>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtlpEndpoint {
    /// A name or an address; one of IPv6 without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// The path of requests.
    pub(super) path: String,
}

impl OtlpEndpoint {
    /// `HOST:PORT`, as in the header `Host`.
    pub(super) fn authority(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for OtlpEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}{}", self.authority(), self.path)
    }
}

impl FromStr for OtlpEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected =
            || "expected http://HOST, http://HOST:PORT or http://HOST:PORT/PATH".to_owned();
        let uri: Uri = text.parse().map_err(|_| expected())?;
        let host = uri.host().map(|host| host.trim_start_matches('[').trim_end_matches(']'));
        let host = host.filter(|host| !host.is_empty()).ok_or_else(expected)?;
        let is_plain = uri.authority().is_some_and(|it| !it.as_str().contains('@'));
        if uri.scheme_str() != Some("http") || !is_plain || uri.query().is_some() {
            return Err(expected());
        }
        let base = uri.path().trim_end_matches('/');
        let base = base.strip_suffix(PATH).unwrap_or(base);
        let port = uri.port_u16().unwrap_or(PORT);
        Ok(Self { host: host.to_owned(), port, path: format!("{base}{PATH}") })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_url_is_read_or_rejected() {
        for (url, expected) in [
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
            ("http://collector/", "http://collector:4318/v1/traces"),
            ("http://[::1]", "http://[::1]:4318/v1/traces"),
            ("http://a:1/otlp/", "http://a:1/otlp/v1/traces"),
            ("http://a:1/v1/traces", "http://a:1/v1/traces"),
        ] {
            assert_eq!(url.parse::<OtlpEndpoint>().unwrap().to_string(), expected, "{url}");
        }
        for url in [
            "",
            "collector",
            "collector:4318",
            "https://a",
            "grpc://a",
            "http://",
            "http://u:p@a",
            "http://a?b",
            "/a",
        ] {
            assert!(url.parse::<OtlpEndpoint>().is_err(), "{url}");
        }
    }
}
