//! Slots of a cluster, and which node holds each.

use std::collections::{BTreeMap, BTreeSet};

/// Slots of a cluster.
pub(super) const SLOTS: u16 = 16_384;

/// The slot of a key: CRC-16 of what is between its first brace and the next closing one, or of all of it.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tag = key.split(|byte| *byte == b'{').nth(1).and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b'}')?;
        rest.get(..end).filter(|tag| !tag.is_empty())
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    });
    crc % SLOTS
}

/// Which shard has each slot, and which node is the primary of each shard.
#[derive(Clone, Debug)]
pub(super) struct SlotMap {
    /// Slots that have moved from the shard that they had at first.
    moved: BTreeMap<u16, usize>,
    pub(super) primaries: Vec<usize>,
}

impl SlotMap {
    /// Equal parts. The first nodes are primaries.
    pub(super) fn new(shards: usize) -> Self {
        Self { moved: BTreeMap::new(), primaries: (0..shards).collect() }
    }

    pub(super) fn shard_of(&self, slot: u16) -> usize {
        let first = usize::from(slot) * self.primaries.len() / usize::from(SLOTS);
        self.moved.get(&slot).copied().unwrap_or(first)
    }

    /// The primary that has the slot.
    pub(super) fn node_of(&self, slot: u16) -> usize {
        self.primaries[self.shard_of(slot)]
    }

    pub(super) fn assign(&mut self, slot: u16, shard: usize) {
        self.moved.insert(slot, shard);
    }

    /// First and last slots with their shard, in order.
    pub(super) fn ranges(&self) -> Vec<(u16, u16, usize)> {
        let (shards, slots) = (self.primaries.len(), usize::from(SLOTS));
        // Where a shard may begin: at its first slot, and at each slot that has moved, or behind one.
        let first = |shard: usize| u16::try_from((shard * slots).div_ceil(shards)).unwrap_or(SLOTS);
        let moved = self.moved.keys().flat_map(|slot| [*slot, *slot + 1]);
        let begins: BTreeSet<_> = (0..shards).map(first).chain(moved).chain([SLOTS]).collect();
        let begins: Vec<_> = begins.into_iter().collect();
        let mut ranges: Vec<(u16, u16, usize)> = Vec::new();
        for pair in begins.windows(2) {
            let (shard, last) = (self.shard_of(pair[0]), pair[1] - 1);
            match ranges.last_mut() {
                Some((_, end, same)) if *same == shard => *end = last,
                _ => ranges.push((pair[0], last, shard)),
            }
        }
        ranges
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_of_key_is_that_of_its_tag() {
        // Replies of `CLUSTER KEYSLOT` of Redis 7.0.
        for (key, expected) in
            [(&b"foo"[..], 12182), (b"", 0), (b"user:{42}:take", 8000), (b"{}x", 10595)]
        {
            assert_eq!(slot_of(key), expected, "{}", key.escape_ascii());
        }
    }

    #[test]
    fn ranges_of_moved_slot_are_split() {
        let mut map = SlotMap::new(2);
        assert_eq!(map.ranges(), [(0, 8191, 0), (8192, 16383, 1)]);
        map.assign(100, 1);
        let expected = [(0, 99, 0), (100, 100, 1), (101, 8191, 0), (8192, 16383, 1)];
        assert_eq!(map.ranges(), expected);
    }
}
