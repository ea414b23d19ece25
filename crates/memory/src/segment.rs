//! A segment: 1024 slots. Deciding on an existing key takes no lock.
//!
//! Each key has two buckets of four slots, one cache line each. If both are full, a slot moves to its other bucket
//! (cuckoo hashing, Pagh and Rodler 2004; the other bucket follows from the fingerprint, as in Fan et al. 2014). A
//! look-up therefore reads at most two lines.
//!
//! The second word of a slot is its state; 0 means empty, or claimed by a writer.
//! - Updating an existing key is a compare-and-swap on its state word and needs no lock. It has three steps: mark the
//!   state by compare-and-swap, read the first word again, and write the new state; or the old one, if the slot now
//!   belongs to another key.
//! - Inserting, moving and removing a key holds the lock of the segment, and first claims the slot by a
//!   compare-and-swap of its state to 0, never of a marked state. Therefore no update is lost, and a slot changes its
//!   key only while its state is 0.
//! - A first word is written before its state, and read after it.
//!
//! No decision writes to the slot of another key, although two keys may have equal states (all windows on the clock
//! with one unit used have the same second word, except for the fingerprint), and a slot may pass from one of
//! them to the other between the read of its state and the compare-and-swap. That succeeds only if the second word
//! is this state, which is not 0 and not marked. From then on the slot is marked and cannot change its key: the
//! first word that is read now stays valid while the mark is set. If it is the expected one, the marked state is
//! that of the key, whatever the slot held in between. Otherwise the state is restored, and no reader has used
//! the marked one. `model` checks every interleaving; ADR 24 has the cost.

use std::collections::VecDeque;

use sluicegate_core::reached;

use crate::{
    slot::{OVERFLOW, Slot, fingerprint, narrow},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, lock, pause},
};

/// Bits of a hash that select a bucket: those after the lowest two.
const BUCKET_BITS: u32 = if cfg!(loom) { 1 } else { 8 };
/// Buckets of a segment.
const BUCKETS: usize = 1 << BUCKET_BITS;
/// Upper bound on the distance of the two buckets of a key: both lie on one page, whose address is looked up once.
const NEAR: usize = 63;
/// Slots of a segment.
pub(crate) const SLOTS: usize = BUCKETS * WAYS;
/// Seeds are below this.
pub(crate) const SEEDS: usize = 1 << 12;

/// The slots of a segment. Zeroed memory is unused slots.
pub(crate) type Buckets = [Bucket; BUCKETS];

/// The slots of a segment with the seed that assigns keys to buckets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketView<'a> {
    buckets: &'a Buckets,
    /// Part of the choice of buckets; changed when keys crowd in few of them.
    seed: u64,
}

/// Index of a slot in its segment.
pub(crate) type SlotIndex = usize;

/// How a fingerprint selects its buckets: `first` is combined with bits of the hash, and `apart` is the distance of
/// the other bucket.
#[derive(Clone, Copy)]
struct Probe {
    first: usize,
    apart: usize,
}

fn low(bits: u64) -> usize {
    narrow(bits) % BUCKETS
}

impl Probe {
    #[inline(always)]
    fn new(fingerprint: u64, seed: u64) -> Self {
        let mixed = (fingerprint ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { first: low(mixed >> 54), apart: (low(mixed >> 44) & NEAR) | 1 }
    }
}

// A few instructions each, in every decision.
impl<'a> BucketView<'a> {
    #[inline(always)]
    pub(crate) const fn new(buckets: &'a Buckets, seed: u64) -> Self {
        Self { buckets, seed }
    }

    #[inline(always)]
    fn probe(self, fingerprint: u64) -> Probe {
        Probe::new(fingerprint, self.seed)
    }

    /// The first and the second bucket of a hash.
    #[inline(always)]
    fn buckets_of(self, hash: u64) -> [usize; 2] {
        let probe = self.probe(fingerprint(hash));
        let first = low(hash >> 2) ^ probe.first;
        [first, first ^ probe.apart]
    }

    fn cell(self, index: SlotIndex) -> &'a Cell {
        &self.buckets[index / WAYS].0[index % WAYS]
    }

