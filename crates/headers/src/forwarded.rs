//! The address of a client behind trusted proxies, from `X-Forwarded-For` or `Forwarded` (RFC 7239).
//!
//! Each proxy appends the address that it saw. One entry for each trusted proxy is read, from the last, because clients
//! choose the entries before those.

use std::net::{IpAddr, Ipv6Addr};

/// How a header lists addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AddressList {
    /// Addresses between commas, as in `X-Forwarded-For`.
    XForwardedFor,
    /// Elements with `for=`, as in `Forwarded` of RFC 7239.
    Forwarded,
}

impl AddressList {
    /// The address that the farthest of `proxies` trusted proxies saw, from all `lines` of the header, in
    /// order. If there are fewer entries, or one is not an address, it is the farthest address before that one;
    /// `None` if there is none. An IPv4 address mapped into IPv6 is that IPv4 address.
    ///
    /// ```
    /// use sluicegate_headers::AddressList;
    ///
    /// let lines = [&b"8.8.8.8, 192.0.2.7"[..], b"10.0.0.2"]; // forged, the client, and the first proxy
    /// let client = AddressList::XForwardedFor.client(lines, 2);
    /// assert_eq!(client, Some("192.0.2.7".parse()?));
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    #[must_use]
    pub fn client<'h, L>(self, lines: L, proxies: usize) -> Option<IpAddr>
    where
        L: IntoIterator<Item = &'h [u8], IntoIter: DoubleEndedIterator>,
    {
        let elements = lines.into_iter().rev().flat_map(|line| self.elements(line));
        let entries = elements.filter(|element| !element.trim_ascii().is_empty()).take(proxies);
        entries.map_while(|element| self.address(element)).last()
    }

    /// The elements of a line from the last.
    fn elements(self, line: &[u8]) -> impl Iterator<Item = &[u8]> {
        let quotes = self == Self::Forwarded;
        let mut rest = Some(line);
        std::iter::from_fn(move || {
            let line = rest?;
            // From the end, because clients choose the start and may leave quotes open.
            let mut quoted = false;
            for (at, &byte) in line.iter().enumerate().rev() {
                match byte {
                    b'"' if quotes && !is_escaped(line, at) => quoted = !quoted,
                    b',' if !quoted => {
                        rest = Some(&line[..at]);
                        return Some(&line[at + 1..]);
                    }
                    _ => {}
                }
            }
            rest = None;
            Some(line)
        })
    }

    fn address(self, element: &[u8]) -> Option<IpAddr> {
        let entry = match self {
            Self::XForwardedFor => element,
            Self::Forwarded => for_of(element)?,
        };
        address(std::str::from_utf8(unquoted(entry.trim_ascii())?).ok()?)
    }
}

/// The text without the quotes around it; `None` if one of them is missing.
fn unquoted(text: &[u8]) -> Option<&[u8]> {
    match text.strip_prefix(b"\"") {
        Some(rest) => rest.strip_suffix(b"\""),
        None => Some(text),
    }
}

/// The address in an entry: `192.0.2.7`, `192.0.2.7:80`, `2001:db8::7`, `[2001:db8::7]:80`, with or without a
/// zone. An IPv4 address mapped into IPv6 is that IPv4 address.
#[must_use]
pub fn address(entry: &str) -> Option<IpAddr> {
    let (host, port) = if let Some(bracketed) = entry.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']')?;
        (host, if rest.is_empty() { None } else { Some(rest.strip_prefix(':')?) })
    } else {
        match entry.split_once(':') {
            // More than one colon is an address of IPv6.
            Some((host, port)) if !port.contains(':') => (host, Some(port)),
            _ => (entry, None),
        }
    };
    if !port.is_none_or(is_port) {
        return None;
    }
    match host.split_once('%') {
        Some((host, _zone)) => host.parse::<Ipv6Addr>().ok().map(IpAddr::V6),
        None => host.parse::<IpAddr>().ok(),
    }
    .map(|address| address.to_canonical())
}

