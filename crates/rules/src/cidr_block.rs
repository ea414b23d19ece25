//! CIDR blocks: networks that rules name, whose addresses have a common prefix.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{error::quoted, prefix_index::Prefix};

/// Addresses of one family with the same first bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CidrBlock {
    ipv6: bool,
    /// The address, with its first bit highest; the bits after the prefix are zero.
    bits: u128,
    length: u8,
}

/// Whether an address is IPv6, and its bits, the first one highest.
pub(crate) type Bits = (bool, u128);

pub(crate) fn bits(address: IpAddr) -> Bits {
    match address.to_canonical() {
        IpAddr::V4(address) => (false, u128::from(address.to_bits()) << 96),
        IpAddr::V6(address) => (true, address.to_bits()),
    }
}

/// A number of bits up to `most`, without the sign that the standard library accepts.
pub(crate) fn prefix_length(text: &str, most: u8) -> Option<u8> {
    let is_signed = text.starts_with('+');
    text.parse().ok().filter(|length| !is_signed && *length <= most)
}

impl CidrBlock {
    /// Parses `10.0.0.0/8`, `2001:db8::/32` or one address.
    pub(crate) fn new(text: &str) -> Result<Self, String> {
        let fault = || {
            format!(
                "invalid client {}: expected an address or a network such as `10.0.0.0/8`",
                quoted(text)
            )
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| fault())?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let length = length.map_or(Some(most), |it| prefix_length(it, most));
        let length = length.ok_or_else(fault)?;
        // An IPv4 address mapped into IPv6 is that IPv4 address.
        let length = match address {
            IpAddr::V6(_) if address.to_canonical().is_ipv4() => {
                length.checked_sub(96).ok_or_else(fault)?
            }
            _ => length,
        };
        let (ipv6, bits) = bits(address);
        let network = Self { ipv6, bits: bits & mask(length), length };
        if network.bits == bits {
            return Ok(network);
        }
        Err(format!("invalid network {}: did you mean `{network}`?", quoted(text)))
    }

    /// The network of `address` with this prefix length.
    pub(crate) fn around(address: IpAddr, length: u8) -> Self {
        let (ipv6, bits) = bits(address);
        Self { ipv6, bits: bits & mask(length), length }
    }

    /// Whether the network contains an address, given as its bits.
    pub(crate) fn contains(&self, (ipv6, bits): Bits) -> bool {
        self.ipv6 == ipv6 && bits & mask(self.length) == self.bits
    }
}

const fn mask(length: u8) -> u128 {
    match length {
        0 => 0,
        _ => u128::MAX << (128 - length),
    }
}

impl Prefix for CidrBlock {
    type Value = Bits;

    fn common(&self, _: &Self) -> usize {
        0
    }

    fn head(&self, _: usize) -> u64 {
        head((self.ipv6, self.bits))
    }

    fn head_of(value: &Bits, _: usize, _: &Self) -> Option<u64> {
        Some(head(*value))
    }

    fn at_most(&self, value: &Bits) -> bool {
        (self.ipv6, self.bits) <= *value
    }

    fn contains(&self, value: &Bits) -> bool {
        self.contains(*value)
    }

    fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains((other.ipv6, other.bits))
    }
}

/// A whole IPv4 address, or the first 63 bits of an IPv6 address, which sort after all IPv4 addresses.
fn head((ipv6, bits): Bits) -> u64 {
    let head = if ipv6 { bits >> 65 | 1 << 63 } else { bits >> 96 };
    u64::try_from(head).expect("at most 64 bits")
}

impl fmt::Display for CidrBlock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.ipv6 {
            write!(formatter, "{}", Ipv6Addr::from_bits(self.bits))?;
        } else {
            let bits = u32::try_from(self.bits >> 96).unwrap_or_default();
            write!(formatter, "{}", Ipv4Addr::from_bits(bits))?;
        }
        let most = if self.ipv6 { 128 } else { 32 };
        if self.length == most { Ok(()) } else { write!(formatter, "/{}", self.length) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::prefix_index::PrefixIndex;

    #[test]
    fn new_network_is_parsed_and_checked() {
        for text in ["10.0.0.0/8", "0.0.0.0/0", "192.0.2.7", "2001:db8::/32", "::1", "::/0"] {
            assert_eq!(CidrBlock::new(text).unwrap().to_string(), text);
        }
        assert_eq!(CidrBlock::new("::ffff:10.0.0.0/104").unwrap().to_string(), "10.0.0.0/8");
        assert_eq!(
            CidrBlock::new("10.1.0.0/8").unwrap_err(),
            "invalid network `10.1.0.0/8`: did you mean `10.0.0.0/8`?"
        );
        for text in ["", "10.0.0.0/33", "10.0.0/8", "x", "::/129", "10.0.0.0/"] {
            assert!(CidrBlock::new(text).unwrap_err().starts_with("invalid client "), "{text}");
        }
    }

    #[test]
    fn contains_other_family_is_false() {
        let all = CidrBlock::new("::/0").unwrap();
        assert!(!all.contains(bits("10.0.0.1".parse().unwrap())));
        assert!(!all.contains(bits("::ffff:10.0.0.1".parse().unwrap())));
        assert!(all.contains(bits("2001:db8::1".parse().unwrap())));
    }

    proptest! {
        #[test]
        fn find_address_returns_all_its_networks(
            networks in prop::collection::vec((0..4u32, 0..=32u8), 0..30),
            address in 0..4u32,
        ) {
            let spread = |it: u32| IpAddr::V4(Ipv4Addr::from_bits(it.wrapping_mul(0x5555_5555)));
            let networks: Vec<_> =
                networks.into_iter().map(|(it, length)| CidrBlock::around(spread(it), length)).collect();
            let index = PrefixIndex::of(networks.iter().copied().zip(0..).collect());
            let value = bits(spread(address));
            let mut found: Vec<u32> = Vec::new();
            index.find(&value, |items| found.extend(items));
            found.sort_unstable();
            let expected: Vec<u32> =
                networks.iter().zip(0..).filter(|(it, _)| it.contains(value)).map(|it| it.1).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
