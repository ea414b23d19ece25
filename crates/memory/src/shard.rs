//! A shard: segments behind a directory, which grows by splitting one segment at a time (extendible
//! hashing, Fagin et al. 1979). No decision waits for more than the split of its own segment.
//!
//! Segments live at a fixed address until the shard is dropped, and so do all earlier directories (each half as long
//! as the next). A reader may therefore use an old one; it notices when it has the lock, or by the state word.

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    bits::narrow,
    page_arena::{PAGE, PageArena},
    segment::{BucketView, Buckets, Locked, SEEDS, Segment},
    slot::{Slot, fingerprint},
    sync::{Mutex, lock},
};

/// Bits of a hash that choose the shard; those after them choose the segment.
pub(crate) const SHARD_BITS: u32 = 8;
/// Upper bound on the depth of a directory: fingerprints keep enough bits to distinguish keys.
const MAX_DEPTH: u32 = 28;

/// On a cache line of its own, so that writes to others do not slow its readers.
#[repr(align(64))]
pub(crate) struct Shard<T> {
    /// The buckets of the current directory; the low bits of the address hold its shift. All that a decision reads of
    /// a directory comes with one read of the shard.
    buckets: AtomicPtr<AtomicPtr<u8>>,
    current: AtomicPtr<Directory<T>>,
    owned: Mutex<SegmentList<T>>,
}

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

/// Entries of a cache line.
const LINE: usize = 8;

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
    fn add(&mut self, seed: usize, quarter: u64, depth: u32, kept: T) -> *mut Segment<T> {
        let segment = Segment::new(self.arena.take(), seed, quarter, depth, kept);
        let segment = Box::into_raw(Box::new(segment));
        self.segments.push(segment);
        segment
    }
}

/// The address of the buckets, with the seed in its low bits.
fn tagged(buckets: &Buckets, seed: usize) -> *mut u8 {
    std::ptr::from_ref(buckets).cast_mut().cast::<u8>().wrapping_add(seed)
}

impl<T> Directory<T> {
    fn depth(&self) -> u32 {
        64 - self.shift
    }

    #[inline(always)]
    fn find(&self, hash: u64) -> usize {
        narrow(hash << SHARD_BITS >> self.shift)
    }

    fn entry(&self, index: usize) -> &AtomicPtr<u8> {
        &self.buckets[index / LINE].0[index % LINE]
    }

    /// The address of the buckets, with the shift in its low bits.
    fn tagged_buckets(&self) -> *mut AtomicPtr<u8> {
        let first = self.buckets.as_ptr().cast_mut().cast::<AtomicPtr<u8>>();
        first.map_addr(|address| address | self.shift as usize)
    }

    /// The entries of the directory for the segment of a hash, which has this `depth`.
    fn entries(&self, depth: u32, hash: u64) -> Range<usize> {
        let span = 1 << (self.depth() - depth);
        let start = self.find(hash) / span * span;
        start..start + span
    }
}

impl<T> Shard<T> {
    pub(crate) fn new(arena: PageArena, seed: usize, quarter: u64, kept: T) -> Self {
        let (segments, directories) = (Vec::new(), Vec::new());
        let mut owned = SegmentList { arena, segments, directories };
        let segment = owned.add(seed % SEEDS, quarter, 0, kept);
        // Two entries, because a shift by 64 bits is invalid.
        let directory = Directory {
            shift: 63,
            buckets: Box::new([DirectoryLine::default()]),
            segments: Box::new([(); 2].map(|()| AtomicPtr::new(segment))),
        };
        let buckets = AtomicPtr::new(directory.tagged_buckets());
        let directory = Box::into_raw(Box::new(directory));
        owned.directories.push(directory);
        let shard = Self { buckets, current: AtomicPtr::new(directory), owned: Mutex::new(owned) };
        shard.publish(0..2, &shard.segment(0).lock());
        shard
    }

