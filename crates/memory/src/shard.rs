//! Shards: segments behind a directory, which grows by splitting one segment at a time (extendible
//! hashing, Fagin et al. 1979). No decision waits for more than the split of its own segment.
//!
//! Segments live at a fixed address until the shard is dropped, and so do all earlier directories (each half as long
//! as the next). A reader may therefore use an old one; it notices when it has the lock, or by the state word.

use std::{
    fmt,
    iter::repeat_n,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicPtr, Ordering},
    },
};

use sluicegate_core::reached;

use crate::{
    page_arena::{PAGE, PageArena},
    segment::{BucketView, Buckets, LockedSegment, SEEDS, Segment},
    slot::{Slot, fingerprint, narrow},
    sync::{Mutex, lock},
};

/// Number of different sizes of shards.
const SIZES: usize = 16;
/// Number of shards.
pub(crate) const SHARDS: usize = SIZES * QUARTERS;
/// Upper bound on the depth of a directory: fingerprints keep enough bits to distinguish keys.
const MAX_DEPTH: u32 = 28;

/// Upper bound on the entries of a directory, by the number of its segments.
pub(crate) const ENTRIES_PER_SEGMENT: usize = 64;

/// All shards of a table.
#[derive(Debug)]
pub(crate) struct Shards<T> {
    /// The table in which all of `shards` publish.
    table: Arc<DirectoryTable>,
    shards: Box<[Shard<T>; SHARDS]>,
    /// The size of the shard for each value of the first eight bits of a hash.
    sizes: [u8; 1 << SHARD_BITS],
}

impl<T> Shards<T> {
    /// Distributes the values of the first eight bits of a hash to shards, each with 2^(1/16) times the share of the one
    /// before. Therefore they do not all grow at once, and the table is always about half to two thirds full.
    pub(crate) fn new(arena: &PageArena, seed: usize, mut data: impl FnMut() -> T) -> Self {
        // 256 * 2^(i/16) / sum of them, rounded so that they add up.
        const SHARES: [u8; SIZES] =
            [11, 12, 12, 13, 13, 14, 14, 15, 16, 17, 17, 18, 20, 20, 21, 23];
        let table = Arc::new(DirectoryTable::new());
        let mut sizes = [0; 1 << SHARD_BITS];
        let of_shares = (0..).zip(SHARES).flat_map(|(size, share)| repeat_n(size, share.into()));
        sizes.iter_mut().zip(of_shares).for_each(|(size, of_share)| *size = of_share);
        let shards = Box::new(std::array::from_fn(|shard| {
            let (size, quarter) = (shard / QUARTERS, shard % QUARTERS);
            let start: usize = SHARES[..size].iter().copied().map(usize::from).sum();
            let cells = start..start + usize::from(SHARES[size]);
            let entries = DirectoryTable::entries(&cells, quarter);
            Shard::new(&table, entries, arena.clone(), seed, quarter as u64, data())
        }));
        Self { table, shards, sizes }
    }

    /// The shard of a hash.
    pub(crate) fn shard_for(&self, hash: u64) -> &Shard<T> {
        let size = usize::from(self.sizes[narrow(hash >> (64 - SHARD_BITS))]);
        &self.shards[size * QUARTERS + narrow(hash) % QUARTERS]
    }

    /// The buckets of all segments, with their number.
    #[cfg(debug_assertions)]
    pub(crate) fn for_each_segment(&self, mut each: impl FnMut(&LockedSegment<'_, T>)) {
        for shard in &*self.shards {
            let mut start = Some(0);
            while let Some(from) = start {
                let (locked, next) = shard.lock_range(from);
                each(&locked);
                start = next;
            }
        }
    }

    /// The shard with this index, which is below [`SHARDS`].
    pub(crate) fn by_index(&self, shard: usize) -> &Shard<T> {
        &self.shards[shard]
    }

    /// A hash whose bits are 0, except for those that select the shard.
    pub(crate) fn first_hash(&self, shard: usize) -> u64 {
        DirectoryTable::first_hash(self.shards[shard].entries.start)
    }

    /// The slots for a hash. They may be out of date while their segment is split.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline(always)]
    pub(crate) fn bucket_view(&self, hash: u64) -> BucketView<'_> {
        let (first, index) = self.table.find(hash);
        // SAFETY: each entry of the table is of one of `shards`, which published a directory in it. That has an entry for
        // each value of the bits that its shift leaves, and the `owned` of the shard keeps it until the drop.
        let tagged = unsafe { &*first.add(index) }.load(Ordering::Acquire);
        let seed = tagged.addr() % PAGE;
        // SAFETY: buckets are aligned to a page; therefore this is the address of those of a segment, in the arena that
        // the `owned` of its shard keeps until the drop.
        BucketView::new(unsafe { &*tagged.wrapping_sub(seed).cast::<Buckets>() }, seed as u64)
    }
}

