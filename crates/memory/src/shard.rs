//! A shard: segments behind a directory, which grows by splitting one segment at a time (extendible
//! hashing, Fagin et al. 1979). No decision ever waits for more than the split of its own segment.
//!
//! A segment stays where it is until the shard is dropped, and so does every directory that was
//! ever current (each half as long as the next): a reader may go on with what it saw, and finds
//! out when it has the lock, or by the version.

use std::{
    fmt,
    ops::Range,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    ground::{Ground, PAGE},
    segment::{Buckets, Lines, Locked, SEEDS, Segment},
    slot::{Slot, fingerprint},
    store::narrow,
    sync::{Mutex, lock},
};

/// Bits of a hash that choose the shard; those after them choose the segment.
pub(crate) const SHARD_BITS: u32 = 8;
/// No directory is longer than 2^28: the fingerprint has bits left that tell keys apart.
const MAX_DEPTH: u32 = 28;

/// On a line of its own: what others write does not slow who reads it.
#[repr(align(64))]
pub(crate) struct Shard<T> {
    current: AtomicPtr<Directory<T>>,
    owned: Mutex<Owned<T>>,
}

/// Which segment a hash belongs to, by its first bits after those of the shard.
struct Directory<T> {
    /// By how many bits a hash is shifted to give an index: as many are left as the directory is deep.
    shift: u32,
    /// The buckets of each, which begin a page: the low bits of the address are the segment's seed.
    lines: Box<[AtomicPtr<u8>]>,
    segments: Box<[AtomicPtr<Segment<Part<T>>>]>,
}

/// What there is to free at the end. Raw, since others hold references to the same.
struct Owned<T> {
    ground: Ground,
    segments: Vec<*mut Segment<Part<T>>>,
    directories: Vec<*mut Directory<T>>,
}

// SAFETY: the pointers are owned, and what they point to is `Send` where `T` is.
#[expect(unsafe_code, reason = "raw pointers are not `Send` by themselves; these are owned")]
unsafe impl<T: Send> Send for Owned<T> {}

/// What is kept beside the slots of a segment.
#[derive(Debug)]
pub(crate) struct Part<T> {
    /// How many bits of the hash, after those of the shard, all keys here share.
    pub(crate) depth: u32,
    /// Of the kind of which the shard is.
    pub(crate) kept: T,
}

impl<T> Owned<T> {
    /// A segment without keys.
    fn add(&mut self, seed: usize, quarter: u64, part: Part<T>) -> *mut Segment<Part<T>> {
        let segment = Segment::new(self.ground.take(), seed, quarter, part);
        let segment = Box::into_raw(Box::new(segment));
        self.segments.push(segment);
        segment
    }
}

/// Where the buckets are, and the seed.
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

    /// The entries of the segment of a hash, which is found by its first `depth` bits.
    fn entries(&self, depth: u32, hash: u64) -> Range<usize> {
        let span = 1 << (self.depth() - depth);
        let start = self.find(hash) / span * span;
        start..start + span
    }
}

impl<T> Shard<T> {
    pub(crate) fn new(ground: Ground, seed: usize, quarter: u64, kept: T) -> Self {
        let (segments, directories) = (Vec::new(), Vec::new());
        let mut owned = Owned { ground, segments, directories };
        let segment = owned.add(seed % SEEDS, quarter, Part { depth: 0, kept });
        // Two entries, so that no shift is one by all bits.
        let directory = Directory {
            shift: 63,
            lines: Box::new([(); 2].map(|()| AtomicPtr::default())),
            segments: Box::new([(); 2].map(|()| AtomicPtr::new(segment))),
        };
        let directory = Box::into_raw(Box::new(directory));
        owned.directories.push(directory);
        let shard = Self { current: AtomicPtr::new(directory), owned: Mutex::new(owned) };
        shard.show(0..2, &shard.segment(0).lock());
        shard
    }

