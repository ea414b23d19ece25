//! The memory that the keys of a state file need, and a layout of the table for them.

use std::io::Read;

use sluicegate_core::Timestamp;

use crate::{
    MemoryStore, SnapshotError,
    bits::narrow,
    budget::Budget,
    dropped::DroppedKeys,
    overflow::OverflowTable,
    restored_policies::RestoredPolicies,
    segment::{SEGMENT_BYTES, SLOTS},
    shard::ENTRIES_PER_SEGMENT,
    snapshot::{Record, Records},
};

/// Bytes of table per key if segments split when they are nearly full.
const BYTES_GROWING: usize = 2 * SEGMENT_BYTES / SLOTS + 5;
/// Bytes of table per key with a given number of segments.
const BYTES_DENSE: usize = SEGMENT_BYTES / SLOTS + 2;
/// Bytes by which the last request before a table is full may exceed the bound: entries of one segment grow.
const MAX_EXCESS: usize = 32 << 10;
/// Leading bits of a lifetime that make up its class: lifetimes are compared to within 0.4 %.
const CLASS_BITS: u32 = 8;

/// The contents of a state file, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Keys that have not recovered.
    pub(crate) keys: usize,
    /// Segments; a file of version 1 has none.
    pub(crate) segments: usize,
    /// Number of bits of the hash that select the smallest of them.
    depth: u32,
    /// Bytes of entries that do not fit in slots.
    overflow: usize,
    /// Keys and bytes of entries, by the class of their lifetime.
    classes: Vec<(usize, usize)>,
    /// Bytes for dropped keys that may still be limited.
    dropped: usize,
}

/// A layout of the table.
pub(crate) enum Layout {
    Growing,
    AsSaved,
    /// Entries of classes below `lowest` are dropped, and those of `lowest` beyond `left` bytes.
    Reduced {
        lowest: usize,
        left: usize,
    },
}

impl Survey {
    /// The layout of a store of up to `max` bytes, and its number of segments. `taken` bytes are in use, including
    /// those of the `first` segments, and `unbounded` ones, which a full table may take beyond `max`.
    pub(crate) fn layout(
        &self,
        taken: usize,
        unbounded: usize,
        first: usize,
        max: usize,
    ) -> (Layout, usize) {
        let taken = taken + self.dropped;
        if taken + self.keys * BYTES_GROWING + with_spare(self.overflow) <= max {
            return (Layout::Growing, first);
        }
        let rest = taken - first * SEGMENT_BYTES;
        if self.segments >= first
            && 1_usize
                .checked_shl(self.depth)
                .is_some_and(|entries| entries <= self.segments / first * ENTRIES_PER_SEGMENT)
            && rest + self.segments * SEGMENT_BYTES + self.overflow
                <= max + MAX_EXCESS.min(max / 32) + unbounded
        {
            return (Layout::AsSaved, first);
        }
        let available = max.saturating_sub(rest);
        let table = |keys: usize| (keys * BYTES_DENSE).max(first * SEGMENT_BYTES);
        let (mut keys, mut overflow, mut lowest, mut left) = (0, 0, 0, 0);
        for (class, own) in self.classes.iter().enumerate().rev() {
            let before = table(keys) + with_spare(overflow);
            let after = table(keys + own.0) + with_spare(overflow + own.1);
            if after > available {
                // A part of this class fits.
                left = scaled(own.1, available.saturating_sub(before), after - before);
                lowest = class;
                break;
            }
            (keys, overflow) = (keys + own.0, overflow + own.1);
        }
        let table = available.saturating_sub(with_spare(overflow + left));
        (Layout::Reduced { lowest, left }, table / SEGMENT_BYTES)
    }
}

impl MemoryStore {
    /// Reads a whole file, and counts what its keys need.
    pub(crate) fn survey<R: Read>(
        &self,
        mut records: Records<R>,
        now: Timestamp,
    ) -> Result<Survey, SnapshotError> {
        let _ = self.since_set_base(now);
        let mut survey = Survey { classes: vec![(0, 0); class(u64::MAX) + 1], ..Survey::default() };
        let mut policies = RestoredPolicies::default();
        // Entries are inserted into a temporary table, one segment at a time.
        let (mut overflow, mut budget, mut keys) =
            (OverflowTable::default(), Budget::new(usize::MAX), 0);
        while let Some(record) = records.next()? {
            let saved = match record {
                Record::Segment(segment) => {
                    survey.segments += 1;
                    survey.depth = survey.depth.max(segment.depth);
                    keys = SLOTS;
                    policies.begin_segment();
                    continue;
                }
                Record::Dropped(_, _, until) => {
                    if until > now && survey.dropped == 0 {
                        survey.dropped = DroppedKeys::new(self.usage().max_bytes).size();
                    }
                    continue;
                }
                Record::Key(saved) => saved,
            };
            if keys >= SLOTS {
                overflow.shrink(&budget);
                survey.overflow += budget.usage().bytes;
                (overflow, budget, keys) = (OverflowTable::default(), Budget::new(usize::MAX), 0);
            }
            // A file of version 1 has no segments. Most segments have fewer keys than this.
            keys += usize::from(survey.segments == 0);
            let Some(key) = policies.key(self, saved, now) else { continue };
            let before = budget.usage().bytes;
            if self.packed(&key.entry, &key.policy, now).is_none() {
                overflow.put(key.entry, &budget);
            }
            let class = &mut survey.classes[class(key.lifetime)];
            *class = (class.0 + 1, class.1 + budget.usage().bytes - before);
            survey.keys += 1;
        }
        overflow.shrink(&budget);
        survey.overflow += budget.usage().bytes;
        Ok(survey)
    }
}

/// Bytes of overflow entries, and of the slots that their tables reserve while they grow.
const fn with_spare(overflow: usize) -> usize {
    overflow + overflow / 8
}

/// `bytes * part / whole`.
fn scaled(bytes: usize, part: usize, whole: usize) -> usize {
    let scaled = bytes as u128 * part as u128 / whole.max(1) as u128;
    usize::try_from(scaled).unwrap_or(usize::MAX)
}

/// The class of a lifetime in microseconds. It grows with the lifetime.
pub(crate) fn class(lifetime: u64) -> usize {
    let rounded = lifetime.checked_ilog2().unwrap_or(0).saturating_sub(CLASS_BITS);
    narrow(lifetime >> rounded) + ((rounded as usize) << CLASS_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn class_grows_with_lifetime() {
        let mut last = 0;
        for lifetime in (0..10_000).chain((14..64).map(|bit| 1 << bit)).chain([u64::MAX]) {
            assert!(class(lifetime) >= last, "{lifetime}");
            last = class(lifetime);
        }
        assert!(class(43_200_000_000) > class(43_000_000_000));
    }
}