/// Whether it is a port: digits, or a name instead (`_x`).
fn is_port(port: &str) -> bool {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match port.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.bytes().all(is_name),
        None => !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// The value of `for=` in an element of `Forwarded`, with its quotes.
fn for_of(element: &[u8]) -> Option<&[u8]> {
    let (mut quoted, mut next) = (false, 0);
    let mut pairs = element.split(|&byte| {
        quoted ^= byte == b'"' && !is_escaped(element, next);
        next += 1;
        byte == b';' && !quoted
    });
    pairs.find_map(|pair| {
        let at = pair.iter().position(|&byte| byte == b'=')?;
        pair[..at].trim_ascii().eq_ignore_ascii_case(b"for").then_some(&pair[at + 1..])
    })
}

/// Whether an odd number of backslashes precedes the byte at `at`.
fn is_escaped(bytes: &[u8], at: usize) -> bool {
    bytes[..at].iter().rev().take_while(|&&byte| byte == b'\\').count() % 2 == 1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn client_is_what_the_farthest_trusted_proxy_saw() {
        for (proxies, lines, expected) in [
            (1, &["192.0.2.7"][..], Some("192.0.2.7")),
            (1, &["8.8.8.8, 192.0.2.7"], Some("192.0.2.7")),
            (1, &["8.8.8.8", "192.0.2.7"], Some("192.0.2.7")),
            (2, &["8.8.8.8, 192.0.2.7", " 10.0.0.2 "], Some("192.0.2.7")),
            (2, &["8.8.8.8, 192.0.2.7,10.0.0.2,, "], Some("192.0.2.7")),
            (0, &["192.0.2.7"], None),
            (3, &["192.0.2.7"], Some("192.0.2.7")),
            (usize::MAX, &["192.0.2.7", "10.0.0.2"], Some("192.0.2.7")),
            (1, &[], None),
            (1, &["", " , "], None),
            (1, &["8.8.8.8, unknown"], None),
            (2, &["unknown, 10.0.0.2"], Some("10.0.0.2")),
            (3, &["8.8.8.8, unknown, 10.0.0.2"], Some("10.0.0.2")),
            // Whatever a client writes in the same line spoils nothing.
            (1, &["\u{fc}\u{0}\", 192.0.2.7"], Some("192.0.2.7")),
            (1, &["192.0.2.7:8080"], Some("192.0.2.7")),
            (1, &["192.0.2.7:_hidden"], Some("192.0.2.7")),
            (1, &["2001:db8::7"], Some("2001:db8::7")),
            (1, &["[2001:db8::7]"], Some("2001:db8::7")),
            (1, &["[2001:db8::7]:8080"], Some("2001:db8::7")),
            (1, &["\"[2001:db8::7]:8080\""], Some("2001:db8::7")),
            (1, &["fe80::7%eth0"], Some("fe80::7")),
            (1, &["[fe80::7%25eth0]:80"], Some("fe80::7")),
            (1, &["::ffff:192.0.2.7"], Some("192.0.2.7")),
            (1, &["192.0.2.7:"], None),
            (1, &["192.0.2.7:x"], None),
            (1, &["192.0.2.7:_"], None),
            (1, &["[2001:db8::7]x"], None),
            (1, &["[2001:db8::7"], None),
            (1, &["\"192.0.2.7"], None),
            (1, &["192.0.2.7%eth0"], None),
            (1, &["192.0.2.256"], None),
            (1, &["192.0.2.007"], None),
        ] {
            let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            let expected = expected.map(|it| it.parse().unwrap());
            let found = AddressList::XForwardedFor.client(lines.iter().copied(), proxies);
            assert_eq!(found, expected, "{proxies} {lines:?}");
        }
    }

    #[test]
    fn forwarded_is_read_from_its_end() {
        for (proxies, lines, expected) in [
            (1, &["for=192.0.2.7"][..], Some("192.0.2.7")),
            (1, &["for=8.8.8.8, For=\"192.0.2.7:80\";proto=http"], Some("192.0.2.7")),
            (1, &["proto=http; for = \"[2001:db8::7]:80\"; by=10.0.0.1"], Some("2001:db8::7")),
            (2, &["for=8.8.8.8, for=192.0.2.7", "for=10.0.0.2"], Some("192.0.2.7")),
            (1, &["for=\"8.8.8.8, for=192.0.2.7"], Some("192.0.2.7")),
            (1, &["for=\"8.8.8.8, for=\"[2001:db8::7]\""], Some("2001:db8::7")),
            (1, &["for=x\\, for=\"192.0.2.7\""], Some("192.0.2.7")),
            (1, &["host=\"x;for=8.8.8.8\";for=192.0.2.7"], Some("192.0.2.7")),
            (1, &["for=192.0.2.7;host=\"x, for=8.8.8.8\""], Some("192.0.2.7")),
            (1, &["for=192.0.2.7;host=\"x\\\", for=8.8.8.8;a=\\\"\""], Some("192.0.2.7")),
            (1, &["for=unknown"], None),
            (1, &["for=_hidden"], None),
            (2, &["for=unknown, for=10.0.0.2"], Some("10.0.0.2")),
            (1, &["for=\"192.0.2.7"], None),
            (1, &["proto=http"], None),
            (1, &[], None),
        ] {
            let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
            let expected = expected.map(|it| it.parse().unwrap());
            let found = AddressList::Forwarded.client(lines.iter().copied(), proxies);
            assert_eq!(found, expected, "{proxies} {lines:?}");
        }
    }

    proptest! {
        /// Only the entries of trusted proxies count.
        #[test]
        fn client_entries_before_those_of_proxies_are_ignored(
            forged in "[ -~]{0,40}",
            saw in prop::collection::vec(any::<IpAddr>(), 1..4),
            split in any::<bool>(),
        ) {
            let listed = |list: AddressList| match list {
                AddressList::XForwardedFor => saw.iter().map(ToString::to_string).collect::<Vec<_>>(),
                AddressList::Forwarded => saw.iter().map(|it| match it {
                    IpAddr::V4(it) => format!("for={it};proto=https"),
                    IpAddr::V6(it) => format!("by=x;for=\"[{it}]:443\""),
                }).collect(),
            };
            for list in [AddressList::XForwardedFor, AddressList::Forwarded] {
                let mut lines = vec![forged.clone()];
                if split {
                    lines.extend(listed(list));
                } else {
                    lines = vec![format!("{forged},{}", listed(list).join(", "))];
                }
                let lines = lines.iter().map(String::as_bytes);
                prop_assert_eq!(list.client(lines, saw.len()), Some(saw[0].to_canonical()));
            }
        }
    }
}
