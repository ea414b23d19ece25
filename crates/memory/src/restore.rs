//! Making a table from a state file.
//!
//! The file is read twice: first to check it and to survey what its keys need, then to insert them. The survey
//! determines the layout of the table:
//!
//! - if the table has space to grow as usual, it does;
//! - if it was full, its segments are laid out as they were saved, with the same hashes and seeds, so that every key
//!   has a slot again;
//! - if neither fits into the bound of the store, nothing is loaded: no key is ever dropped.
//!
//! Only policies of keys that were in slots get numbers. Otherwise the order of the keys would decide, and more keys
//! would become overflow entries, which take more memory.

use std::{collections::HashMap, io::Read};

use sluicegate_core::{Entry, Policy, Timestamp, reached};

use crate::{
    MemoryStore, NumberedPolicy, SnapshotError,
    budget::Budget,
    overflow::OverflowTable,
    segment::{SEGMENT_BYTES, SLOTS},
    shard::{ENTRIES_PER_SEGMENT, SHARDS},
    snapshot::{Record, Records, SavedKey, SavedSegment},
};

/// Bytes of table per key if segments split when they are nearly full.
const BYTES_GROWING: usize = 2 * SEGMENT_BYTES / SLOTS + 5;
/// Bytes by which the last request before a table is full may exceed the bound: entries of one segment grow.
const MAX_EXCESS: usize = 32 << 10;
/// Upper bound on the attempts to make space for a key. Hashes that were chosen may have the same buckets under every seed.
const MAX_ATTEMPTS: usize = 64;
/// Upper bound on the policies that are interned at a time.
const MAX_POLICIES: usize = 4096;

/// The contents of a state file, in numbers.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Keys that have not recovered.
    keys: usize,
    segments: usize,
    /// Number of bits of the hash that select the smallest of them.
    depth: u32,
    /// Bytes of entries that do not fit in slots.
    overflow: usize,
}

/// A layout of the table.
#[derive(Clone, Copy)]
enum Layout {
    Growing,
    AsSaved,
}

impl Survey {
    /// Bytes of a table that grows as usual, of which `taken` are in use before its first key. Tables of overflow
    /// entries reserve slots while they grow.
    const fn growing(&self, taken: usize) -> usize {
        taken + self.keys * BYTES_GROWING + self.overflow + self.overflow / 8
    }

    /// Bytes of the table as it was saved; `None` if its segments are those of no table.
    fn as_saved(&self, taken: usize) -> Option<usize> {
        let entries = 1_usize.checked_shl(self.depth)?;
        let is_table =
            self.segments >= SHARDS && entries <= self.segments / SHARDS * ENTRIES_PER_SEGMENT;
        let rest = taken - SHARDS * SEGMENT_BYTES;
        is_table.then(|| rest + self.segments * SEGMENT_BYTES + self.overflow)
    }

    /// The layout in `store`, which is empty.
    fn layout(&self, store: &MemoryStore) -> Result<Layout, SnapshotError> {
        let usage = store.usage();
        let growing = self.growing(usage.bytes);
        if growing <= usage.max_bytes {
            reached!(TableIsRestoredGrowing if self.keys > 0);
            return Ok(Layout::Growing);
        }
        let as_saved = self.as_saved(usage.bytes);
        // A full table may take these beyond its bound.
        let excess = MAX_EXCESS.min(usage.max_bytes / 32) + store.policies.unbounded_bytes();
        if as_saved.is_some_and(|bytes| bytes <= usage.max_bytes + excess) {
            reached!(TableIsRestoredAsSaved);
            return Ok(Layout::AsSaved);
        }
        reached!(FileIsTooLargeForTable);
        let needed = as_saved.map_or(growing, |bytes| bytes.min(growing));
        Err(SnapshotError::TooLarge { needed, max_bytes: usage.max_bytes })
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
        let mut survey = Survey::default();
        let mut policies = RestoredPolicies::default();
        // Entries are inserted into a temporary table, one segment at a time.
        let mut overflow = OverflowTable::default();
        let mut budget = Budget::new(usize::MAX);
        while let Some(record) = records.next()? {
            match record {
                Record::Segment(segment) => {
                    overflow.shrink(&budget);
                    survey.overflow += budget.usage().bytes;
                    (overflow, budget) = (OverflowTable::default(), Budget::new(usize::MAX));
                    survey.segments += 1;
                    survey.depth = survey.depth.max(segment.depth);
                    policies.begin_segment();
                }
                Record::Key(saved) => {
                    let Some(key) = policies.key(self, saved, now) else { continue };
                    if self.packed(&key.entry, &key.policy, now).is_none() {
                        overflow.put(key.entry, &budget);
                    }
                    survey.keys += 1;
                }
            }
        }
        overflow.shrink(&budget);
        survey.overflow += budget.usage().bytes;
        Ok(survey)
    }

