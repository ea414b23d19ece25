//! A table made from a file.
//!
//! The file is read twice: once to check all of it and to survey what it takes, then to put it in. Memory for
//! the table is laid out by that survey:
//!
//! - where there is room for the table to grow by itself, it does;
//! - where it was as full as it may be, its segments become what they were when it was saved: the same hashes
//!   and the same seed, so every key has a place, as it had one;
//! - where there is less memory, as many segments as fit are divided evenly, and each keeps the keys that are
//!   limited for longest. Of entries beside the table those are kept that are limited for longest in all. What is
//!   dropped is noted in [`DroppedKeys`].
//!
//! Only policies of keys that were in slots are given numbers: in another order of the keys other policies would get
//! them, and more keys would be beside the table than were there, where they take more memory.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap},
    io::Read,
};

use sluicegate_core::{Entry, Policy, Timestamp};

use crate::{
    MemoryStore, Rule, SnapshotError,
    dropped::DroppedKeys,
    large::{Large, size},
    segment::{BYTES, SLOTS},
    shard::SHARD_BITS,
    snapshot::{Record, Records, SavedKey, SavedSegment},
    store::QUARTERS,
    survey::{Layout, Survey, class},
};

/// Keys of one segment that are held at a time.
const MAX_GROUP: usize = 1 << 14;
/// Keys that a segment rejects in a row before the rest of its keys are dropped.
const ENOUGH: usize = 8;
/// Policies that are known at a time.
const MAX_POLICIES: usize = 4096;

/// Interns the policies of entries: equal ones become one object, or two where only some keys were in slots.
#[derive(Default)]
pub(crate) struct Policies {
    last: Option<(bool, Rule)>,
    /// By whether their keys were in slots, and by policy.
    rules: HashMap<(bool, String), Rule>,
}

/// A key on its way to the table.
pub(crate) struct Key {
    hash: u64,
    pub(crate) entry: Entry,
    /// In microseconds.
    pub(crate) lifetime: u64,
    pub(crate) rule: Rule,
}

impl Policies {
    /// Makes space for the policies of a segment, so that within it equal ones are one object: that is counted.
    pub(crate) fn begin_segment(&mut self) {
        if self.rules.len() + SLOTS > MAX_POLICIES {
            *self = Self::default();
        }
    }

    fn rule(
        &mut self,
        store: &MemoryStore,
        policy: &Policy,
        in_slot: bool,
        now: Timestamp,
    ) -> Rule {
        if let Some((last, rule)) = &self.last
            && *last == in_slot
            && rule.policy() == policy
        {
            return rule.clone();
        }
        if self.rules.len() == MAX_POLICIES {
            self.rules.clear();
        }
        let rule = self.rules.entry((in_slot, policy.to_string())).or_insert_with(|| {
            if in_slot { store.rule(policy, now) } else { store.rules.known(policy) }
        });
        self.last = Some((in_slot, rule.clone()));
        rule.clone()
    }

    /// The key of a record, unless it has recovered.
    pub(crate) fn key(
        &mut self,
        store: &MemoryStore,
        SavedKey { hash, entry, in_slot }: SavedKey,
        now: Timestamp,
    ) -> Option<Key> {
        let lifetime = micros(&entry, now);
        if lifetime == 0 {
            return None;
        }
        let rule = self.rule(store, entry.policy(), in_slot, now);
        Some(Key { hash, entry: entry.under(rule.policy()), lifetime, rule })
    }
}

impl MemoryStore {
    /// Puts in what a file says that was surveyed.
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

    /// Divides the segments of an empty table, the one with most of the `keys` expected first, until there are
    /// `segments` of them or none is expected to be more than half full.
    fn divide(&self, segments: usize, keys: usize) {
        // Keys are shared out by the first bits of their hashes; numbers are 2^32 times as large, to be halved.
        let shares = |shard: usize| {
            let first = shard - shard % QUARTERS;
            self.cells.iter().filter(|&&cell| usize::from(cell) == first).count()
        };
        let parts = self.cells.len() * QUARTERS;
        let expected = |shard| ((keys * shares(shard)) as u64) << 32;
        let first = (0..self.shards.len()).map(|shard| (expected(shard), shard, 0_u64, 0_u32));
        let mut fullest: BinaryHeap<_> = first.collect();
        for _ in self.shards.len()..segments {
            let Some((expected, shard, start, depth)) = fullest.pop() else { return };
            if expected <= ((SLOTS / 2 * parts) as u64) << 32 {
                return;
            }
            let hash = self.first_hash(shard) | start >> SHARD_BITS;
            let mut locked = self.shard(hash).lock(hash);
            if !self.shard(hash).split(hash, &mut locked, |_, _| Large::default()) {
                return;
            }
            self.budget.resize(0, BYTES);
            let half = 1 << (63 - depth);
            fullest.push((expected / 2, shard, start, depth + 1));
            fullest.push((expected / 2, shard, start | half, depth + 1));
        }
    }