    /// Shows readers the segment's buckets and seed, in these entries of the directory.
    fn show(&self, entries: Range<usize>, locked: &Locked<'_, Part<T>>) {
        for entry in &self.directory().lines[entries] {
            entry.store(tagged(locked.buckets(), locked.seed()), Ordering::Release);
        }
    }

    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline(always)]
    fn directory(&self) -> &Directory<T> {
        // SAFETY: `current` is always one of the directories that `owned` keeps until the drop.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// The slots that a hash belongs to, unless they are being split at this moment.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline(always)]
    pub(crate) fn lines(&self, hash: u64) -> Lines<'_> {
        let directory = self.directory();
        let tagged = directory.lines[directory.find(hash)].load(Ordering::Acquire);
        let seed = tagged.addr() % PAGE;
        // SAFETY: buckets begin a page, so this is where those of a segment are, in the
        // ground that `owned` keeps until the drop.
        Lines::new(unsafe { &*tagged.wrapping_sub(seed).cast::<Buckets>() }, seed as u64)
    }

    /// The segment that a hash belongs to, unless it is being split at this moment.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    pub(crate) fn segment(&self, hash: u64) -> &Segment<Part<T>> {
        let directory = self.directory();
        // SAFETY: every entry is one of the segments that `owned` keeps until the drop.
        unsafe { &*directory.segments[directory.find(hash)].load(Ordering::Acquire) }
    }

    /// Locks the segment that a hash belongs to.
    pub(crate) fn lock(&self, hash: u64) -> Locked<'_, Part<T>> {
        loop {
            let segment = self.segment(hash);
            let locked = segment.lock();
            // A segment is split under its lock: what the directory says now holds until it is let go.
            if std::ptr::eq(segment, self.segment(hash)) {
                return locked;
            }
        }
    }

    /// Locks the segment that holds the hashes from `start` on, for a walk over all keys in the order of their
    /// hashes, and says where the hashes of the next one start; `None`: it is the last.
    ///
    /// Every hash is in exactly one of the segments of a walk, however many of them split during it: a
    /// segment is only ever divided, so the bound where one turn ended stays the start of a segment. Starts are
    /// hashes without the bits of the shard.
    pub(crate) fn lock_range(&self, start: u64) -> (Locked<'_, Part<T>>, Option<u64>) {
        let locked = self.lock(start >> SHARD_BITS);
        let next = match locked.kept().depth {
            0 => None,
            depth => start.checked_add(1 << (64 - depth)),
        };
        (locked, next)
    }

    /// Moves half of a segment's hashes to a new one. `kept` makes what is kept beside the slots
    /// that move, which it may change. False where the directory is as long as it may be.
    #[expect(unsafe_code, reason = "see `segment`")]
    pub(crate) fn split(
        &self,
        hash: u64,
        locked: &mut Locked<'_, Part<T>>,
        kept: impl FnOnce(&mut T, &mut [(usize, Slot)]) -> T,
    ) -> bool {
        let depth = locked.kept().depth;
        if depth == MAX_DEPTH {
            return false;
        }
        let mut owned = lock(&self.owned);
        if self.directory().depth() == depth {
            self.double(&mut owned);
        }
        // The bit of the hash that follows those by which the segment was found so far.
        let bit = fingerprint(1 << (63 - SHARD_BITS - depth));
        let mut moving = locked.take_out(|_, slot| slot.fingerprint() & bit != 0);
        locked.kept_mut().depth = depth + 1;
        let kept = kept(&mut locked.kept_mut().kept, &mut moving);
        let part = Part { depth: depth + 1, kept };
        let new = owned.add(locked.seed(), locked.quarter(), part);
        // SAFETY: it was made just now, and lives as long as the shard.
        let mut adopting = unsafe { &*new }.lock();
        adopting.adopt(moving.into_iter());

        let directory = self.directory();
        let whole = directory.entries(depth, hash);
        let half = whole.start.midpoint(whole.end)..whole.end;
        for entry in &directory.segments[half.clone()] {
            entry.store(new, Ordering::Release);
        }
        self.show(half, &adopting);
        true
    }

    /// Chooses the buckets of a segment anew; see [`Locked::reseed`].
    pub(crate) fn reseed(&self, hash: u64, locked: &mut Locked<'_, Part<T>>, seed: usize) -> bool {
        // Whoever doubles the directory meanwhile would take over what it said before.
        let _owned = lock(&self.owned);
        let reseeded = locked.reseed(seed);
        self.show(self.directory().entries(locked.kept().depth, hash), locked);
        reseeded
    }

    /// Makes a directory current that is twice as long.
    fn double(&self, owned: &mut Owned<T>) {
        let old = self.directory();
        let new = Directory {
            shift: old.shift - 1,
            lines: twice(&old.lines),
            segments: twice(&old.segments),
        };
        let new = Box::into_raw(Box::new(new));
        owned.directories.push(new);
        self.current.store(new, Ordering::Release);
    }
}

/// Each entry two times.
fn twice<T>(entries: &[AtomicPtr<T>]) -> Box<[AtomicPtr<T>]> {
    let read = |index: usize| entries[index / 2].load(Ordering::Relaxed);
    (0..entries.len() * 2).map(|index| AtomicPtr::new(read(index))).collect()
}

impl<T> Drop for Shard<T> {
    #[expect(unsafe_code, reason = "gives back what `Box::into_raw` gave")]
    fn drop(&mut self) {
        let mut owned = lock(&self.owned);
        for segment in owned.segments.drain(..) {
            // SAFETY: each came from `Box::into_raw` once, and nobody holds a reference any more.
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
