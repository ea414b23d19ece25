//! Keys of a state file that did not fit into memory, in a compact form that may deny too much, but never too little.
//!
//! Hashes are divided into ranges. Each range has the time at which the last of its dropped keys recovers, an upper bound
//! for each of them (a count-min sketch of one row, Cormode and Muthukrishnan 2005, with maxima instead of sums).

use std::time::Duration;

use sluicegate_core::Timestamp;

use crate::budget::MIN_BYTES;

/// Bytes of the store for each time of eight bytes: the sketch takes less than a hundredth of it.
const BYTES_PER_RANGE: usize = 1024;

/// Upper bounds on the times at which dropped keys recover.
#[derive(Debug)]
pub(crate) struct DroppedKeys {
    /// Bits by which a hash is shifted to give the index of its range.
    shift: u32,
    /// For each range, microseconds since the Unix epoch; 0: no key of it was dropped.
    until: Box<[u64]>,
    /// Number of dropped keys.
    pub(crate) keys: usize,
}

impl DroppedKeys {
    /// The number of bits that the hashes of a range share, in the smallest store.
    pub(crate) const MIN_BITS: u32 = (MIN_BYTES / BYTES_PER_RANGE).ilog2();

    /// No dropped key, for a store of up to `max_bytes` (at least 2 MiB).
    pub(crate) fn new(max_bytes: usize) -> Self {
        let bits = (max_bytes / BYTES_PER_RANGE).ilog2();
        Self { shift: 64 - bits, until: vec![0; 1 << bits].into(), keys: 0 }
    }

    /// Its size in bytes.
    pub(crate) const fn size(&self) -> usize {
        size_of_val(&*self.until)
    }

    /// Adds a dropped key that recovers at `until`.
    pub(crate) fn add(&mut self, hash: u64, until: Timestamp) {
        self.keys += 1;
        self.raise(hash, 64 - self.shift, until);
    }

    /// Raises the bound of a range: the hashes that share the first `bits` with `hash`.
    pub(crate) fn raise(&mut self, hash: u64, bits: u32, until: Timestamp) {
        let first = self.index(hash);
        let count = 1_usize << (64 - self.shift).saturating_sub(bits);
        let start = first / count * count;
        for time in &mut self.until[start..start + count] {
            *time = until.as_micros().max(*time);
        }
    }

    /// Time until every dropped key in the range of `hash` has recovered; `None` if they have.
    pub(crate) fn remaining(&self, hash: u64, now: Timestamp) -> Option<Duration> {
        let micros = self.until[self.index(hash)].checked_sub(now.as_micros())?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// The ranges with a bound that is later than `now`: first hash, bits, bound.
    pub(crate) fn ranges(&self, now: Timestamp) -> impl Iterator<Item = (u64, u32, Timestamp)> {
        let later = (0_u64..).zip(&self.until).filter(move |(_, until)| **until > now.as_micros());
        later.map(|(index, &until)| {
            let until = Timestamp::saturating_from_micros(until);
            (index << self.shift, 64 - self.shift, until)
        })
    }

    fn index(&self, hash: u64) -> usize {
        crate::bits::narrow(hash >> self.shift)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::saturating_from_micros(micros)
    }

    #[test]
    fn dropped_keys_are_denied_until_each_has_recovered_in_a_file_of_any_size() {
        let mut dropped = DroppedKeys::new(2 << 20);
        let hashes: Vec<u64> =
            (1..=200_u64).map(|key| key.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for (hash, until) in hashes.iter().zip(1000..) {
            dropped.add(*hash, at(until));
        }
        assert_eq!(dropped.keys, 200);
        let mut others = vec![dropped];
        for max_bytes in [64 << 20, 3 << 20, 2 << 20] {
            let mut other = DroppedKeys::new(max_bytes);
            let ranges: Vec<_> = others[others.len() - 1].ranges(at(0)).collect();
            ranges.into_iter().for_each(|(hash, bits, until)| other.raise(hash, bits, until));
            others.push(other);
        }
        for dropped in &others {
            for (hash, until) in hashes.iter().zip(1000..) {
                let remaining = dropped.remaining(*hash, at(until - 1));
                assert!(remaining.is_some_and(|it| it >= Duration::from_micros(1)));
            }
            assert_eq!(dropped.ranges(at(1200)).count(), 0);
            assert!(hashes.iter().all(|hash| dropped.remaining(*hash, at(1199)).is_none()));
        }
        // Of hashes that were not dropped, few are in the range of one that was.
        let strangers = (1..=10_000_u64).map(|key| key.wrapping_mul(0xd1b5_4a32_d192_ed03));
        let denied = strangers.filter(|hash| others[0].remaining(*hash, at(0)).is_some()).count();
        assert!(denied < 2_000, "{denied}");
    }
}
