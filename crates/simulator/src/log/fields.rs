//! Fields of a line, and the key that is made of them.

use std::borrow::Cow;

use super::LogError;

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
    /// An address without its port.
    Address,
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
                Part::Address,
                "remote_addr ip client_ip remote_ip request.client_ip request.remote_ip \
                 downstream_remote_address x_forwarded_for",
            ),
            "user" => (Part::Whole, "remote_user user user_id"),
            "time" => (
                Part::Whole,
                "msec time_local ts time timestamp @timestamp start_time time_iso8601",
            ),
            "duration" => (
                Part::Whole,
                "request_time duration request_time_ms duration_ms request_duration_ms duration_us \
                 duration_ns %D %usT %msT %sT %T",
            ),
            "method" => (Part::Method, "request_method method request.method request"),
            "path" => (Part::Path, "request_uri uri path request.uri url request"),
            "url" => (Part::Url, "request_uri uri url request.uri path request"),
            "host" => (Part::Whole, "host request.host authority"),
            "status" => (Part::Whole, "status response_code"),
            "agent" => (Part::Whole, "http_user_agent user_agent"),
            "referer" => (Part::Whole, "http_referer referer"),
            other => return Self { names: vec![other], part: Part::Whole },
        };
        Self { names: names.split(' ').collect(), part }
    }
}

impl Part {
    /// This part of `value`.
    pub(crate) fn extract(self, value: &[u8]) -> &[u8] {
        match self {
            Self::Whole => value,
            Self::Address => address(value),
            Self::Method => before(b' ', value),
            Self::Url => target(value),
            Self::Path => before(b'?', target(value)),
        }
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

/// `10.0.0.1` of `10.0.0.1:4711`, `::1` of `[::1]:4711`, the first of `10.0.0.1, 10.0.0.2`.
fn address(value: &[u8]) -> &[u8] {
    let value = before(b',', value);
    if let [b'[', rest @ ..] = value {
        return before(b']', rest);
    }
    let mut colons = value.iter().enumerate().filter(|(_, byte)| **byte == b':');
    match (colons.next(), colons.next()) {
        (Some((at, _)), None) => &value[..at],
        _ => value,
    }
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
        let of = |part: Part, value: &str| {
            String::from_utf8_lossy(part.extract(value.as_bytes())).into_owned()
        };
        assert_eq!(of(Part::Method, "GET /a?b=c HTTP/1.1"), "GET");
        assert_eq!(of(Part::Path, "GET /a?b=c HTTP/1.1"), "/a");
        assert_eq!(of(Part::Url, "GET /a b?b=c HTTP/1.1"), "/a b?b=c");
        assert_eq!(of(Part::Path, "/a?b"), "/a");
        assert_eq!(of(Part::Path, ""), "");
        for (given, address) in [
            ("10.0.0.1", "10.0.0.1"),
            ("10.0.0.1:80", "10.0.0.1"),
            ("[::1]:80", "::1"),
            ("fe80::1", "fe80::1"),
            ("1.2.3.4, 5.6.7.8", "1.2.3.4"),
            ("-", "-"),
        ] {
            assert_eq!(of(Part::Address, given), address);
        }
    }

    #[test]
    fn unescaped_escapes_are_undone() {
        assert_eq!(&*unescaped(br#"a\x22b\"c\\d\q\x2"#), br#"a"b"c\d\q\x2"#);
        assert_eq!(&*unescaped(b"plain"), b"plain");
    }
}
