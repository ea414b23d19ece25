//! Fields of a line, and the key that is made of them.

use std::borrow::Cow;

use sluicegate_headers::{Network, address};

use super::{LogError, LogFault};

/// A field of the key, or the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Field<'a> {
    /// Names under which a line may have it, the most likely first.
    pub(crate) names: Vec<&'a str>,
    /// The part of the value that it is.
    pub(crate) part: Part,
}

/// Part of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// All of it.
    Whole,
    /// A client: for IPv4 its address, for IPv6 its /64 network, as rules form it; or its host name.
    Client,
    /// Of `GET /a?b=c HTTP/1.1`: `GET`.
    Method,
    /// Of the same: `/a`; or of `/a?b=c`.
    Path,
    /// Of the same: `/a?b=c`.
    Url,
}

/// A key with fields in it: `{ip}:{path}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyTemplate {
    pub(crate) parts: Vec<TemplatePart>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TemplatePart {
    Text(String),
    Field(String),
}

impl std::str::FromStr for KeyTemplate {
    type Err = LogError;

    /// Fields are in braces; `{{` and `}}` are braces.
    fn from_str(text: &str) -> Result<Self, LogError> {
        let fault = || LogError::Template(text.to_owned());
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            literal += &rest[..at];
            let brace = &rest[at..=at];
            rest = &rest[at + 1..];
            if let Some(behind) = rest.strip_prefix(brace) {
                literal += brace;
                rest = behind;
                continue;
            }
            let (name, behind) = match brace {
                "{" => rest.split_once('}').ok_or_else(fault)?,
                _ => return Err(fault()),
            };
            if name.is_empty() || name.contains('{') {
                return Err(fault());
            }
            if !literal.is_empty() {
                parts.push(TemplatePart::Text(std::mem::take(&mut literal)));
            }
            parts.push(TemplatePart::Field(name.to_owned()));
            rest = behind;
        }
        literal += rest;
        if !literal.is_empty() {
            parts.push(TemplatePart::Text(literal));
        }
        Ok(Self { parts })
    }
}

/// Names of fields that any log may have.
pub(super) const NAMES: [&str; 11] = [
    "ip", "user", "time", "duration", "method", "path", "url", "host", "status", "agent", "referer",
];

impl KeyTemplate {
    /// The key, if it is the same for every line, because it has no field.
    #[must_use]
    pub fn constant(&self) -> Option<&str> {
        match &*self.parts {
            [] => Some(""),
            [TemplatePart::Text(text)] => Some(text),
            _ => None,
        }
    }

    /// Whether `name` is a field that logs of every format have under their own names.
    #[must_use]
    pub fn is_field(name: &str) -> bool {
        NAMES.contains(&name)
    }
}

impl<'a> Field<'a> {
    /// A field by the name that people use. Any other name is one of the log's own.
    pub(crate) fn named(name: &'a str) -> Self {
        let (part, names) = match name {
            "ip" => (
                Part::Client,
                "remote_addr ip client_ip remote_ip request.client_ip request.remote_ip \
                 request.remote_addr downstream_remote_address ClientHost ClientAddr ClientIP clientip client.ip source.ip \
                 httpRequest.remoteIp http_x_forwarded_for x_forwarded_for",
            ),
            "user" => (Part::Whole, "remote_user user user_id ClientUsername"),
            "time" => (
                Part::Whole,
                "msec time_local ts StartUTC StartLocal time timestamp @timestamp start_time time_iso8601",
            ),
            "duration" => (
                Part::Whole,
                "request_time duration request_time_ms duration_ms request_duration_ms duration_us \
                 duration_ns Duration target_processing_time %D %usT %msT %sT %T",
            ),
            "method" => {
                (Part::Method, "request_method method request.method RequestMethod request")
            }
            "path" => (Part::Path, "request_uri uri path request.uri url RequestPath request"),
            "url" => (Part::Url, "request_uri uri url request.uri path RequestPath request"),
            "host" => (Part::Whole, "host request.host authority RequestHost"),
            "status" => (Part::Whole, "status response_code DownstreamStatus"),
            "agent" => (Part::Whole, "http_user_agent user_agent request_User-Agent"),
            "referer" => (Part::Whole, "http_referer referer request_Referer"),
            other => return Self { names: vec![other], part: Part::Whole },
        };
        Self { names: names.split(' ').collect(), part }
    }
}