/// On a cache line of its own, so that writes to others do not slow its readers.
#[repr(align(64))]
pub(crate) struct Shard<T> {
    current: AtomicPtr<Directory<T>>,
    table: Arc<DirectoryTable>,
    /// Its entries in the table.
    entries: Range<usize>,
    owned: Mutex<SegmentList<T>>,
}

/// The allocations to free at the end. Raw pointers, because readers hold references to them.
struct SegmentList<T> {
    arena: PageArena,
    segments: Vec<*mut Segment<T>>,
    directories: Vec<*mut Directory<T>>,
}

// SAFETY: the pointers are owned, and their targets are `Send` if `T` is.
#[expect(unsafe_code, reason = "raw pointers are not `Send` by themselves; these are owned")]
unsafe impl<T: Send> Send for SegmentList<T> {}

impl<T> SegmentList<T> {
    /// Adds an empty segment.
    fn add(&mut self, seed: usize, quarter: u64, depth: u32, data: T) -> *mut Segment<T> {
        let segment = Segment::new(self.arena.take(), seed, quarter, depth, data);
        let segment = Box::into_raw(Box::new(segment));
        self.segments.push(segment);
        segment
    }
}

/// The address of the buckets, with the seed in its low bits.
fn tagged(buckets: &Buckets, seed: usize) -> *mut u8 {
    std::ptr::from_ref(buckets).cast_mut().cast::<u8>().wrapping_add(seed)
}

impl<T> Shard<T> {
    fn new(
        table: &Arc<DirectoryTable>,
        entries: Range<usize>,
        arena: PageArena,
        seed: usize,
        quarter: u64,
        data: T,
    ) -> Self {
        let (segments, directories) = (Vec::new(), Vec::new());
        let mut owned = SegmentList { arena, segments, directories };
        let segment = owned.add(seed % SEEDS, quarter, 0, data);
        let directory = Box::into_raw(Box::new(Directory::new(segment)));
        owned.directories.push(directory);
        let (current, owned) = (AtomicPtr::new(directory), Mutex::new(owned));
        let shard = Self { current, table: Arc::clone(table), entries, owned };
        shard.publish(0..2, &shard.segment(0).lock());
        shard.table.publish(shard.entries.clone(), shard.directory());
        shard
    }

