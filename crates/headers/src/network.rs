//! Networks of clients, whose addresses share a key.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

/// All addresses with the same prefix; they share one key. Its text is `10.0.0.0/8`, or an address if it has only one.
///
/// ```
/// use sluicegate_headers::Network;
///
/// let network = |address: &str| address.parse().map(|it| Network::of(it, 32, 64).to_string());
/// assert_eq!(network("192.0.2.7")?, "192.0.2.7");
/// assert_eq!(network("2001:db8::7")?, "2001:db8::/64");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    start: u128,
    prefix: u8,
    is_v4: bool,
}

impl Network {
    /// The network of an address, by the prefix length of IPv4, up to 32, or of IPv6, up to 128. Greater values count as
    /// these.
    #[inline]
    #[must_use]
    pub fn of(address: IpAddr, v4_prefix: u8, v6_prefix: u8) -> Self {
        match address {
            IpAddr::V4(address) => {
                let prefix = v4_prefix.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
                Self { start: (u32::from(address) & mask).into(), prefix, is_v4: true }
            }
            IpAddr::V6(address) => {
                let prefix = v6_prefix.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
                Self { start: u128::from(address) & mask, prefix, is_v4: false }
            }
        }
    }

    /// The address, if it is the only one and of IPv4.
    #[inline]
    #[must_use]
    pub const fn only_v4(self) -> Option<Ipv4Addr> {
        #[expect(clippy::cast_possible_truncation, reason = "an address of IPv4 has 32 bits")]
        match self {
            Self { start, prefix: 32, is_v4: true } => Some(Ipv4Addr::from_bits(start as u32)),
            _ => None,
        }
    }

    /// Numbers that identify the network. The first is at least 2.
    #[inline]
    #[must_use]
    pub fn numbers(self) -> [u64; 3] {
        let kind = 2 + (u64::from(self.prefix) << 1) + u64::from(self.is_v4);
        #[expect(clippy::cast_possible_truncation, reason = "the halves of a number")]
        let [high, low] = [self.start >> 64, self.start].map(|half| half as u64);
        [kind, high, low]
    }
}

impl fmt::Display for Network {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[expect(clippy::cast_possible_truncation, reason = "an address of IPv4 has 32 bits")]
        let (start, bits) = if self.is_v4 {
            (IpAddr::from(Ipv4Addr::from_bits(self.start as u32)), 32)
        } else {
            (IpAddr::from(Ipv6Addr::from_bits(self.start)), 128)
        };
        if self.prefix == bits {
            return write!(formatter, "{start}");
        }
        write!(formatter, "{start}/{}", self.prefix)
    }
}
