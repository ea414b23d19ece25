//! What a file of keys takes, and how the table is laid out for that.

use std::io::Read;

use sluicegate_core::Timestamp;

use crate::{
    MemoryStore, SnapshotError,
    budget::Budget,
    dropped::DroppedKeys,
    large::Large,
    restore::Policies,
    segment::{BYTES, SLOTS},
    snapshot::{Record, Records},
    store::narrow,
};

/// Bytes of table for a key, where segments split when they are nearly full.
const BYTES_GROWING: usize = 2 * BYTES / SLOTS + 5;
/// Bytes of table for a key, where the number of segments is given.
const BYTES_DENSE: usize = BYTES / SLOTS + 2;
/// Leading bits of a lifetime by which keys are compared before they are read again: to within 0.4 %.
const CLASS_BITS: u32 = 8;

/// What a file takes.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Keys that have not recovered.
    pub(crate) keys: usize,
    /// Segments that it names; version 1 names none.
    segments: usize,
    /// Bytes of entries that do not fit in slots.
    large: usize,
    /// Keys and bytes of entries, by the class of their lifetime.
    classes: Vec<(usize, usize)>,
    /// Bytes for what it says of keys that were dropped and may still be limited.
    dropped: usize,
}

/// How the table is laid out.
pub(crate) enum Layout {
    Growing,
    AsSaved,
    /// Entries of a class that is not in full are dropped, but for so many bytes of the `lowest`.
    Reduced {
        lowest: usize,
        left: usize,
    },
}

impl Survey {
    /// How to lay out a store of up to `max` bytes, of which so many are taken already and some by its
    /// first segments.
    pub(crate) fn layout(&self, taken: usize, first: usize, max: usize) -> (Layout, usize) {
        let taken = taken + self.dropped;
        if taken + self.keys * BYTES_GROWING + self.large + self.large / 8 <= max {
            return (Layout::Growing, first);
        }
        let rest = taken - first * BYTES;
        // What decoding takes less than growing did may not be counted to the byte.
        if self.segments >= first && rest + self.segments * BYTES + self.large <= max + max / 32 {
            return (Layout::AsSaved, first);
        }
        let available = max.saturating_sub(rest);
        let table = |keys: usize| (keys * BYTES_DENSE).max(first * BYTES);
        let (mut keys, mut large, mut lowest, mut left) = (0, 0, 0, 0);
        for (class, own) in self.classes.iter().enumerate().rev() {
            let before = table(keys) + large;
            let after = table(keys + own.0) + large + own.1;
            if after > available {
                // Of this class there is room for some.
                left = scaled(own.1, available.saturating_sub(before), after - before);
                lowest = class;
                break;
            }
            (keys, large) = (keys + own.0, large + own.1);
        }
        let table = available.saturating_sub(large + left);
        (Layout::Reduced { lowest, left }, table / BYTES)
    }
}

impl MemoryStore {
    /// Reads all of a file, and finds out what its keys take.
    pub(crate) fn survey<R: Read>(
        &self,
        mut records: Records<R>,
        now: Timestamp,
    ) -> Result<Survey, SnapshotError> {
        let _ = self.since_set_base(now);
        let mut survey = Survey { classes: vec![(0, 0); class(u64::MAX) + 1], ..Survey::default() };
        let mut policies = Policies::default();
        // Entries are put where nobody sees them, a segment's at a time.
        let (mut large, mut budget, mut keys) = (Large::default(), Budget::new(usize::MAX), 0);
        while let Some(record) = records.next()? {
            let saved = match record {
                Record::Segment(_) => {
                    survey.segments += 1;
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
                large.shrink(&budget);
                survey.large += budget.usage().bytes;
                (large, budget, keys) = (Large::default(), Budget::new(usize::MAX), 0);
            }
            // A file of version 1 does not say where a segment ends; most have fewer keys.
            keys += usize::from(survey.segments == 0);
            let Some(key) = policies.key(self, saved, now) else { continue };
            let before = budget.usage().bytes;
            if self.packed(&key.entry, &key.rule, now).is_none() {
                large.put(key.entry, &budget);
            }
            let class = &mut survey.classes[class(key.lifetime)];
            *class = (class.0 + 1, class.1 + budget.usage().bytes - before);
            survey.keys += 1;
        }
        large.shrink(&budget);
        survey.large += budget.usage().bytes;
        Ok(survey)
    }
}

/// `bytes * part / whole`.
fn scaled(bytes: usize, part: usize, whole: usize) -> usize {
    let scaled = bytes as u128 * part as u128 / whole.max(1) as u128;
    usize::try_from(scaled).unwrap_or(usize::MAX)
}

/// The class of a lifetime in microseconds: greater ones have no lower class.
pub(crate) fn class(lifetime: u64) -> usize {
    let rounded = lifetime.checked_ilog2().unwrap_or(0).saturating_sub(CLASS_BITS);
    narrow(lifetime >> rounded) + ((rounded as usize) << CLASS_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_in_the_order_of_lifetimes_and_narrow() {
        let mut last = 0;
        for lifetime in (0..10_000).chain((14..64).map(|bit| 1 << bit)).chain([u64::MAX]) {
            assert!(class(lifetime) >= last, "{lifetime}");
            last = class(lifetime);
        }
        assert!(class(43_200_000_000) > class(43_000_000_000));
    }
}
