//! Making a table from a state file.
//!
//! The file is read twice: first to check and survey it, then to insert its keys. The survey determines the layout of
//! the table:
//!
//! - if the table has space to grow as usual, it does;
//! - if it was full, its segments are laid out as they were saved, with the same hashes and seeds, so that every key
//!   has a slot again;
//! - with less memory, the segments that fit divide the hashes evenly, and each keeps the keys that are limited for
//!   longest. The same holds for overflow entries over all segments. [`DroppedKeys`] has the others.
//!
//! Only policies of keys that were in slots get numbers. Otherwise the order of the keys would decide, and more keys
//! would become overflow entries, which take more memory.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
    io::Read,
};

use sluicegate_core::{Timestamp, as_micros};

use crate::{
    MemoryStore, SnapshotError,
    dropped::DroppedKeys,
    overflow::{OverflowTable, size},
    restored_policies::{RestoredKey, RestoredPolicies},
    segment::{SEGMENT_BYTES, SLOTS},
    shard::{PARTS, SHARD_BITS, SHARDS},
    snapshot::{Record, Records, SavedSegment},
    survey::{Layout, Survey, class},
};

/// Upper bound on the keys of one segment that are inserted together.
const MAX_GROUP: usize = 1 << 14;
/// Upper bound on the attempts to make space for a key. Hashes that were chosen may have the same buckets under every seed.
const MAX_ATTEMPTS: usize = 64;
/// Keys that a segment rejects in a row before the rest of its keys are dropped.
const MAX_REJECTED_IN_ROW: usize = 8;
impl MemoryStore {
    /// Inserts the keys of a surveyed file.
    pub(crate) fn restore<R: Read>(
        &mut self,
        mut records: Records<R>,
        survey: &Survey,
        now: Timestamp,
    ) -> Result<(), SnapshotError> {
        let mut restore = Restore::new(self, survey, now);
        while let Some(record) = records.next()? {
            restore.add(record);
        }
        let dropped = restore.finish();
        self.dropped = dropped.map(Box::new);
        Ok(())
    }

    /// Splits the segments of an empty table, fullest first by the expected number of `keys`, until there are `segments`
    /// or none is expected to be more than half full.
    fn divide(&self, segments: usize, keys: usize) {
        // The first bits of their hashes distribute the keys. Numbers are scaled by 2^32, because they are halved.
        let expected = |shard| ((keys * self.shards.by_index(shard).share()) as u128) << 32;
        let first = (0..SHARDS).map(|shard| (expected(shard), shard, 0_u64, 0_u32));
        let mut fullest: BinaryHeap<_> = first.collect();
        for _ in SHARDS..segments {
            let Some((expected, shard, start, depth)) = fullest.pop() else { return };
            if expected <= ((SLOTS / 2 * PARTS) as u128) << 32 {
                return;
            }
            let hash = self.shards.first_hash(shard) | start >> SHARD_BITS;
            let mut locked = self.shard(hash).lock(hash);
            if !self.shard(hash).split(hash, &mut locked, |_, _| OverflowTable::default()) {
                return;
            }
            self.budget.resize(0, SEGMENT_BYTES);
            let half = 1 << (63 - depth);
            fullest.push((expected / 2, shard, start, depth + 1));
            fullest.push((expected / 2, shard, start | half, depth + 1));
        }
    }

    /// Lays out a segment as it was saved, in an empty table, with `splits` at most.
    fn lay_out(&self, SavedSegment { hash, depth, seed }: SavedSegment, splits: &mut usize) {
        let shard = self.shard(hash);
        let mut locked = shard.lock(hash);
        while locked.depth() < depth {
            if *splits == 0
                || !shard
                    .split(hash, &mut locked, |data, moving| data.split_off(moving, &self.budget))
            {
                return;
            }
            *splits -= 1;
            self.budget.resize(0, SEGMENT_BYTES);
            drop(locked);
            locked = shard.lock(hash);
        }
        if locked.seed() != seed {
            shard.reseed(hash, &mut locked, seed);
        }
    }
}

/// A table that is being made from a file.
struct Restore<'a> {
    store: &'a MemoryStore,
    now: Timestamp,
    layout: Layout,
    /// Each adds a segment, and there are no more segments than in the file.
    splits: usize,
    policies: RestoredPolicies,
    /// The current segment of the file.
    segment: Option<SavedSegment>,
    /// Keys to insert together, and the address of their segment in the table.
    group: (Vec<RestoredKey>, usize),
    dropped: Option<DroppedKeys>,
}

impl<'a> Restore<'a> {
    fn new(store: &'a MemoryStore, survey: &Survey, now: Timestamp) -> Self {
        let usage = store.usage();
        let unbounded = store.policies.unbounded_bytes();
        let layout = survey.layout(usage.bytes, unbounded, SHARDS, usage.max_bytes);
        let mut restore = Self {
            store,
            now,
            layout: layout.0,
            splits: survey.segments.saturating_sub(SHARDS),
            policies: RestoredPolicies::default(),
            segment: None,
            group: (Vec::new(), 0),
            dropped: None,
        };
        if let Layout::Reduced { .. } = restore.layout {
            let taken = restore.dropped().size();
            store.divide(layout.1.saturating_sub(taken.div_ceil(SEGMENT_BYTES)), survey.keys);
        }
        restore
    }