    /// Publishes the buckets and seed of a segment in these entries of the directory.
    fn publish(&self, entries: Range<usize>, locked: &LockedSegment<'_, T>) {
        for index in entries {
            self.directory()
                .entry(index)
                .store(tagged(locked.buckets(), locked.seed()), Ordering::Release);
        }
    }

    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline(always)]
    fn directory(&self) -> &Directory<T> {
        // SAFETY: `current` is always one of the directories that `owned` keeps until the drop.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// The segment for a hash. It may be out of date while it is split.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    pub(crate) fn segment(&self, hash: u64) -> &Segment<T> {
        let directory = self.directory();
        // SAFETY: every entry is one of the segments that `owned` keeps until the drop.
        unsafe { &*directory.segments[directory.find(hash)].load(Ordering::Acquire) }
    }

    /// Locks the segment of a hash.
    pub(crate) fn lock(&self, hash: u64) -> LockedSegment<'_, T> {
        loop {
            let segment = self.segment(hash);
            let locked = segment.lock();
            // A segment is split under its lock: the entry of the directory stays valid until the lock is released.
            if std::ptr::eq(segment, self.segment(hash)) {
                return locked;
            }
        }
    }

    /// Locks the segment that holds the hashes from `start` on, for a walk over all keys in the order of their
    /// hashes, and says where the hashes of the next one start; `None`: it is the last.
    ///
    /// Every hash is in exactly one of the segments of a walk, however many of them split during it: a
    /// segment is only ever divided; therefore the end of one step stays the start of a segment. Starts are
    /// hashes without the bits of the shard.
    pub(crate) fn lock_range(&self, start: u64) -> (LockedSegment<'_, T>, Option<u64>) {
        let locked = self.lock(start >> SHARD_BITS);
        let next = match locked.depth() {
            0 => None,
            depth => start.checked_add(1 << (64 - depth)),
        };
        (locked, next)
    }

    /// Moves half of a segment's hashes to a new one. `data` makes the data beside the slots that move, and may change
    /// these. False if the directory has its maximum length.
    #[expect(unsafe_code, reason = "see `segment`")]
    pub(crate) fn split(
        &self,
        hash: u64,
        locked: &mut LockedSegment<'_, T>,
        data: impl FnOnce(&mut T, &mut [(usize, Slot)]) -> T,
    ) -> bool {
        let depth = locked.depth();
        if depth == MAX_DEPTH {
            return false;
        }
        let mut owned = lock(&self.owned);
        if self.directory().depth() == depth {
            self.double(&mut owned);
        }
        // The next bit of the hash, after those that select the segment.
        let bit = fingerprint(1 << (63 - SHARD_BITS - depth));
        let mut moving = locked.drain_where(|_, slot| slot.fingerprint() & bit != 0);
        reached!(SegmentIsSplit);
        locked.set_depth(depth + 1);
        let data = data(locked.data_mut(), &mut moving);
        let new = owned.add(locked.seed(), locked.quarter(), depth + 1, data);
        // SAFETY: it is new, and lives as long as the shard.
        let mut adopting = unsafe { &*new }.lock();
        adopting.adopt(moving.into_iter());

        let directory = self.directory();
        let whole = directory.entries(depth, hash);
        let half = whole.start.midpoint(whole.end)..whole.end;
        for entry in &directory.segments[half.clone()] {
            entry.store(new, Ordering::Release);
        }
        self.publish(half, &adopting);
        #[cfg(debug_assertions)]
        {
            locked.slots().for_each(|(hash, _)| self.check_place(hash, locked));
            adopting.slots().for_each(|(hash, _)| self.check_place(hash, &adopting));
        }
        true
    }

    /// Checks that a segment holds this hash, and that the directory leads there.
    #[cfg(debug_assertions)]
    fn check_place(&self, hash: u64, locked: &LockedSegment<'_, T>) {
        let directory = self.directory();
        let entry = directory.entry(directory.find(hash)).load(Ordering::Relaxed);
        assert_eq!(entry, tagged(locked.buckets(), locked.seed()), "the directory leads elsewhere");
        assert!(std::ptr::eq(self.segment(hash).buckets(), locked.buckets()), "of another segment");
        assert!(locked.find(hash).is_some(), "a key is lost");
        assert_eq!(hash % QUARTERS as u64, locked.quarter(), "a key of another quarter");
    }

    /// Whether the directory stays short for its number of segments if this one is split. Hashes of a file may be near each
    /// other; those of keys are not.
    pub(crate) fn may_split(&self, locked: &LockedSegment<'_, T>) -> bool {
        let depth = locked.depth();
        self.directory().depth() > depth
            || 2 << depth <= lock(&self.owned).segments.len() * ENTRIES_PER_SEGMENT
    }

    /// Assigns the keys of a segment to buckets again; see [`LockedSegment::reseed`].
    pub(crate) fn reseed(&self, hash: u64, locked: &mut LockedSegment<'_, T>, seed: usize) -> bool {
        // Doubling the directory at the same time would copy the old entries.
        let _owned = lock(&self.owned);
        let reseeded = locked.reseed(seed);
        self.publish(self.directory().entries(locked.depth(), hash), locked);
        reseeded
    }

    /// Replaces the directory by one of twice the length.
    fn double(&self, owned: &mut SegmentList<T>) {
        let new = Box::into_raw(Box::new(self.directory().doubled()));
        owned.directories.push(new);
        self.current.store(new, Ordering::Release);
        self.table.publish(self.entries.clone(), self.directory());
    }
}