    /// Publishes the buckets and seed of a segment in these entries of the directory.
    fn publish(&self, entries: Range<usize>, locked: &Locked<'_, T>) {
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

    /// The slots for a hash. They may be out of date while their segment is split.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline(always)]
    pub(crate) fn bucket_view(&self, hash: u64) -> BucketView<'_> {
        let buckets = self.buckets.load(Ordering::Acquire);
        let shift = buckets.addr() % align_of::<DirectoryLine>();
        let index = narrow(hash << SHARD_BITS >> shift);
        let first = buckets.map_addr(|address| address - shift);
        // SAFETY: the directory has an entry for each value of the bits that the shift leaves, and `owned` keeps it until
        // the drop.
        let tagged = unsafe { &*first.add(index) }.load(Ordering::Acquire);
        let seed = tagged.addr() % PAGE;
        // SAFETY: buckets are aligned to a page; therefore this is the address of those of a segment, in the arena that
        // `owned` keeps until the drop.
        BucketView::new(unsafe { &*tagged.wrapping_sub(seed).cast::<Buckets>() }, seed as u64)
    }

    /// The segment for a hash. It may be out of date while it is split.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    pub(crate) fn segment(&self, hash: u64) -> &Segment<T> {
        let directory = self.directory();
        // SAFETY: every entry is one of the segments that `owned` keeps until the drop.
        unsafe { &*directory.segments[directory.find(hash)].load(Ordering::Acquire) }
    }

    /// Locks the segment of a hash.
    pub(crate) fn lock(&self, hash: u64) -> Locked<'_, T> {
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
    pub(crate) fn lock_range(&self, start: u64) -> (Locked<'_, T>, Option<u64>) {
        let locked = self.lock(start >> SHARD_BITS);
        let next = match locked.depth() {
            0 => None,
            depth => start.checked_add(1 << (64 - depth)),
        };
        (locked, next)
    }

    /// Moves half of a segment's hashes to a new one. `kept` makes the data beside the slots that move, and may change
    /// these. False if the directory has its maximum length.
    #[expect(unsafe_code, reason = "see `segment`")]
    pub(crate) fn split(
        &self,
        hash: u64,
        locked: &mut Locked<'_, T>,
        kept: impl FnOnce(&mut T, &mut [(usize, Slot)]) -> T,
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
        locked.set_depth(depth + 1);
        let kept = kept(locked.kept_mut(), &mut moving);
        let new = owned.add(locked.seed(), locked.quarter(), depth + 1, kept);
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
        true
    }

    /// Assigns the keys of a segment to buckets again; see [`Locked::reseed`].
    pub(crate) fn reseed(&self, hash: u64, locked: &mut Locked<'_, T>, seed: usize) -> bool {
        // Doubling the directory at the same time would copy the old entries.
        let _owned = lock(&self.owned);
        let reseeded = locked.reseed(seed);
        self.publish(self.directory().entries(locked.depth(), hash), locked);
        reseeded
    }

    /// Replaces the directory by one of twice the length.
    fn double(&self, owned: &mut SegmentList<T>) {
        let old = self.directory();
        let new = Directory {
            shift: old.shift - 1,
            buckets: twice_lines(old),
            segments: twice(&old.segments),
        };
        let buckets = new.tagged_buckets();
        let new = Box::into_raw(Box::new(new));
        owned.directories.push(new);
        self.current.store(new, Ordering::Release);
        self.buckets.store(buckets, Ordering::Release);
    }
}

/// Each entry twice.
fn twice<T>(entries: &[AtomicPtr<T>]) -> Box<[AtomicPtr<T>]> {
    let read = |index: usize| entries[index / 2].load(Ordering::Relaxed);
    (0..entries.len() * 2).map(|index| AtomicPtr::new(read(index))).collect()
}

/// The buckets of each entry twice.
fn twice_lines<T>(old: &Directory<T>) -> Box<[DirectoryLine]> {
    let length = old.segments.len() * 2;
    let read = |index: usize| old.entry(index.min(length - 1) / 2).load(Ordering::Relaxed);
    let line =
        |line| DirectoryLine(std::array::from_fn(|at| AtomicPtr::new(read(line * LINE + at))));
    (0..length.div_ceil(LINE)).map(line).collect()
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
