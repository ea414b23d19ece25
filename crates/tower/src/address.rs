//! From which address a request comes, by what the connection says and what trusted proxies vouch for.

use std::{
    fmt::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    ops::Deref,
};

use http::{Extensions, HeaderName, HeaderValue, header::FORWARDED};

use crate::{
    Head,
    key::{Bytes, push_missing, push_short, push_written},
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of a client, or the network that it is in: of IPv6 the first 64 bits, as one client has as
/// many addresses beneath them as it likes.
///
/// What a client says about itself is not believed: of `X-Forwarded-For` and `Forwarded` only as many
/// entries are read, from the last, as there are proxies that wrote them. Ports and zones are left out, and
/// an IPv4 address mapped into IPv6 is that IPv4 address.
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use sluicegate_tower::{Address, Head};
///
/// let request = Request::builder()
///     .extension("10.0.0.1:5000".parse::<SocketAddr>()?) // our proxy
///     .header("x-forwarded-for", "8.8.8.8, 192.0.2.7")   // a lie, and what our proxy saw
///     .body(())?;
/// let address = Address::x_forwarded_for(1).of(&Head::of(&request));
/// assert_eq!(address, Some("192.0.2.7".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Address {
    peer: fn(&Extensions) -> Option<SocketAddr>,
    proxies: Proxies,
    v4_prefix: u8,
    v6_prefix: u8,
}

/// How many proxies are trusted, and where they write.
#[derive(Clone, Copy, Debug)]
enum Proxies {
    None,
    XForwardedFor(usize),
    Forwarded(usize),
}

impl Address {
    /// The address of the peer, which is looked for as a [`SocketAddr`] among the request's extensions;
    /// [`found_in`](Self::found_in) and [`found_by`](Self::found_by) say where else it is.
    #[must_use]
    pub fn peer() -> Self {
        Self {
            peer: |extensions| extensions.get::<SocketAddr>().copied(),
            proxies: Proxies::None,
            v4_prefix: 32,
            v6_prefix: 64,
        }
    }

    /// The address that the farthest of `proxies` trusted proxies in front of this server saw, each of
    /// which adds whom it serves at the end of `X-Forwarded-For`.
    ///
    /// If there are fewer entries, or one is no address, it is the farthest address that is vouched for;
    /// that of the peer if there is none.
    #[must_use]
    pub fn x_forwarded_for(proxies: usize) -> Self {
        Self { proxies: Proxies::XForwardedFor(proxies), ..Self::peer() }
    }

    /// The same by `Forwarded` (RFC 7239).
    #[must_use]
    pub fn forwarded(proxies: usize) -> Self {
        Self { proxies: Proxies::Forwarded(proxies), ..Self::peer() }
    }

    /// The peer's address is in an extension: `found_in::<axum::extract::ConnectInfo<SocketAddr>>()`.
    #[must_use]
    pub fn found_in<T: Deref<Target = SocketAddr> + Send + Sync + 'static>(self) -> Self {
        self.found_by(|extensions| extensions.get::<T>().map(|it| **it))
    }

    /// The peer's address is found so, for tonic:
    /// `found_by(|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr())`.
    #[must_use]
    pub fn found_by(mut self, peer: fn(&Extensions) -> Option<SocketAddr>) -> Self {
        self.peer = peer;
        self
    }

    /// Of how many bits a network is: of IPv4 up to 32, which is where it starts, of IPv6 up to 128, where
    /// it starts with 64. More counts as these.
    #[must_use]
    pub fn prefixes(mut self, v4: u8, v6: u8) -> Self {
        (self.v4_prefix, self.v6_prefix) = (v4.min(32), v6.min(128));
        self
    }

    /// The client's address in full, if there is any.
    #[must_use]
    pub fn of(&self, head: &Head<'_>) -> Option<IpAddr> {
        self.behind((self.peer)(head.extensions), head)
    }

    /// The address of the client that this peer speaks for.
    #[inline(never)]
    fn behind(&self, peer: Option<SocketAddr>, head: &Head<'_>) -> Option<IpAddr> {
        let peer = peer.map(|it| it.ip().to_canonical());
        let values = |name: &HeaderName| head.headers.get_all(name).iter().rev().map(text);
        match self.proxies {
            Proxies::None => peer,
            Proxies::XForwardedFor(proxies) => {
                let entries = values(&X_FORWARDED_FOR)
                    .flat_map(|value| value.rsplit(','))
                    .filter(|entry| !entry.trim().is_empty())
                    .map(address);
                farthest(peer, entries.take(proxies))
            }
            Proxies::Forwarded(proxies) => {
                let entries = values(&FORWARDED)
                    .flat_map(elements_from_the_last)
                    .filter(|element| !element.trim().is_empty())
                    .map(|element| address(for_of(element)?));
                farthest(peer, entries.take(proxies))
            }
        }
    }

    /// Adds the network that the client is in to a key, as text.
    #[inline(always)]
    pub(crate) fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        let peer = (self.peer)(head.extensions);
        // Most peers, apart from what takes more.
        if let (Proxies::None, Some(SocketAddr::V4(peer))) = (self.proxies, peer) {
            return self.push_v4(*peer.ip(), key);
        }
        match self.behind(peer, head) {
            None => push_missing(key),
            Some(IpAddr::V4(address)) => self.push_v4(address, key),
            Some(IpAddr::V6(address)) => self.push_v6(address, key),
        }
    }

    #[inline(always)]
    fn push_v4(&self, address: Ipv4Addr, key: &mut Bytes) {
        let network = Ipv4Addr::from(u32::from(address) & mask_v4(self.v4_prefix));
        let (text, length) = text_of_v4(network);
        if self.v4_prefix == 32 {
            return push_short(text, length, key);
        }
        push_written(key, |to| {
            to.extend_from_slice(&text.map(u64::to_le_bytes).concat()[..length.into()]);
            write!(Text(to), "/{}", self.v4_prefix).ok()
        });
    }

    #[inline(never)]
    fn push_v6(&self, address: Ipv6Addr, key: &mut Bytes) {
        let network = Ipv6Addr::from(u128::from(address) & mask_v6(self.v6_prefix));
        push_written(key, |to| match self.v6_prefix {
            128 => write!(Text(to), "{network}").ok(),
            prefix => write!(Text(to), "{network}/{prefix}").ok(),
        });
    }
}

