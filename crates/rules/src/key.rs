//! Keys: what a request is counted under, built from parts so that no two tuples of them collide.
//!
//! A key is text that a person can read and type, `rule:login|203.0.113.7`: a prefix that says whose
//! it is, and each part behind a `|`. In a part, `%`, `|`, `{`, `}`, `=`, blanks and controls are
//! escaped as `%XX`; a lone `%` is a part that the request doesn't have. Braces stand only where a
//! cluster of Redis shall keep keys together.

use std::{borrow::Cow, cell::RefCell, fmt, net::IpAddr};

use sluicegate_headers::PathOptions;

use crate::{
    attribute::{self, Attribute},
    error::quoted,
    long_values::LongValues,
    network::Network,
    request::Request,
};

/// A part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    from: From,
    /// Whether a request without it shares a key with the others without it; else the rule does
    /// not apply to it.
    optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum From {
    Attribute(Attribute),
    /// The network that the client is in: so many bits of an address of IPv4 and of IPv6.
    Client(u8, u8),
}

/// An IPv6 client has at least so much of the address space to himself.
const IPV6_BITS: u8 = 64;

impl Part {
    /// The part that `text` says: an attribute, `client/24/56`, and `?` behind what may be absent.
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
        let from = match name.strip_prefix("client") {
            Some("") => From::Client(32, IPV6_BITS),
            Some(lengths) if lengths.starts_with('/') => {
                let mut lengths = lengths[1..].split('/');
                let mut length = |most: u8| {
                    lengths.next().map(|it| it.parse().ok().filter(|length| *length <= most))
                };
                let ipv4 = length(32).flatten().ok_or_else(fault)?;
                let ipv6 = length(128).unwrap_or(Some(IPV6_BITS)).ok_or_else(fault)?;
                if lengths.next().is_some() {
                    return Err(fault());
                }
                From::Client(ipv4, ipv6)
            }
            _ => From::Attribute(Attribute::named(name).ok_or_else(fault)?),
        };
        Ok(Self { from, optional })
    }

    /// Whether a request that doesn't have it is counted all the same.
    #[must_use]
    pub const fn is_optional(&self) -> bool {
        self.optional
    }

    pub(crate) const fn attribute(&self) -> Option<&Attribute> {
        match &self.from {
            From::Attribute(attribute) => Some(attribute),
            From::Client(..) => None,
        }
    }

    /// Takes paths for one that differ only in what `options` ignore.
    pub(crate) fn ignore(&mut self, options: PathOptions) {
        if self.from == From::Attribute(Attribute::Path) && !options.is_strict() {
            self.from = From::Attribute(Attribute::LoosePath(options));
        }
    }

    /// Whether only the rule's path says what it stands for.
    pub(crate) const fn is_capture(&self) -> bool {
        matches!(self.from, From::Attribute(Attribute::Capture(_)))
    }

    /// Writes the part of `request` behind a bar; `false` where the request has none and needs one.
    pub(crate) fn write<'p>(
        &self,
        request: &Request<'_>,
        capture: impl FnOnce(&str) -> Option<&'p str>,
        key: &mut Vec<u8>,
    ) -> bool {
        key.push(b'|');
        let there = match &self.from {
            From::Attribute(Attribute::Capture(name)) => {
                capture(name).map(|value| escape(value.as_bytes(), key))
            }
            From::Attribute(attribute) => {
                request.value(attribute).map(|value| match (request.long_values(), value) {
                    (Some(known), Cow::Borrowed(value)) => known.escaped.escape(value, key),
                    (_, value) => escape(&value, key),
                })
            }
            From::Client(ipv4, ipv6) => request.client().map(|address| {
                let length = if address.is_ipv4() { *ipv4 } else { *ipv6 };
                key.extend(client(address, length).into_bytes());
            }),
        };
        if there.is_none() {
            key.push(b'%');
        }
        there.is_some() || self.optional
    }
}

/// Long values of one request, escaped. Many rules may build keys from the same value, for each reading of the
/// target.
#[derive(Default)]
pub(crate) struct EscapedValues(RefCell<Vec<EscapedValue>>);

/// Where a value is, and what [`escape`] makes of it.
type EscapedValue = (*const [u8], Box<[u8]>);

impl EscapedValues {
    /// As [`escape`], once for each `value`. The request borrows or owns the values as long as this exists,
    /// so their addresses tell them apart.
    fn escape(&self, value: &[u8], key: &mut Vec<u8>) {
        if value.len() < LongValues::MIN_LENGTH {
            return escape(value, key);
        }
        let mut all = self.0.borrow_mut();
        if let Some((_, known)) = all.iter().find(|(it, _)| std::ptr::eq(*it, value)) {
            return key.extend_from_slice(known);
        }
        let start = key.len();
        escape(value, key);
        all.push((value, key[start..].into()));
    }
}

/// An address, or the network that so many bits of it say.
fn client(address: IpAddr, bits: u8) -> String {
    Network::around(address, bits).to_string()
}

/// Writes `value` so that it contains none of the marks that keys are built with.
pub(crate) fn escape(value: &[u8], key: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    crate::query::work::add(value.len());
    let plain = |byte: &u8| PLAIN[usize::from(*byte)];
    let mut rest = value;
    // Most values are plain as a whole.
    while let Some(at) = rest.iter().position(|byte| !plain(byte)) {
        let (front, behind) = rest.split_at(at);
        let byte = usize::from(behind[0]);
        key.extend_from_slice(front);
        key.extend_from_slice(&[b'%', DIGITS[byte >> 4], DIGITS[byte & 15]]);
        rest = &behind[1..];
    }
    key.extend_from_slice(rest);
}

/// Which bytes stand for themselves.
const PLAIN: [bool; 256] = {
    let (mut plain, mut byte) = ([true; 256], 0);
    while byte < 256 {
        plain[byte] = byte > 0x20 && byte != 0x7f;
        byte += 1;
    }
    let (marks, mut at) = (b"%|{}=", 0);
    while at < marks.len() {
        plain[marks[at] as usize] = false;
        at += 1;
    }
    plain
};

impl fmt::Display for Part {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.from {
            From::Attribute(attribute) => attribute.fmt(formatter)?,
            From::Client(32, IPV6_BITS) => formatter.write_str("client")?,
            From::Client(ipv4, IPV6_BITS) => write!(formatter, "client/{ipv4}")?,
            From::Client(ipv4, ipv6) => write!(formatter, "client/{ipv4}/{ipv6}")?,
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
            if !Part::new(part).unwrap().write(request, |_| None, &mut key) {
                return None;
            }
        }
        Some(String::from_utf8(key).unwrap())
    }

    #[test]
    fn clients_are_counted_by_network() {
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
            assert_eq!(Part::new(part).unwrap().to_string(), part);
        }
    }

    #[test]
    fn what_is_absent_is_no_value() {
        let headers = [("x-a", "%")];
        let request = Request::http("GET", "/", &headers);
        assert_eq!(key(&["header.x-a"], &request).as_deref(), Some("|%25"));
        assert_eq!(key(&["header.x-b"], &request), None);
        assert_eq!(key(&["header.x-b?", "method"], &request).as_deref(), Some("|%|GET"));
        assert_eq!(key(&["client?"], &request).as_deref(), Some("|%"));
    }

    #[test]
    fn invalid_part_is_an_error() {
        for text in ["", "x", "header.", "client/33", "client/24/129", "client/1/2/3", "clients"] {
            assert!(Part::new(text).unwrap_err().starts_with("invalid key part `"), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_two_tuples_make_one_key(
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
