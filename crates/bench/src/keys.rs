//! Keys of sixteen bytes, and random numbers.

/// Maximum number of keys that a load has: their numbers have six digits.
pub(crate) const MAX_KEYS: u64 = 1_000_000;

/// A xorshift generator: fast, and sufficient for drawing keys.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number below `bound`, which is below 2^32.
    #[inline]
    pub(crate) const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 32) * bound) >> 32
    }
}

/// A sequence of numbers of keys.
#[derive(Debug)]
pub(crate) enum KeySequence {
    Random(Random, u64),
    /// Each key once, from 0.
    InOrder(u64),
}

impl KeySequence {
    #[inline]
    pub(crate) const fn next(&mut self) -> u64 {
        match self {
            Self::Random(random, keys) => random.below(*keys),
            Self::InOrder(next) => {
                *next += 1;
                *next - 1
            }
        }
    }
}

/// The key with this number, as bytes. It is cheap to create, so that figures do not measure that.
#[inline]
pub(crate) fn bytes(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed(number).to_le_bytes());
    key[8..].copy_from_slice(&number.to_le_bytes());
    key
}

/// The key with this number, as text.
pub(crate) fn text(number: u64) -> String {
    format!("{:016x}", mixed(number))
}

/// The finaliser of SplitMix64, which is a bijection.
const fn mixed(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn keys_of_distinct_numbers_differ_and_have_16_bytes() {
        let texts: HashSet<_> = (0..1000).map(text).collect();
        let keys: HashSet<_> = (0..1000).map(bytes).collect();
        assert_eq!((texts.len(), keys.len()), (1000, 1000));
        assert!(texts.iter().all(|it| it.len() == 16));
    }

    #[test]
    fn random_below_bound_reaches_every_number() {
        let mut random = Random::new(7);
        let drawn: HashSet<_> = (0..1000).map(|_| random.below(10)).collect();
        assert_eq!(drawn, (0..10).collect());
    }
}