    /// Makes the segment that a saved one was, where nothing is stored yet.
    fn lay_out(&self, SavedSegment { hash, depth, seed }: SavedSegment) {
        let shard = self.shard(hash);
        let mut locked = shard.lock(hash);
        while locked.kept().depth < depth {
            if !shard.split(hash, &mut locked, |kept, moving| kept.split_off(moving, &self.budget))
            {
                return;
            }
            self.budget.resize(0, BYTES);
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
    policies: Policies,
    /// The segment of the file that the last key was in.
    segment: Option<SavedSegment>,
    /// Keys that are to be put in together, and the segment of the table that is theirs.
    group: (Vec<Key>, usize),
    dropped: Option<DroppedKeys>,
}

impl<'a> Restore<'a> {
    fn new(store: &'a MemoryStore, survey: &Survey, now: Timestamp) -> Self {
        let usage = store.usage();
        let layout = survey.layout(usage.bytes, store.shards.len(), usage.max_bytes);
        let mut restore = Self {
            store,
            now,
            layout: layout.0,
            policies: Policies::default(),
            segment: None,
            group: (Vec::new(), 0),
            dropped: None,
        };
        if let Layout::Reduced { .. } = restore.layout {
            let taken = restore.dropped().size();
            store.divide(layout.1.saturating_sub(taken.div_ceil(BYTES)), survey.keys);
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
                    self.store.lay_out(segment);
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

    /// Gives back what the entries of a segment that is complete do not need.
    fn end_segment(&mut self) {
        if let Some(SavedSegment { hash, .. }) = self.segment {
            let mut locked = self.store.shard(hash).lock(hash);
            locked.kept_mut().kept.shrink(&self.store.budget);
        }
    }

    /// Puts in keys of one segment: those that are limited for longest first, as many as there is room for.
    fn put_group(&mut self) {
        let Layout::Reduced { lowest, mut left } = self.layout else { return };
        let mut keys = std::mem::take(&mut self.group.0);
        keys.sort_by_key(|key| Reverse(key.lifetime));
        let mut failed = 0;
        for key in keys.drain(..) {
            let before = self.store.usage().bytes;
            let fits = self.store.packed(&key.entry, &key.rule, self.now).is_some()
                || match class(key.lifetime).cmp(&lowest) {
                    Ordering::Less => false,
                    Ordering::Equal => size(&key.entry) <= left,
                    Ordering::Greater => true,
                } && self.store.budget.has_room(size(&key.entry));
            if !fits || failed == ENOUGH {
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

    fn put_or_drop(&mut self, mut key: Key) -> bool {
        let put = self.put(&mut key);
        if !put {
            self.drop_key(&key);
        }
        put
    }

    /// Puts in a key. False where its segment has no room, and the table must not grow.
    fn put(&self, key: &mut Key) -> bool {
        let (store, now, hash) = (self.store, self.now, key.hash);
        let shard = store.shard(hash);
        let mut locked = shard.lock(hash);
        if let Some((place, _)) = locked.find(hash) {
            // A file of version 1 has keys twice that were moved while it was written.
            let slot = locked.claim(place);
            let there = store.take_entry(&mut locked, slot);
            let longer = there.filter(|there| micros(there, now) > key.lifetime);
            let entry = longer.unwrap_or_else(|| key.entry.clone());
            let slot = store.slot_of(&mut locked, hash, entry, &key.rule, now);
            locked.put(place, slot);
            return true;
        }
        loop {
            let slot = store.slot_of(&mut locked, hash, key.entry.clone(), &key.rule, now);
            if store.insert(&mut locked, hash, slot, now) {
                return true;
            }
            if locked.insert_by_moves(hash, slot) {
                store.budget.count_keys(0, 1);
                return true;
            }
            store.take_entry(&mut locked, slot);
            if matches!(self.layout, Layout::Reduced { .. })
                || !store.make_room(shard, &mut locked, hash, now)
            {
                return false;
            }
            drop(locked);
            locked = shard.lock(hash);
        }
    }

    fn drop_key(&mut self, key: &Key) {
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

/// How long an entry must be kept, in microseconds.
fn micros(entry: &Entry, now: Timestamp) -> u64 {
    u64::try_from(entry.lifetime(now).as_micros()).unwrap_or(u64::MAX)
}