impl Part {
    /// This part of `value`; `None` if it is empty or, of a client, only says that there is none.
    ///
    /// # Errors
    /// [`LogFault::Client`] for a client that is neither an address nor a host name.
    pub(crate) fn extract(self, value: &[u8]) -> Result<Option<Cow<'_, [u8]>>, LogFault> {
        let found = match self {
            Self::Client => return client(value),
            Self::Whole => value,
            Self::Method => before(b' ', value),
            Self::Url => target(value),
            Self::Path => before(b'?', path(target(value))),
        };
        Ok((!found.is_empty()).then_some(Cow::Borrowed(found)))
    }
}

/// The text between the first and the last space of a request line; all of it if there is no space.
fn target(value: &[u8]) -> &[u8] {
    let Some(first) = value.iter().position(|byte| *byte == b' ') else { return value };
    let rest = &value[first + 1..];
    rest.iter().rposition(|byte| *byte == b' ').map_or(rest, |last| &rest[..last])
}

fn before(byte: u8, value: &[u8]) -> &[u8] {
    memchr::memchr(byte, value).map_or(value, |at| &value[..at])
}

/// The path of `http://host/path`, as proxies and load balancers write it; all of any other value.
fn path(target: &[u8]) -> &[u8] {
    let rest = target.strip_prefix(b"http://").or_else(|| target.strip_prefix(b"https://"));
    let Some(rest) = rest else { return target };
    let end = rest.iter().position(|byte| matches!(byte, b'/' | b'?')).unwrap_or(rest.len());
    if rest[end..].starts_with(b"/") { &rest[end..] } else { b"/" }
}

/// The client: the first of a list, without its port. `None` if the value only says that there is none.
fn client(value: &[u8]) -> Result<Option<Cow<'_, [u8]>>, LogFault> {
    let text = before(b',', value).trim_ascii();
    if matches!(text, b"" | b"-" | b"unknown") {
        return Ok(None);
    }
    if is_ipv4(text) {
        return Ok(Some(Cow::Borrowed(text)));
    }
    if let Some(address) = str::from_utf8(text).ok().and_then(address) {
        return Ok(Some(Cow::Owned(Network::of(address, 32, 64).to_string().into_bytes())));
    }
    if is_host_name(text) {
        return Ok(Some(Cow::Owned(text.to_ascii_lowercase())));
    }
    Err(LogFault::Client(value.into()))
}

/// Whether it is an address of IPv4, as most clients are. No other text is the same address.
// The parser of the standard library takes several times as long, a tenth of a replay.
fn is_ipv4(text: &[u8]) -> bool {
    let (mut points, mut digits, mut octet) = (0, 0, 0);
    for &byte in text {
        match byte {
            b'0'..=b'9' if digits == 0 || octet > 0 => {
                octet = octet * 10 + u32::from(byte - b'0');
                digits += 1;
            }
            b'.' if digits > 0 => (points, digits, octet) = (points + 1, 0, 0),
            _ => return false,
        }
        if octet > 255 {
            return false;
        }
    }
    points == 3 && digits > 0
}

/// Whether it is a name as of `%h` with `HostnameLookups`: labels between points, the last one not a number.
fn is_host_name(text: &[u8]) -> bool {
    let mut labels = text.split(|byte| *byte == b'.');
    let last = labels.clone().next_back().unwrap_or_default();
    let is_label = |label: &[u8]| {
        let is_inside = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        !label.is_empty() && label.iter().all(is_inside) && !label.starts_with(b"-")
    };
    labels.all(is_label) && !last.iter().all(u8::is_ascii_digit)
}

