//! A shard: segments behind a directory, which grows by splitting one segment at a time (extendible
//! hashing, Fagin et al. 1979). No decision ever waits for more than the split of its own segment.
//!
//! A segment stays where it is until the shard is dropped, and so does every directory that was
//! ever current (each half as long as the next): a reader may go on with what it saw, and finds
//! out when it has the lock, or by the version.

use std::{
    fmt,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{
    segment::{Locked, Segment},
    slot::{Slot, fingerprint},
    sync::{Mutex, lock},
};

/// Bits of a hash that choose the shard; those after them choose the segment.
pub(crate) const SHARD_BITS: u32 = 8;
/// No directory is longer than 2^28: the fingerprint has bits left that tell keys apart.
const MAX_DEPTH: u32 = 28;

pub(crate) struct Shard<T> {
    current: AtomicPtr<Directory<T>>,
    owned: Mutex<Owned<T>>,
}

/// Which segment a hash belongs to, by its first `depth` bits after those of the shard.
struct Directory<T> {
    depth: u32,
    segments: Box<[AtomicPtr<Segment<Part<T>>>]>,
}

/// What there is to free at the end. Raw, since others hold references to the same.
struct Owned<T> {
    /// In blocks, which never move: so their heads are close together.
    segments: Vec<Vec<Segment<Part<T>>>>,
    directories: Vec<*mut Directory<T>>,
}

// SAFETY: the pointers are owned, and what they point to is `Send` where `T` is.
#[expect(unsafe_code, reason = "raw pointers are not `Send` by themselves; these are owned")]
unsafe impl<T: Send> Send for Owned<T> {}

/// What is kept beside the slots of a segment.
#[derive(Debug)]
pub(crate) struct Part<T> {
    depth: u32,
    /// Of the kind of which the shard is.
    pub(crate) kept: T,
}

/// Segments in a block.
const BLOCK: usize = 64;

impl<T> Owned<T> {
    fn add(&mut self, segment: Segment<Part<T>>) -> *mut Segment<Part<T>> {
        if self.segments.last().is_none_or(|block| block.len() == BLOCK) {
            self.segments.push(Vec::with_capacity(BLOCK));
        }
        let block = self.segments.last_mut().expect("a block was added if there was none");
        block.push(segment);
        block.last_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut)
    }
}

impl<T> Directory<T> {
    fn index(depth: u32, hash: u64) -> usize {
        usize::try_from((hash << SHARD_BITS) >> 1 >> (63 - depth)).unwrap_or_default()
    }
}

impl<T> Shard<T> {
    pub(crate) fn new(seed: u64, kept: T) -> Self {
        let mut owned = Owned { segments: Vec::new(), directories: Vec::new() };
        let segment = owned.add(Segment::new(seed, Part { depth: 0, kept }));
        let segments = Box::new([AtomicPtr::new(segment)]);
        let directory = Box::into_raw(Box::new(Directory { depth: 0, segments }));
        owned.directories.push(directory);
        Self { current: AtomicPtr::new(directory), owned: Mutex::new(owned) }
    }

    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline]
    fn directory(&self) -> &Directory<T> {
        // SAFETY: `current` is always one of the directories that `owned` keeps until the drop.
        unsafe { &*self.current.load(Ordering::Acquire) }
    }

    /// The segment that a hash belongs to, unless it is being split at this moment.
    #[expect(unsafe_code, reason = "a lock here would be taken by every decision")]
    #[inline]
    pub(crate) fn segment(&self, hash: u64) -> &Segment<Part<T>> {
        let directory = self.directory();
        let index = Directory::<T>::index(directory.depth, hash);
        // SAFETY: every entry is one of the segments that `owned` keeps until the drop.
        unsafe { &*directory.segments[index].load(Ordering::Acquire) }
    }

    /// Locks the segment that a hash belongs to.
    #[inline]
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

    /// Every segment, for a walk over all keys. A segment that is split meanwhile may be walked
    /// twice in part; none is left out.
    #[expect(unsafe_code, reason = "see `segment`")]
    pub(crate) fn segments(&self) -> Vec<&Segment<Part<T>>> {
        let owned = lock(&self.owned);
        // SAFETY: the segments live as long as the shard, and where they are.
        owned
            .segments
            .iter()
            .flatten()
            .map(|segment| unsafe { &*std::ptr::from_ref(segment) })
            .collect()
    }

    /// Moves half of a segment's hashes to a new one. `kept` makes what is kept beside the slots
    /// that move, which it may change. False where the directory is as long as it may be.
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
        if self.directory().depth == depth {
            self.double(&mut owned);
        }
        // The bit of the hash that follows those by which the segment was found so far.
        let bit = fingerprint(1 << (63 - SHARD_BITS - depth));
        let mut moving = locked.take_out(|_, slot| slot.fingerprint() & bit != 0);
        locked.kept_mut().depth = depth + 1;
        let kept = kept(&mut locked.kept_mut().kept, &mut moving);
        let new = Segment::new(locked.seed(), Part { depth: depth + 1, kept });
        new.lock().adopt(moving.into_iter());
        let new = owned.add(new);

        let directory = self.directory();
        let span = 1 << (directory.depth - depth - 1);
        let half = (Directory::<T>::index(depth, hash) * 2 + 1) * span;
        for entry in &directory.segments[half..half + span] {
            entry.store(new, Ordering::Release);
        }
        true
    }

    /// Makes a directory current that is twice as long.
    fn double(&self, owned: &mut Owned<T>) {
        let old = self.directory();
        let segments = (0..old.segments.len() * 2)
            .map(|index| AtomicPtr::new(old.segments[index / 2].load(Ordering::Relaxed)));
        let new = Directory { depth: old.depth + 1, segments: segments.collect() };
        let new = Box::into_raw(Box::new(new));
        owned.directories.push(new);
        self.current.store(new, Ordering::Release);
    }
}

impl<T> Drop for Shard<T> {
    #[expect(unsafe_code, reason = "gives back what `Box::into_raw` gave")]
    fn drop(&mut self) {
        let mut owned = lock(&self.owned);
        // SAFETY: each came from `Box::into_raw` once, and nobody holds a reference any more.
        for directory in owned.directories.drain(..) {
            drop(unsafe { Box::from_raw(directory) });
        }
    }
}

impl<T> fmt::Debug for Shard<T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Shard")
            .field("depth", &self.directory().depth)
            .finish_non_exhaustive()
    }
}