    fn add(&mut self, record: Record) {
        match record {
            Record::Segment(segment) => {
                self.end_segment();
                self.policies.begin_segment();
                self.segment = Some(segment);
                if let Layout::AsSaved = self.layout {
                    self.store.lay_out(segment, &mut self.splits);
                }
            }
            Record::Dropped(hash, bits, until) if until > self.now => {
                self.dropped().raise(hash, bits, until);
            }
            Record::Dropped(..) => {}
            Record::Key(saved) => {
                let Some(key) = self.policies.key(self.store, saved, self.now) else {
                    return;
                };
                if !matches!(self.layout, Layout::Reduced { .. }) {
                    self.put_or_drop(key);
                    return;
                }
                let shard = self.store.shard(key.hash);
                let segment = std::ptr::from_ref(shard.segment(key.hash)).addr();
                if self.group.1 != segment || self.group.0.len() == MAX_GROUP {
                    self.put_group();
                }
                self.group.1 = segment;
                self.group.0.push(key);
            }
        }
    }

    fn finish(mut self) -> Option<DroppedKeys> {
        self.put_group();
        self.end_segment();
        self.dropped
    }

    /// Frees the memory that the entries of a complete segment do not need.
    fn end_segment(&mut self) {
        if let Some(SavedSegment { hash, .. }) = self.segment {
            let mut locked = self.store.shard(hash).lock(hash);
            locked.data_mut().shrink(&self.store.budget);
        }
    }

    /// Inserts the keys of one segment, those that are limited for longest first, as far as there is space.
    fn put_group(&mut self) {
        let Layout::Reduced { lowest, mut left } = self.layout else { return };
        let mut keys = std::mem::take(&mut self.group.0);
        keys.sort_by_key(|key| Reverse(key.lifetime));
        let mut failed = 0;
        for key in keys.drain(..) {
            let before = self.store.usage().bytes;
            let fits = self.store.packed(&key.entry, &key.policy, self.now).is_some()
                || match class(key.lifetime).cmp(&lowest) {
                    Ordering::Less => false,
                    Ordering::Equal => size(&key.entry) <= left,
                    Ordering::Greater => true,
                } && self.store.budget.fits(size(&key.entry));
            if !fits || failed == MAX_REJECTED_IN_ROW {
                self.drop_key(&key);
                continue;
            }
            let is_lowest = class(key.lifetime) == lowest;
            failed = if self.put_or_drop(key) { 0 } else { failed + 1 };
            if is_lowest {
                left = left.saturating_sub(self.store.usage().bytes.saturating_sub(before));
            }
        }
        self.layout = Layout::Reduced { lowest, left };
        self.group.0 = keys;
    }

    fn put_or_drop(&mut self, mut key: RestoredKey) -> bool {
        let put = self.put(&mut key);
        if !put {
            self.drop_key(&key);
        }
        put
    }

    /// Inserts a key. False if its segment has no space and the table must not grow.
    fn put(&self, key: &mut RestoredKey) -> bool {
        let (store, now, hash) = (self.store, self.now, key.hash);
        let shard = store.shard(hash);
        let mut locked = shard.lock(hash);
        if let Some((index, _)) = locked.find(hash) {
            // A file of version 1 has a key twice if it moved while the file was written.
            let slot = locked.claim(index);
            let there = store.take_entry(&mut locked, slot);
            let longer = there.filter(|there| as_micros(there.lifetime(now)) > key.lifetime);
            let entry = longer.unwrap_or_else(|| key.entry.clone());
            let slot = store.slot_of(&mut locked, (hash, None), entry, &key.policy, now);
            locked.put(index, slot);
            return true;
        }
        for _ in 0..MAX_ATTEMPTS {
            let entry = key.entry.clone();
            let slot = store.slot_of(&mut locked, (hash, None), entry, &key.policy, now);
            if store.insert(&mut locked, hash, slot, now) {
                return true;
            }
            if locked.insert_by_moves(hash, slot) {
                store.budget.count_keys(0, 1);
                return true;
            }
            store.take_entry(&mut locked, slot);
            if matches!(self.layout, Layout::Reduced { .. })
                || !store.make_space(shard, &mut locked, hash, now)
            {
                return false;
            }
            drop(locked);
            locked = shard.lock(hash);
        }
        false
    }

    fn drop_key(&mut self, key: &RestoredKey) {
        let until = self.now.as_micros().saturating_add(key.lifetime);
        self.dropped().add(key.hash, Timestamp::saturating_from_micros(until));
    }

    fn dropped(&mut self) -> &mut DroppedKeys {
        let store = self.store;
        self.dropped.get_or_insert_with(|| {
            let dropped = DroppedKeys::new(store.usage().max_bytes);
            store.budget.resize(0, dropped.size());
            dropped
        })
    }
}