/// A value without the escapes of logs: `\xHH`, `\"` and `\\`.
pub(crate) fn unescaped(value: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr(b'\\', value).is_none() {
        return Cow::Borrowed(value);
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|it| u8::try_from(it).ok());
    let mut out = Vec::with_capacity(value.len());
    let mut rest = value;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        match (byte, rest) {
            (b'\\', [b'x', high, low, behind @ ..]) => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    out.push(16 * high + low);
                    rest = behind;
                }
                _ => out.push(b'\\'),
            },
            (b'\\', [quoted @ (b'"' | b'\\'), behind @ ..]) => {
                out.push(*quoted);
                rest = behind;
            }
            _ => out.push(*byte),
        }
    }
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_ipv4_as_the_standard_library_says() {
        let parts = [
            "0",
            "1",
            "9",
            "10",
            "25",
            "255",
            "256",
            "01",
            "00",
            "",
            "-1",
            "1000",
            "4294967297",
            "a",
        ];
        let mut count = 0;
        for (one, two) in parts.iter().flat_map(|one| parts.map(|two| (*one, two))) {
            for text in [
                format!("{one}.{two}.3.4"),
                format!("1.2.{one}.{two}"),
                format!("1.{one}.{two}"),
                format!("1.2.3.{one}.{two}"),
                format!("{one}.2.3.{two}:80"),
            ] {
                let expected = text.parse::<std::net::Ipv4Addr>().is_ok();
                assert_eq!(is_ipv4(text.as_bytes()), expected, "{text}");
                count += usize::from(expected);
            }
        }
        assert_eq!(count, 2 * 6 * 6);
    }

    #[test]
    fn template_fields_and_braces_are_read() {
        let parts = |text: &str| text.parse::<KeyTemplate>().map(|it| it.parts);
        let text = |text: &str| TemplatePart::Text(text.to_owned());
        let field = |name: &str| TemplatePart::Field(name.to_owned());
        assert_eq!(parts("{ip}:{path}").unwrap(), [field("ip"), text(":"), field("path")]);
        assert_eq!(parts("all").unwrap(), [text("all")]);
        assert_eq!(parts("{{{a}}}").unwrap(), [text("{"), field("a"), text("}")]);
        assert_eq!(parts("").unwrap(), []);
        for broken in ["{", "}", "{}", "{a", "a}", "{a{b}"] {
            assert!(parts(broken).is_err(), "{broken}");
        }
    }

    #[test]
    fn part_of_value_is_cut_out() {
        let of = |part: Part, value: &str| match part.extract(value.as_bytes()) {
            Ok(Some(found)) => String::from_utf8_lossy(&found).into_owned(),
            Ok(None) => "none".to_owned(),
            Err(fault) => fault.to_string(),
        };
        assert_eq!(of(Part::Method, "GET /a?b=c HTTP/1.1"), "GET");
        assert_eq!(of(Part::Path, "GET /a?b=c HTTP/1.1"), "/a");
        assert_eq!(of(Part::Url, "GET /a b?b=c HTTP/1.1"), "/a b?b=c");
        assert_eq!(of(Part::Path, "/a?b"), "/a");
        assert_eq!(of(Part::Path, "GET http://h:80/a?b HTTP/1.1"), "/a");
        assert_eq!(of(Part::Path, "https://h?b"), "/");
        assert_eq!(of(Part::Path, ""), "none");
        for (given, client) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[2001:db8::1]:80", "2001:db8::/64"),
            ("2001:0db8:0:0:0:0:0:2", "2001:db8::/64"),
            ("2001:DB8::3", "2001:db8::/64"),
            ("fe80::1%eth0", "fe80::/64"),
            ("::ffff:10.0.0.1", "10.0.0.1"),
            ("1.2.3.4, 5.6.7.8", "1.2.3.4"),
            ("Host-1.example", "host-1.example"),
            ("localhost", "localhost"),
            ("-", "none"),
            ("", "none"),
            ("unknown", "none"),
        ] {
            assert_eq!(of(Part::Client, given), client);
        }
        for given in [
            "2025-10-10T13:55:00.31Z",
            "1760104500.075",
            "300",
            "a b",
            "a..b",
            "unix:",
            "[pod/web-1/nginx]",
            "TCP_MISS/200",
        ] {
            assert_eq!(
                of(Part::Client, given),
                format!("invalid client `{given}`: expected an address or a host name")
            );
        }
    }

    #[test]
    fn unescaped_escapes_are_undone() {
        assert_eq!(&*unescaped(br#"a\x22b\"c\\d\q\x2"#), br#"a"b"c\d\q\x2"#);
        assert_eq!(&*unescaped(b"plain"), b"plain");
    }
}
