//! Directories of shards, and the table that finds the one for a hash.

use std::{
    ops::Range,
    sync::atomic::{AtomicPtr, Ordering},
};

use crate::{bits::narrow, segment::Segment};

/// Bits of a hash that choose the shard, with the lowest two; those after them choose the segment.
pub(crate) const SHARD_BITS: u32 = 8;
/// Values of the lowest two bits of a hash. There are as many shards of each size.
pub(super) const QUARTERS: usize = 4;
/// Values of the bits of a hash that select a shard.
pub(crate) const PARTS: usize = QUARTERS << SHARD_BITS;

/// Maps hashes to segments, by the first bits after those of the shard.
pub(super) struct Directory<T> {
    /// Bits by which a hash is shifted to give an index: 64 minus the depth.
    shift: u32,
    /// The buckets of each segment, aligned to a page: the low bits of the address hold the seed.
    buckets: Box<[DirectoryLine]>,
    pub(super) segments: Box<[AtomicPtr<Segment<T>>]>,
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
    pub(super) fn new(segment: *mut Segment<T>) -> Self {
        // Two entries, because a shift by 64 bits is invalid.
        let segments = Box::new([(); 2].map(|()| AtomicPtr::new(segment)));
        Self { shift: 63, buckets: Box::new([DirectoryLine::default()]), segments }
    }

    /// A directory of the same segments with twice the length.
    pub(super) fn doubled(&self) -> Self {
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

    pub(super) fn depth(&self) -> u32 {
        64 - self.shift
    }

    #[inline(always)]
    pub(super) fn find(&self, hash: u64) -> usize {
        narrow(hash << SHARD_BITS >> self.shift)
    }

    /// The buckets of an entry, with the seed of their segment.
    pub(super) fn entry(&self, index: usize) -> &AtomicPtr<u8> {
        &self.buckets[index / LINE].0[index % LINE]
    }

    /// The entries for the segment of a hash, which has this `depth`.
    pub(super) fn entries(&self, depth: u32, hash: u64) -> Range<usize> {
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
pub(super) struct DirectoryTable([AtomicPtr<AtomicPtr<u8>>; PARTS]);

impl DirectoryTable {
    pub(super) fn new() -> Self {
        Self(std::array::from_fn(|_| AtomicPtr::default()))
    }

    /// The entries of the hashes whose first bits are one of `cells`, and whose lowest two are `quarter`.
    pub(super) const fn entries(cells: &Range<usize>, quarter: usize) -> Range<usize> {
        let first = quarter << SHARD_BITS;
        first + cells.start..first + cells.end
    }

    /// The lowest hash of an entry.
    pub(super) const fn first_hash(entry: usize) -> u64 {
        (entry as u64).rotate_right(SHARD_BITS)
    }

    /// Publishes the buckets of a directory in the entries of its shard.
    pub(super) fn publish<T>(&self, entries: Range<usize>, directory: &Directory<T>) {
        for entry in &self.0[entries] {
            entry.store(directory.tagged_buckets(), Ordering::Release);
        }
    }

    /// For a hash: the first entry of the current directory of its shard, and the index of its entry from there.
    #[inline(always)]
    pub(super) fn find(&self, hash: u64) -> (*mut AtomicPtr<u8>, usize) {
        let entry = narrow(hash.rotate_left(SHARD_BITS)) % PARTS;
        let buckets = self.0[entry].load(Ordering::Acquire);
        let shift = buckets.addr() % align_of::<DirectoryLine>();
        (buckets.map_addr(|address| address - shift), narrow(hash << SHARD_BITS >> shift))
    }
}