    /// The two buckets of a hash.
    #[inline(always)]
    pub(crate) fn key_buckets(self, hash: u64) -> KeyBuckets<'a> {
        let [first, second] = self.buckets_of(hash);
        KeyBuckets { first: &self.buckets[first], second: &self.buckets[second] }
    }

    fn find(self, hash: u64) -> Option<(SlotIndex, SlotRef<'a>)> {
        let fingerprint = fingerprint(hash);
        self.buckets_of(hash).into_iter().zip([false, true]).find_map(|(bucket, second)| {
            let indexes = bucket * WAYS..(bucket + 1) * WAYS;
            indexes.into_iter().find_map(|index| {
                let cell = self.cell(index);
                let slot = cell.read().unmarked();
                slot.is_of(fingerprint, second).then_some((index, SlotRef { cell, slot }))
            })
        })
    }
}

/// The two buckets of a key. They may be out of date while its segment is split or reseeded; then the key is not found.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyBuckets<'a> {
    first: &'a Bucket,
    second: &'a Bucket,
}

/// The hash of a key, with its buckets.
pub(crate) type HashedKey<'a> = (u64, KeyBuckets<'a>);

impl<'a> KeyBuckets<'a> {
    /// Finds the slot of the key with this hash under a policy, without a lock. `None` also if the slot is claimed or
    /// written under another policy: then use [`find`](LockedSegment::find).
    #[inline(always)]
    pub(crate) fn peek<const GUESS: bool>(self, hash: u64, policy: u64) -> Option<SlotRef<'a>> {
        let wanted = Slot::wanted(fingerprint(hash), policy);
        let found = self.first.peek::<GUESS>(wanted);
        found.or_else(|| self.second.peek::<false>(wanted.placed(true)))
    }

    /// Prefetches both buckets.
    #[inline(always)]
    pub(crate) fn prefetch(self) {
        prefetch(self.first);
        prefetch(self.second);
    }
}

/// Prefetches a cache line. A read would delay all instructions after it.
#[inline(always)]
#[cfg_attr(
    target_arch = "x86_64",
    expect(unsafe_code, reason = "std has no other way to prefetch")
)]
fn prefetch(bucket: &Bucket) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the line is that of a reference, and a prefetch changes nothing.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(bucket).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    std::hint::black_box(bucket.0[0].read());
}

/// The slots of a range of hashes, and data of type `T` beside them.
#[derive(Debug)]
pub(crate) struct Segment<T> {
    buckets: *const Buckets,
    guarded: Mutex<SegmentData<T>>,
}

// SAFETY: the pointer is only read through, and its target is `Sync`.
#[expect(unsafe_code, reason = "a raw pointer is not `Send` by itself")]
unsafe impl<T: Send> Send for Segment<T> {}
// SAFETY: as above; the data is behind a mutex.
#[expect(unsafe_code, reason = "a raw pointer is not `Sync` by itself")]
unsafe impl<T: Send> Sync for Segment<T> {}

/// The data that the lock protects.
#[derive(Debug)]
struct SegmentData<T> {
    seed: usize,
    /// Number of bits of the hash, after those of the shard, that all keys here share.
    depth: u32,
    /// The lowest two bits of every hash here.
    quarter: u64,
    /// The slot where the next sweep for recovered states begins.
    hand: usize,
    data: T,
}

/// Bytes of a segment, without the data beside its slots.
pub(crate) const SEGMENT_BYTES: usize = SLOTS * 16 + 256;

impl<T> Segment<T> {
    /// A segment of `buckets`, which must outlive it.
    pub(crate) fn new(
        buckets: *const Buckets,
        seed: usize,
        quarter: u64,
        depth: u32,
        data: T,
    ) -> Self {
        let guarded = SegmentData { seed: seed % SEEDS, depth, quarter, hand: 0, data };
        Self { buckets, guarded: Mutex::new(guarded) }
    }

    pub(crate) fn lock(&self) -> LockedSegment<'_, T> {
        LockedSegment { buckets: self.buckets(), guarded: lock(&self.guarded) }
    }

    #[expect(unsafe_code, reason = "segments of a shard lie in blocks of memory")]
    pub(crate) const fn buckets(&self) -> &Buckets {
        // SAFETY: the caller of `new` guarantees that the buckets outlive the segment.
        unsafe { &*self.buckets }
    }
}