impl<T> Drop for Shard<T> {
    #[expect(unsafe_code, reason = "frees what `Box::into_raw` returned")]
    fn drop(&mut self) {
        let mut owned = lock(&self.owned);
        for segment in owned.segments.drain(..) {
            // SAFETY: each came from `Box::into_raw` once, and no references are left.
            drop(unsafe { Box::from_raw(segment) });
        }
        for directory in owned.directories.drain(..) {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(directory) });
        }
    }
}

impl<T> fmt::Debug for Shard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shard")
            .field("depth", &self.directory().depth())
            .finish_non_exhaustive()
    }
}

// Directories of shards, and the table that finds the one for a hash.

/// Bits of a hash that choose the shard, with the lowest two; those after them choose the segment.
pub(crate) const SHARD_BITS: u32 = 8;
/// Values of the lowest two bits of a hash. There are as many shards of each size.
const QUARTERS: usize = 4;
/// Values of the bits of a hash that select a shard.
pub(crate) const PARTS: usize = QUARTERS << SHARD_BITS;

/// Maps hashes to segments, by the first bits after those of the shard.
struct Directory<T> {
    /// Bits by which a hash is shifted to give an index: 64 minus the depth.
    shift: u32,
    /// The buckets of each segment, aligned to a page: the low bits of the address hold the seed.
    buckets: Box<[DirectoryLine]>,
    segments: Box<[AtomicPtr<Segment<T>>]>,
}

/// Entries of a directory on one cache line: their alignment leaves the low bits of their address unused.
#[derive(Default)]
#[repr(align(64))]
struct DirectoryLine([AtomicPtr<u8>; LINE]);

/// Entries of a cache line, which has 64 bytes. A line without a gap behind it follows the one before, also if pointers
/// have 32 bits: decisions read the entries as one array.
const LINE: usize = 64 / size_of::<AtomicPtr<u8>>();
const _: () = assert!(size_of::<DirectoryLine>() == 64);

/// The address of the buckets of a directory. Its low bits hold the shift.
type TaggedBuckets = *mut AtomicPtr<u8>;

impl<T> Directory<T> {
    /// A directory of one segment, whose buckets are still to be published.
    fn new(segment: *mut Segment<T>) -> Self {
        // Two entries, because a shift by 64 bits is invalid.
        let segments = Box::new([(); 2].map(|()| AtomicPtr::new(segment)));
        Self { shift: 63, buckets: Box::new([DirectoryLine::default()]), segments }
    }

    /// A directory of the same segments with twice the length.
    fn doubled(&self) -> Self {
        let length = self.segments.len() * 2;
        let segment = |index: usize| self.segments[index / 2].load(Ordering::Relaxed);
        let buckets = |index: usize| self.entry(index.min(length - 1) / 2).load(Ordering::Relaxed);
        let line = |line| {
            DirectoryLine(std::array::from_fn(|at| AtomicPtr::new(buckets(line * LINE + at))))
        };
        Self {
            shift: self.shift - 1,
            buckets: (0..length.div_ceil(LINE)).map(line).collect(),
            segments: (0..length).map(|index| AtomicPtr::new(segment(index))).collect(),
        }
    }

    fn depth(&self) -> u32 {
        64 - self.shift
    }

    #[inline(always)]
    fn find(&self, hash: u64) -> usize {
        narrow(hash << SHARD_BITS >> self.shift)
    }

    /// The buckets of an entry, with the seed of their segment.
    fn entry(&self, index: usize) -> &AtomicPtr<u8> {
        &self.buckets[index / LINE].0[index % LINE]
    }

    /// The entries for the segment of a hash, which has this `depth`.
    fn entries(&self, depth: u32, hash: u64) -> Range<usize> {
        let span = 1 << (self.depth() - depth);
        let start = self.find(hash) / span * span;
        start..start + span
    }

    fn tagged_buckets(&self) -> TaggedBuckets {
        let first = self.buckets.as_ptr().cast_mut().cast::<AtomicPtr<u8>>();
        first.map_addr(|address| address | self.shift as usize)
    }
}