/// The farthest address with nobody unknown before it.
fn farthest(peer: Option<IpAddr>, entries: impl Iterator<Item = Option<IpAddr>>) -> Option<IpAddr> {
    entries.map_while(|entry| entry).last().or(peer)
}

/// The text of a value; something that is no address if it is none.
fn text(value: &HeaderValue) -> &str {
    value.to_str().unwrap_or("?")
}

/// The address in an entry: `192.0.2.7`, `192.0.2.7:80`, `2001:db8::7`, `[2001:db8::7]:80`.
fn address(entry: &str) -> Option<IpAddr> {
    let entry = entry.trim();
    let is_port = |port: &str| !port.is_empty() && port.bytes().all(|it| it.is_ascii_digit());
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
        Some((host, _zone)) => host.parse().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
    .map(|it: IpAddr| it.to_canonical())
}

/// The elements of a list from the last, commas in quotes aside. Read from the end, as what is further to
/// the front was written by others, and its quotes may be open.
fn elements_from_the_last(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let text = rest?;
        let bytes = text.as_bytes();
        let mut quoted = false;
        for (place, &byte) in bytes.iter().enumerate().rev() {
            match byte {
                b'"' if !is_escaped(bytes, place) => quoted = !quoted,
                b',' if !quoted => {
                    rest = Some(&text[..place]);
                    return Some(&text[place + 1..]);
                }
                _ => {}
            }
        }
        rest = None;
        Some(text)
    })
}

/// Whether a quote is text and no end of text.
fn is_escaped(bytes: &[u8], place: usize) -> bool {
    bytes[..place].iter().rev().take_while(|&&it| it == b'\\').count() % 2 == 1
}

/// What is behind `for=` in an element of `Forwarded`, without quotes.
fn for_of(element: &str) -> Option<&str> {
    let (mut quoted, bytes) = (false, element.as_bytes());
    let is_end = |(place, char): (usize, char)| {
        if char == '"' && !is_escaped(bytes, place) {
            quoted = !quoted;
        }
        (char == ';' && !quoted).then_some(place)
    };
    let mut start = 0;
    for end in element.char_indices().filter_map(is_end).chain([element.len()]) {
        if let Some((name, value)) = element[start..end].split_once('=')
            && name.trim().eq_ignore_ascii_case("for")
        {
            let value = value.trim();
            return match value.strip_prefix('"') {
                Some(quoted) => quoted.strip_suffix('"'),
                None => Some(value),
            };
        }
        start = end + 1;
    }
    None
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0)
}

/// An address as text, as [`push_short`] takes it, and its length. It is put together in registers: bytes that
/// were written one by one would have to be waited for by who reads them as a whole.
#[inline(always)]
fn text_of_v4(address: Ipv4Addr) -> ([u64; 2], u8) {
    // Two octets with their dots, and of how many bits they are.
    let two = |first: u8, second: u8| {
        let text = |octet: u8| u64::from(OCTETS[usize::from(octet)]);
        (text(first) | text(second) << width(first), width(first) + width(second))
    };
    let [a, b, c, d] = address.octets();
    let ((first, bits), (second, more)) = (two(a, b), two(c, d));
    // From 32 to 64 bits.
    let low = first | second.checked_shl(bits.into()).unwrap_or(0);
    let high = second >> (64 - bits);
    // Without the last dot.
    ([low, high], (bits + more) / 8 - 1)
}

/// How many bits of [`OCTETS`] are the text of an octet, with its dot.
#[inline(always)]
fn width(octet: u8) -> u8 {
    16 + 8 * (u8::from(octet > 9) + u8::from(octet > 99))
}

/// The digits of each octet and a dot, the first in the lowest byte.
static OCTETS: [u32; 256] = {
    let mut octets = [0; 256];
    let mut octet = 0;
    while octet < 256 {
        // From the last byte to the first.
        let mut text = 0x2e;
        let mut rest = octet;
        loop {
            text = (text << 8) | (0x30 + rest % 10);
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        octets[octet as usize] = text;
        octet += 1;
    }
    octets
};

/// Takes text.
struct Text<'a>(&'a mut Bytes);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests;
