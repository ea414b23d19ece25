//! The address of a client, from the connection and from headers of trusted proxies.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    ops::Deref,
};

use http::{Extensions, HeaderName, HeaderValue, header::FORWARDED};
use sluicegate_headers::{AddressList, Network};

use crate::{
    Head,
    key_bytes::{Bytes, push, push_missing, push_short},
};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The client's IPv4 address, or its /64 network of IPv6, in which a client can use any address.
///
/// Client-supplied entries are ignored: of `X-Forwarded-For` and `Forwarded`, only as many entries are read,
/// from the last, as there are trusted proxies. Ports and zones are removed. An IPv4 address mapped into IPv6
/// is that IPv4 address.
///
/// ```
/// use std::net::SocketAddr;
/// use http::Request;
/// use sluicegate_tower::{ClientAddress, Head};
///
/// let request = Request::builder()
///     .extension("10.0.0.1:5000".parse::<SocketAddr>()?) // our proxy
///     .header("x-forwarded-for", "8.8.8.8, 192.0.2.7")   // forged, then added by our proxy
///     .body(())?;
/// let address = ClientAddress::x_forwarded_for(1).of(&Head::of(&request));
/// assert_eq!(address, Some("192.0.2.7".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClientAddress {
    peer: fn(&Extensions) -> Option<SocketAddr>,
    proxies: Proxies,
    v4_prefix: u8,
    v6_prefix: u8,
}

/// The number of trusted proxies, and the header that they write.
#[derive(Clone, Copy, Debug)]
enum Proxies {
    None,
    XForwardedFor(usize),
    Forwarded(usize),
}

impl ClientAddress {
    /// The address of the peer: a [`SocketAddr`] in the request's extensions, unless
    /// [`found_in`](Self::found_in) or [`found_by`](Self::found_by) names another source.
    #[must_use]
    pub fn peer() -> Self {
        Self {
            peer: |extensions| extensions.get().copied(),
            proxies: Proxies::None,
            v4_prefix: 32,
            v6_prefix: 64,
        }
    }

    /// The address that the farthest of `proxies` trusted proxies saw. Each proxy appends the address of its
    /// client to `X-Forwarded-For`.
    ///
    /// If there are fewer entries, or one is not an address, the result is the farthest address before it;
    /// without any, the address of the peer.
    #[must_use]
    pub fn x_forwarded_for(proxies: usize) -> Self {
        Self { proxies: Proxies::XForwardedFor(proxies), ..Self::peer() }
    }

    /// The same with `Forwarded` (RFC 7239).
    #[must_use]
    pub fn forwarded(proxies: usize) -> Self {
        Self { proxies: Proxies::Forwarded(proxies), ..Self::peer() }
    }

    /// Reads the peer's address from an extension: `found_in::<axum::extract::ConnectInfo<SocketAddr>>()`.
    #[must_use]
    pub fn found_in<T: Deref<Target = SocketAddr> + Send + Sync + 'static>(mut self) -> Self {
        self.peer = |extensions| extensions.get::<T>().map(|it| **it);
        self
    }

    /// Reads the peer's address with a function; for tonic
    /// `found_by(|extensions| extensions.get::<TcpConnectInfo>()?.remote_addr())`.
    #[must_use]
    pub fn found_by(mut self, peer: fn(&Extensions) -> Option<SocketAddr>) -> Self {
        self.peer = peer;
        self
    }

    /// Prefix lengths of the network: IPv4 up to 32 (the default), IPv6 up to 128 (default 64). Greater values
    /// count as these.
    #[must_use]
    pub fn prefixes(mut self, v4: u8, v6: u8) -> Self {
        (self.v4_prefix, self.v6_prefix) = (v4.min(32), v6.min(128));
        self
    }

    /// The full address of the client, if it has one.
    #[must_use]
    pub fn of(&self, head: &Head<'_>) -> Option<IpAddr> {
        self.behind((self.peer)(head.extensions).map(|it| it.ip()), head)
    }

    /// The address of the client behind this peer.
    #[inline(never)]
    fn behind(&self, peer: Option<IpAddr>, head: &Head<'_>) -> Option<IpAddr> {
        let peer = peer.map(|it| it.to_canonical());
        let (list, name, proxies) = match self.proxies {
            Proxies::None => return peer,
            Proxies::XForwardedFor(proxies) => {
                (AddressList::XForwardedFor, X_FORWARDED_FOR, proxies)
            }
            Proxies::Forwarded(proxies) => (AddressList::Forwarded, FORWARDED, proxies),
        };
        let lines = head.headers.get_all(name).iter().map(HeaderValue::as_bytes);
        list.client(lines, proxies).or(peer)
    }

    /// Adds the network of the client to a key, as text.
    pub(crate) fn push(&self, head: &Head<'_>, key: &mut Bytes) {
        push_network(self.network(head), key);
    }

    /// The network of the client, if it has an address.
    #[inline]
    pub(crate) fn network(&self, head: &Head<'_>) -> Option<Network> {
        let peer = (self.peer)(head.extensions).map(|it| it.ip());
        // The fast path for most peers.
        let address = match (self.proxies, peer) {
            (Proxies::None, Some(peer @ IpAddr::V4(_))) => peer,
            _ => self.behind(peer, head)?,
        };
        Some(Network::of(address, self.v4_prefix, self.v6_prefix))
    }
}

/// Adds a network to a key: `10.0.0.0/8`, or an address if it has only one.
#[inline]
pub(crate) fn push_network(network: Option<Network>, key: &mut Bytes) {
    let Some(network) = network else { return push_missing(key) };
    match network.only_v4() {
        Some(address) => {
            let (text, length) = text_of_v4(address);
            push_short(text, length, key);
        }
        None => push_text(network, key),
    }
}

#[inline(never)]
fn push_text(network: Network, key: &mut Bytes) {
    let mut text = [0; 48];
    let mut free = &mut text[..];
    write!(free, "{network}").expect("an address and a prefix have at most 43 bytes");
    let length = free.len();
    push(&text[..48 - length], key);
}

/// An address as text in the form of [`push_short`], and its length. It is composed in registers: bytes written one by
/// one would stall the wide read that follows.
#[inline]
fn text_of_v4(address: Ipv4Addr) -> ([u64; 2], u8) {
    let [a, b, c, d] = address.octets().map(|octet| OCTETS[usize::from(octet)]);
    let ((first, bits), (second, more)) = (two(a, b), two(c, d));
    // `bits` is from 32 to 64; therefore the shift is split in two, because a shift by 64 is invalid.
    let low = first | second << (bits - 1) << 1;
    let high = second >> (64 - bits);
    // Without the last dot.
    #[expect(clippy::cast_possible_truncation, reason = "at most fifteen")]
    ([low, high], ((bits + more) / 8 - 1) as u8)
}

/// Two octets with their dots, and their number of bits.
#[inline]
fn two(first: u64, second: u64) -> (u64, u64) {
    let text = |octet: u64| octet & u64::from(u32::MAX);
    let bits = first >> 32;
    (text(first) | text(second) << bits, bits + (second >> 32))
}

/// The digits of each octet and a dot, the first in the lowest byte, and above them their number of bits.
static OCTETS: [u64; 256] = {
    let mut octets = [0_u64; 256];
    let mut octet = 0;
    while octet < 256 {
        // From the last byte to the first.
        let (mut text, mut bits) = (0x2e, 8);
        let mut rest = octet as u64;
        loop {
            text = (text << 8) | (0x30 + rest % 10);
            bits += 8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        octets[octet] = text | bits << 32;
        octet += 1;
    }
    octets
};

#[cfg(test)]
mod tests;