/// The buckets of the current directory, with its shift, for each value of the bits of a hash that select a shard. A
/// decision reads one entry to find a directory. To read the shard first would take longer, because its address has to be
/// read, too, and each of these reads waits for the one before.
#[derive(Debug)]
#[repr(align(64))]
struct DirectoryTable([AtomicPtr<AtomicPtr<u8>>; PARTS]);

impl DirectoryTable {
    fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicPtr::default()))
    }

    /// The entries of the hashes whose first bits are one of `cells`, and whose lowest two are `quarter`.
    const fn entries(cells: &Range<usize>, quarter: usize) -> Range<usize> {
        let first = quarter << SHARD_BITS;
        first + cells.start..first + cells.end
    }

    /// The lowest hash of an entry.
    const fn first_hash(entry: usize) -> u64 {
        (entry as u64).rotate_right(SHARD_BITS)
    }

    /// Publishes the buckets of a directory in the entries of its shard.
    fn publish<T>(&self, entries: Range<usize>, directory: &Directory<T>) {
        for entry in &self.0[entries] {
            entry.store(directory.tagged_buckets(), Ordering::Release);
        }
    }

    /// For a hash: the first entry of the current directory of its shard, and the index of its entry from there.
    #[inline(always)]
    fn find(&self, hash: u64) -> (*mut AtomicPtr<u8>, usize) {
        let entry = narrow(hash.rotate_left(SHARD_BITS)) % PARTS;
        let buckets = self.0[entry].load(Ordering::Acquire);
        let shift = buckets.addr() % align_of::<DirectoryLine>();
        (buckets.map_addr(|address| address - shift), narrow(hash << SHARD_BITS >> shift))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::slot::Tat;

    #[test]
    fn table_each_entry_is_of_the_shard_of_its_hashes() {
        let shards = Shards::new(&PageArena::new(2 << 20), 7, || ());
        for entry in 0..PARTS {
            let first = DirectoryTable::first_hash(entry);
            for hash in [first, first | 0x00ff_ffff_ffff_fffc] {
                assert!(shards.shard_for(hash).entries.contains(&entry), "{entry}");
            }
        }
        let entries = (0..SHARDS).map(|shard| shards.by_index(shard).entries.len());
        assert_eq!(entries.sum::<usize>(), PARTS);
    }

    #[test]
    fn may_split_a_segment_much_smaller_than_the_others_is_false() {
        let shards = Shards::new(&PageArena::new(2 << 20), 7, || ());
        let (shard, hash) = (shards.by_index(0), shards.first_hash(0));
        for _ in 0..MAX_DEPTH {
            let mut locked = shard.lock(hash);
            if !shard.may_split(&locked) {
                break;
            }
            assert!(shard.split(hash, &mut locked, |(), _| ()));
        }
        let segments = lock(&shard.owned).segments.len();
        assert_eq!((segments, shard.directory().depth()), (10, 9));
        // Its neighbours have fewer bits in common.
        let neighbour = hash | 1 << (63 - SHARD_BITS);
        assert!(shard.may_split(&shard.lock(neighbour)));
    }

    #[test]
    fn bucket_view_after_splits_finds_each_key_without_a_lock() {
        let shards = Shards::new(&PageArena::new(2 << 20), 7, || ());
        let state = Tat::after(1, 1, 1);
        // A few in each shard, with different bits after those of the shard.
        let hashes: Vec<_> =
            (0..2000_u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15)).collect();
        for &hash in &hashes {
            let slot = Slot::simple(hash, 1, state);
            assert!(shards.shard_for(hash).lock(hash).insert(hash, slot, |(), _| false));
        }
        for round in 0..4 {
            for &hash in &hashes {
                let buckets = shards.bucket_view(hash).key_buckets(hash);
                assert!(buckets.peek::<true>(hash, 1).is_some(), "{hash} after {round} splits");
            }
            for hash in (0..SHARDS).map(|shard| shards.first_hash(shard)) {
                let mut locked = shards.shard_for(hash).lock(hash);
                assert!(shards.shard_for(hash).split(hash, &mut locked, |(), _| ()));
            }
        }
    }
}
