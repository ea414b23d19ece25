//! Keys of rules, built from parts so that different parts never result in the same key.
//!
//! A key is readable, such as `rule:login|203.0.113.7`: the prefix of its rule, and each part after a `|`. In a part,
//! `%`, `|`, `{`, `}`, `=`, spaces and controls are escaped as `%XX`; a lone `%` is a part that the request does not
//! have. Braces only occur where a Redis cluster must keep keys in one slot.

use std::{borrow::Cow, fmt};

use sluicegate_headers::PathOptions;

use crate::{
    attribute::{self, Attribute},
    cidr_block::{CidrBlock, prefix_length},
    error::quoted,
    escape::escape,
    long_values::LongValues,
    request::Request,
};

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyPart {
    source: KeySource,
    /// Whether all requests without this part share a key; otherwise the rule does not apply to them.
    pub(crate) optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum KeySource {
    Attribute(Attribute),
    /// The network of the client: prefix lengths for IPv4 and IPv6.
    Client(u8, u8),
}

/// Prefix length of the network that one IPv6 client has at least.
const IPV6_BITS: u8 = 64;

impl KeyPart {
    /// Parses a part: an attribute or `client/24/56`, with a `?` at the end if it is optional.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let (name, optional) = text.strip_suffix('?').map_or((text, false), |name| (name, true));
        let fault = || {
            let expected = match name.split_once('/') {
                Some(("client", _)) => "expected at most 32 bits of IPv4 and 128 of IPv6, such as \
                                        `client/24/56`"
                    .to_owned(),
                _ => attribute::expected(name),
            };
            format!("invalid key part {}: {expected}", quoted(text))
        };
        let source = match name.strip_prefix("client") {
            Some("") => KeySource::Client(32, IPV6_BITS),
            Some(lengths) if lengths.starts_with('/') => {
                let mut lengths = lengths[1..].split('/');
                let mut length = |most| lengths.next().map(|it| prefix_length(it, most));
                let ipv4 = length(32).flatten().ok_or_else(fault)?;
                let ipv6 = length(128).unwrap_or(Some(IPV6_BITS)).ok_or_else(fault)?;
                if lengths.next().is_some() {
                    return Err(fault());
                }
                KeySource::Client(ipv4, ipv6)
            }
            _ => KeySource::Attribute(Attribute::named(name).ok_or_else(fault)?),
        };
        Ok(Self { source, optional })
    }

    pub(crate) const fn attribute(&self) -> Option<&Attribute> {
        match &self.source {
            KeySource::Attribute(attribute) => Some(attribute),
            KeySource::Client(..) => None,
        }
    }

    /// Ignores the differences between paths in `options`.
    pub(crate) fn ignore(&mut self, options: PathOptions) {
        if self.source == KeySource::Attribute(Attribute::Path) {
            self.source = KeySource::Attribute(Attribute::path(options));
        }
    }

    /// Whether the part is captured by the path of the rule.
    pub(crate) const fn is_capture(&self) -> bool {
        matches!(self.source, KeySource::Attribute(Attribute::Capture(_)))
    }

    /// Appends the part of `request` after a bar; `false` if it is missing and not optional.
    pub(crate) fn write<'p>(
        &self,
        request: &Request<'_>,
        capture: impl FnOnce(&str) -> Option<&'p str>,
        key: &mut Vec<u8>,
    ) -> bool {
        key.push(b'|');
        let found = match &self.source {
            KeySource::Attribute(Attribute::Capture(name)) => {
                capture(name).map(|value| escape(value.as_bytes(), key))
            }
            KeySource::Attribute(attribute) => {
                request.value(attribute).map(|value| match (request.long_values, value) {
                    (Some(known), Cow::Borrowed(value))
                        if value.len() >= LongValues::MIN_LENGTH =>
                    {
                        known.escaped.escape(value, key);
                    }
                    (_, value) => escape(&value, key),
                })
            }
            KeySource::Client(ipv4, ipv6) => request.client.map(|address| {
                let length = if address.is_ipv4() { *ipv4 } else { *ipv6 };
                key.extend(CidrBlock::around(address, length).to_string().into_bytes());
            }),
        };
        if found.is_none() {
            key.push(b'%');
        }
        found.is_some() || self.optional
    }
}

impl fmt::Display for KeyPart {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            KeySource::Attribute(attribute) => attribute.fmt(formatter)?,
            KeySource::Client(32, IPV6_BITS) => formatter.write_str("client")?,
            KeySource::Client(ipv4, IPV6_BITS) => write!(formatter, "client/{ipv4}")?,
            KeySource::Client(ipv4, ipv6) => write!(formatter, "client/{ipv4}/{ipv6}")?,
        }
        if self.optional { formatter.write_str("?") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(parts: &[&str], request: &Request<'_>) -> Option<String> {
        let mut key = Vec::new();
        for part in parts {
            if !KeyPart::new(part).unwrap().write(request, |_| None, &mut key) {
                return None;
            }
        }
        Some(String::from_utf8(key).unwrap())
    }

    #[test]
    fn write_client_is_its_network() {
        for (part, address, expected) in [
            ("client", "203.0.113.7", "|203.0.113.7"),
            ("client/24", "203.0.113.7", "|203.0.113.0/24"),
            ("client", "2001:db8::1:2:3:4", "|2001:db8::/64"),
            ("client/32/128", "2001:db8::1", "|2001:db8::1"),
            ("client/0/0", "2001:db8::1", "|::/0"),
            ("client", "::ffff:203.0.113.7", "|203.0.113.7"),
        ] {
            let request = Request::http("GET", "/", &()).from(address.parse().unwrap());
            assert_eq!(key(&[part], &request).as_deref(), Some(expected), "{part}");
            assert_eq!(KeyPart::new(part).unwrap().to_string(), part);
        }
    }

    #[test]
    fn write_missing_part_differs_from_any_value() {
        let headers = [("x-a", "%")];
        let request = Request::http("GET", "/", &headers);
        assert_eq!(key(&["header.x-a"], &request).as_deref(), Some("|%25"));
        assert_eq!(key(&["header.x-b"], &request), None);
        assert_eq!(key(&["header.x-b?", "method"], &request).as_deref(), Some("|%|GET"));
        assert_eq!(key(&["client?"], &request).as_deref(), Some("|%"));
    }

    #[test]
    fn new_invalid_part_is_an_error() {
        for text in ["", "x", "header.", "client/33", "client/24/129", "client/1/2/3", "clients"] {
            assert!(KeyPart::new(text).unwrap_err().starts_with("invalid key part `"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn escape_different_tuples_make_different_keys(
            a in prop::collection::vec(".{0,4}|[%|a=]{0,4}", 1..4),
            b in prop::collection::vec(".{0,4}|[%|a=]{0,4}", 1..4),
        ) {
            let make = |tuple: &[String]| {
                let mut key = Vec::new();
                for value in tuple {
                    key.push(b'|');
                    escape(value.as_bytes(), &mut key);
                }
                key
            };
            prop_assert_eq!(make(&a) == make(&b), a == b);
        }
    }
}