/// A locked segment: no other thread inserts, moves or removes keys.
#[derive(Debug)]
pub(crate) struct LockedSegment<'a, T> {
    buckets: &'a Buckets,
    guarded: MutexGuard<'a, SegmentData<T>>,
}

impl<'a, T> LockedSegment<'a, T> {
    /// The data beside the slots.
    pub(crate) fn data(&self) -> &T {
        &self.guarded.data
    }

    /// The data beside the slots.
    pub(crate) fn data_mut(&mut self) -> &mut T {
        &mut self.guarded.data
    }

    fn bucket_view(&self) -> BucketView<'a> {
        BucketView::new(self.buckets, self.guarded.seed as u64)
    }

    pub(crate) fn find(&self, hash: u64) -> Option<(SlotIndex, SlotRef<'a>)> {
        self.bucket_view().find(hash)
    }

    /// The contents of a slot, without the mark.
    fn get(&self, index: SlotIndex) -> Slot {
        self.bucket_view().cell(index).read().unmarked()
    }

    /// Claims a slot, until [`put`](Self::put) or [`clear`](Self::clear): no decision reads or changes it.
    pub(crate) fn claim(&mut self, index: SlotIndex) -> Slot {
        let cell = self.bucket_view().cell(index);
        loop {
            let slot = cell.settled();
            if cell.take(slot) {
                return slot;
            }
        }
    }

    /// Writes a claimed slot.
    pub(crate) fn put(&mut self, index: SlotIndex, slot: Slot) {
        let second = self.get(index).in_second();
        debug_assert!(self.get(index).second == 0, "a slot is written that is not claimed");
        debug_assert!(self.get(index).fingerprint() >> 6 == slot.fingerprint() >> 6, "another key");
        self.bucket_view().cell(index).write(slot.placed(second));
    }

    /// Makes a slot unused.
    pub(crate) fn clear(&mut self, index: SlotIndex) {
        self.claim(index);
        self.bucket_view().cell(index).write(Slot::default());
    }

    /// Removes the slot at `index` if `which` selects it. `which` is called again if a decision changes the state
    /// during the removal, and must have no side effects for a state in the slot.
    fn take(
        &mut self,
        index: SlotIndex,
        which: &mut impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<Slot> {
        let cell = self.bucket_view().cell(index);
        loop {
            let slot = cell.settled();
            // A claimed slot has no state.
            if !slot.is_used() || slot.second == 0 || !which(&mut self.guarded.data, slot) {
                return None;
            }
            if cell.take(slot) {
                cell.write(Slot::default());
                return Some(slot);
            }
        }
    }

    /// Inserts a new key, into an unused slot or one that `reclaims` selects. False if there is none.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        slot: Slot,
        reclaims: impl FnMut(&mut T, Slot) -> bool,
    ) -> bool {
        self.vacate(hash, reclaims).map(|vacant| self.fill(vacant, slot)).is_some()
    }

    /// Writes a slot that [`vacate`](Self::vacate) has found.
    pub(crate) fn fill(&mut self, (index, second): (SlotIndex, bool), slot: Slot) {
        let before = self.get(index);
        debug_assert!(!before.is_used() || before.second == 0, "a slot in use is overwritten");
        self.bucket_view().cell(index).write(slot.placed(second));
    }

    /// Claims a slot that [`vacate`](Self::vacate) has found, for [`put`](Self::put) or [`clear`](Self::clear): no reader
    /// sees the key yet.
    pub(crate) fn reserve(&mut self, hash: u64, vacant: (SlotIndex, bool)) -> SlotIndex {
        self.fill(vacant, Slot { second: 0, ..Slot::wanted(fingerprint(hash), OVERFLOW) });
        vacant.0
    }

    /// A slot for a new key, unused or one that `reclaims` selects, and whether it is in the second bucket of the key.
    pub(crate) fn vacate(
        &mut self,
        hash: u64,
        mut reclaims: impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<(SlotIndex, bool)> {
        let [first, second] = self.bucket_view().buckets_of(hash);
        for bucket in [first, second] {
            if let Some(index) = self.find_space(bucket, &mut reclaims) {
                return Some((index, bucket == second));
            }
        }
        for bucket in [first, second] {
            let mut indexes = bucket * WAYS..(bucket + 1) * WAYS;
            if let Some(index) = indexes.find(|&index| self.relocate(index, &mut reclaims)) {
                return Some((index, bucket == second));
            }
        }
        None
    }

    /// An unused slot of `bucket`, or one that is reclaimed.
    fn find_space(
        &mut self,
        bucket: usize,
        reclaims: &mut impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<SlotIndex> {
        let mut indexes = bucket * WAYS..(bucket + 1) * WAYS;
        let unused = indexes.clone().find(|&index| !self.get(index).is_used());
        unused.or_else(|| indexes.find(|&index| self.take(index, reclaims).is_some()))
    }

    /// Moves a slot to its other bucket, if that has space. A claimed slot stays.
    fn relocate(
        &mut self,
        index: SlotIndex,
        reclaims: &mut impl FnMut(&mut T, Slot) -> bool,
    ) -> bool {
        if self.get(index).second == 0 {
            return false;
        }
        let other = (index / WAYS) ^ self.bucket_view().probe(self.get(index).fingerprint()).apart;
        let Some(target) = self.find_space(other, reclaims) else { return false };
        let slot = self.claim(index);
        let moved = slot.placed(!slot.in_second());
        debug_assert!(!self.get(target).is_used(), "a slot in use is overwritten");
        debug_assert!(self.hash_at(index, slot) == self.hash_at(target, moved), "a key changes");
        reached!(KeyMovesToOtherBucket);
        self.bucket_view().cell(target).write(moved);
        true
    }

    /// Inserts a new key by moving any number of slots to their other buckets. False only if no arrangement of the
    /// slots has space for it: the search finds one if there is one (an augmenting path, Berge 1957).
    pub(crate) fn insert_by_moves(&mut self, hash: u64, slot: Slot) -> bool {
        let [first, second] = self.bucket_view().buckets_of(hash);
        // For each bucket that was reached, breadth first: the slot whose other bucket it is.
        let mut reached: [Option<Option<SlotIndex>>; BUCKETS] = [None; BUCKETS];
        let mut queue = VecDeque::from([first, second]);
        queue.iter().for_each(|&bucket| reached[bucket] = Some(None));
        while let Some(bucket) = queue.pop_front() {
            let indexes = bucket * WAYS..(bucket + 1) * WAYS;
            if let Some(mut free) = indexes.clone().find(|&index| !self.get(index).is_used()) {
                while let Some(Some(index)) = reached[free / WAYS] {
                    let slot = self.claim(index);
                    let moved = slot.placed(!slot.in_second());
                    let (from, to) = (self.hash_at(index, slot), self.hash_at(free, moved));
                    debug_assert!(from == to, "a key changes");
                    reached!(KeyIsInsertedByMoves);
                    self.bucket_view().cell(free).write(moved);
                    self.bucket_view().cell(index).write(Slot::default());
                    free = index;
                }
                self.bucket_view().cell(free).write(slot.placed(free / WAYS != first));
                return true;
            }
            for index in indexes {
                let other = bucket ^ self.bucket_view().probe(self.get(index).fingerprint()).apart;
                if reached[other].is_none() {
                    reached[other] = Some(Some(index));
                    queue.push_back(other);
                }
            }
        }
        false
    }

    /// Checks the slots of the buckets of a hash: each is of a key that belongs there, and no key has two.
    #[cfg(debug_assertions)]
    pub(crate) fn check_buckets(&self, hash: u64) {
        let mut seen: [u64; 2 * WAYS] = [0; 2 * WAYS];
        let mut count = 0;
        for bucket in self.bucket_view().buckets_of(hash) {
            for index in bucket * WAYS..(bucket + 1) * WAYS {
                let slot = self.get(index);
                // A claimed slot has lost the low bits of its fingerprint.
                if !slot.is_used() || slot.second == 0 {
                    continue;
                }
                let own = self.hash_at(index, slot);
                assert_eq!(
                    self.bucket_view().buckets_of(own)[usize::from(slot.in_second())],
                    bucket
                );
                assert!(!seen[..count].contains(&own), "a key has two slots");
                (seen[count], count) = (own, count + 1);
            }
        }
    }

    /// Every slot in use, with its hash.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, Slot)> {
        (0..SLOTS).filter_map(|index| {
            let slot = self.get(index);
            slot.is_used().then(|| (self.hash_at(index, slot), slot))
        })
    }

    /// The hash of the key of a slot.
    fn hash_at(&self, index: SlotIndex, slot: Slot) -> u64 {
        let probe = self.bucket_view().probe(slot.fingerprint());
        let apart = if slot.in_second() { probe.apart } else { 0 };
        let bucket = (index / WAYS) ^ apart ^ probe.first;
        slot.fingerprint() << 10 | (bucket as u64) << 2 | self.guarded.quarter
    }

    /// Removes every slot that `which` selects; see [`take`](Self::take).
    pub(crate) fn drain_where(
        &mut self,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> Vec<(SlotIndex, Slot)> {
        (0..SLOTS)
            .filter_map(|index| self.take(index, &mut which).map(|slot| (index, slot)))
            .collect()
    }

    /// Removes those of the next `count` slots that `which` selects, and returns their number.
    pub(crate) fn drain_some(
        &mut self,
        count: usize,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> usize {
        let start = self.guarded.hand;
        self.guarded.hand = (start + count) % SLOTS;
        (start..start + count)
            .filter(|index| self.take(index % SLOTS, &mut which).is_some())
            .count()
    }

    /// Writes slots of another segment with the same seed to the same indexes.
    pub(crate) fn adopt(&mut self, slots: impl Iterator<Item = (SlotIndex, Slot)>) {
        slots.for_each(|(index, slot)| {
            debug_assert!(!self.get(index).is_used(), "a slot in use is overwritten");
            self.bucket_view().cell(index).write(slot);
        });
    }

    pub(crate) const fn buckets(&self) -> &'a Buckets {
        self.buckets
    }

    /// The seed of the choice of buckets.
    pub(crate) fn seed(&self) -> usize {
        self.guarded.seed
    }

    /// Number of bits of the hash, after those of the shard, that all keys here share.
    pub(crate) fn depth(&self) -> u32 {
        self.guarded.depth
    }

    pub(crate) fn set_depth(&mut self, depth: u32) {
        self.guarded.depth = depth;
    }

    /// The lowest two bits of every hash here.
    pub(crate) fn quarter(&self) -> u64 {
        self.guarded.quarter
    }

    /// Assigns all slots to buckets by a new `seed`. False if a slot would find no space; nothing changes then.
    pub(crate) fn reseed(&mut self, seed: usize) -> bool {
        let before = self.seed();
        let indexes = self.drain_where(|_, _| true);
        let hashes: Vec<_> =
            indexes.iter().map(|&(index, slot)| (self.hash_at(index, slot), slot)).collect();
        self.guarded.seed = seed % SEEDS;
        if hashes.iter().all(|(hash, slot)| self.insert(*hash, *slot, |_, _| false)) {
            debug_assert!(
                hashes.iter().all(|(hash, _)| self.find(*hash).is_some()),
                "a key is lost by a new seed"
            );
            return true;
        }
        self.drain_where(|_, _| true);
        self.guarded.seed = before;
        self.adopt(indexes.into_iter());
        false
    }
}

// Slots in memory: how they are read, and how a state is replaced.

/// Slots of a bucket.
const WAYS: usize = 4;

/// The slots of one cache line.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Bucket([Cell; WAYS]);

/// The two words of a slot.
#[derive(Debug, Default)]
struct Cell {
    first: AtomicU64,
    second: AtomicU64,
}

impl Bucket {
    /// The slot with this first word, if the second word has its part of the fingerprint.
    ///
    /// `GUESS`: check the first slot first, which is likely that of a key with many requests.
    #[inline(always)]
    fn peek<const GUESS: bool>(&self, wanted: Slot) -> Option<SlotRef<'_>> {
        if GUESS && let Some(seen) = self.0[0].peek(wanted) {
            return Some(seen);
        }
        // Without branches: they are unpredictable, and a misprediction would show only once the line has come from
        // memory, before which the next request could not begin.
        let found = (0..WAYS).fold(WAYS, |found, way| {
            let is_it = self.0[way].first.load(Ordering::Relaxed) == wanted.first;
            std::hint::select_unpredictable(is_it, way, found)
        });
        self.0.get(found)?.peek(wanted)
    }
}