    /// Inserts the keys of a surveyed file.
    pub(crate) fn restore<R: Read>(
        &self,
        mut records: Records<R>,
        survey: &Survey,
        now: Timestamp,
    ) -> Result<(), SnapshotError> {
        let layout = survey.layout(self)?;
        let mut splits = survey.segments.saturating_sub(SHARDS);
        let mut policies = RestoredPolicies::default();
        let mut segment = None;
        while let Some(record) = records.next()? {
            match record {
                Record::Segment(next) => {
                    self.end_segment(segment.replace(next));
                    policies.begin_segment();
                    if let Layout::AsSaved = layout {
                        self.lay_out(next, &mut splits);
                    }
                }
                Record::Key(saved) => {
                    let Some(key) = policies.key(self, saved, now) else { continue };
                    if !self.put(&key, now)? {
                        let max_bytes = self.usage().max_bytes;
                        // More than the estimate, which was wrong.
                        let needed = survey.growing(self.usage().bytes).max(max_bytes / 4 * 5);
                        return Err(SnapshotError::TooLarge { needed, max_bytes });
                    }
                }
            }
        }
        self.end_segment(segment);
        debug_assert_eq!(self.usage().keys, survey.keys, "keys of the file are lost");
        Ok(())
    }

    /// Lays out a segment as it was saved, in an empty table, with `splits` at most: each adds a segment, and there are
    /// no more segments than in the file.
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

    /// Frees the memory that the entries of a complete segment do not need.
    fn end_segment(&self, segment: Option<SavedSegment>) {
        if let Some(SavedSegment { hash, .. }) = segment {
            self.shard(hash).lock(hash).data_mut().shrink(&self.budget);
        }
    }

    /// Inserts a key. False if its segment has no space and the table must not grow.
    fn put(
        &self,
        RestoredKey { hash, entry, policy }: &RestoredKey,
        now: Timestamp,
    ) -> Result<bool, SnapshotError> {
        let hash = *hash;
        let shard = self.shard(hash);
        let mut locked = shard.lock(hash);
        if locked.find(hash).is_some() {
            return Err(SnapshotError::Damaged("it has a key twice"));
        }
        for _ in 0..MAX_ATTEMPTS {
            let slot = self.slot_of(&mut locked, (hash, None), entry.clone(), policy, now);
            if self.insert(&mut locked, hash, slot, now) {
                return Ok(true);
            }
            if locked.insert_by_moves(hash, slot) {
                self.budget.count_keys(0, 1);
                return Ok(true);
            }
            self.take_entry(&mut locked, slot);
            if !self.make_space(shard, &mut locked, hash, now) {
                return Ok(false);
            }
            drop(locked);
            locked = shard.lock(hash);
        }
        Ok(false)
    }
}

/// Interns the policies of entries: equal ones become one object, or two where only some keys were in slots.
#[derive(Default)]
struct RestoredPolicies {
    last: Option<(bool, NumberedPolicy)>,
    /// By whether their keys were in slots, and by policy string.
    policies: HashMap<(bool, String), NumberedPolicy>,
}

/// A key of a state file that has not recovered.
struct RestoredKey {
    hash: u64,
    entry: Entry,
    policy: NumberedPolicy,
}

impl RestoredPolicies {
    /// Makes space for the policies of a segment, because equal ones must be one object within it: memory is counted by
    /// object.
    fn begin_segment(&mut self) {
        if self.policies.len() + SLOTS > MAX_POLICIES {
            *self = Self::default();
        }
    }

    fn prepare(
        &mut self,
        store: &MemoryStore,
        policy: &Policy,
        in_slot: bool,
        now: Timestamp,
    ) -> NumberedPolicy {
        if let Some((last, prepared)) = &self.last
            && *last == in_slot
            && prepared.policy() == policy
        {
            return prepared.clone();
        }
        if self.policies.len() == MAX_POLICIES {
            self.policies.clear();
        }
        let prepared = self.policies.entry((in_slot, policy.to_string())).or_insert_with(|| {
            if in_slot {
                store.prepare(policy, now)
            } else {
                store.policies.find_or_unnumbered(policy)
            }
        });
        self.last = Some((in_slot, prepared.clone()));
        prepared.clone()
    }

    /// The key of a record; `None` if it has recovered.
    fn key(
        &mut self,
        store: &MemoryStore,
        SavedKey { hash, entry, in_slot }: SavedKey,
        now: Timestamp,
    ) -> Option<RestoredKey> {
        if entry.lifetime(now).is_zero() {
            reached!(FileHasRecoveredKey);
            return None;
        }
        let policy = self.prepare(store, entry.policy(), in_slot, now);
        Some(RestoredKey { hash, entry: entry.under(policy.policy()), policy })
    }
}