impl Bucket {
    /// Its slots, as they are now.
    #[cfg(debug_assertions)]
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.0.iter().map(Cell::read)
    }
}

impl Cell {
    #[inline(always)]
    fn peek(&self, wanted: Slot) -> Option<SlotRef<'_>> {
        let slot = self.read();
        slot.matches(wanted).then_some(SlotRef { cell: self, slot })
    }

    #[inline(always)]
    fn read(&self) -> Slot {
        // In this order, so that the first word is at least as new as the state.
        let second = self.second.load(Ordering::Acquire);
        Slot { first: self.first.load(Ordering::Acquire), second }
    }

    fn write(&self, slot: Slot) {
        // A reader that sees the first word also sees that the earlier state was removed.
        self.first.store(slot.first, Ordering::Release);
        self.second.store(slot.second, Ordering::Release);
    }

    /// Claims the slot, unless its state has changed from `seen`.
    fn take(&self, seen: Slot) -> bool {
        self.swap(seen.second, 0)
    }

    /// Restores the state of another key.
    #[cold]
    #[inline(never)]
    fn put_back(&self, second: u64) {
        self.second.store(second, Ordering::Release);
    }

    /// The contents once no decision is about to replace the state.
    fn settled(&self) -> Slot {
        let slot = self.read();
        if slot.is_marked() { self.wait() } else { slot }
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Slot {
        let mut turns = 0..;
        loop {
            pause(turns.next().unwrap_or(u32::MAX));
            let slot = self.read();
            if !slot.is_marked() {
                return slot;
            }
        }
    }

    #[inline(always)]
    fn swap(&self, from: u64, to: u64) -> bool {
        self.second.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

/// A slot as it was read without a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SlotRef<'a> {
    cell: &'a Cell,
    slot: Slot,
}

impl SlotRef<'_> {
    #[inline(always)]
    pub(crate) const fn slot(&self) -> Slot {
        self.slot
    }

    /// Whether both words were valid at one moment, and no decision is about to replace the state.
    #[inline(always)]
    pub(crate) fn is_whole(&self) -> bool {
        self.cell.second.load(Ordering::Relaxed) == self.slot.second && !self.slot.has_mark()
    }

    /// Replaces the state, unless it or the key of the slot has changed. The state that was read must not be marked:
    /// a marked one admits nothing.
    #[inline(always)]
    pub(crate) fn replace(&self, slot: Slot) -> bool {
        debug_assert!(!self.slot.is_marked());
        if !self.cell.swap(self.slot.second, self.slot.marked()) {
            return false;
        }
        // The slot cannot change its key while its state is marked.
        if self.cell.first.load(Ordering::Relaxed) == self.slot.first {
            self.cell.second.store(slot.second, Ordering::Release);
            return true;
        }
        self.cell.put_back(self.slot.second);
        false
    }

    /// Waits until no decision is about to replace the state. Whether one was.
    #[inline(always)]
    pub(crate) fn wait_unmarked(&self) -> bool {
        if self.slot.has_mark() {
            self.cell.wait();
        }
        self.slot.has_mark()
    }
}

/// Every interleaving of threads, up to the bound of `loom`:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p sluicegate-memory --lib model`.
#[cfg(all(test, loom))]
mod model;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::Tat;

    /// Sweeps of a few slots at a time come to every slot.
    #[test]
    fn drain_some_goes_on_where_it_ended() {
        let buckets: Box<Buckets> = Box::new(std::array::from_fn(|_| Bucket::default()));
        let segment = Segment::new(&raw const *buckets, 7, 0, 0, ());
        let mut locked = segment.lock();
        let state = Tat::of_window(7 << 32, 1, 30).unwrap();
        let mut added = 0;
        for number in 1..=SLOTS as u64 / 2 {
            let hash = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) & !3;
            added += usize::from(locked.insert(hash, Slot::simple(hash, 1, state), |(), _| false));
        }
        assert!(added > SLOTS / 4, "{added}");
        let removed: usize =
            (0..SLOTS.div_ceil(64)).map(|_| locked.drain_some(64, |(), _| true)).sum();
        assert_eq!(removed, added);
    }
}
