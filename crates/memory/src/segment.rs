//! A segment: 1024 slots. Whoever finds a key decides on it without a lock.
//!
//! Each key has two buckets of four slots, one cache line each; where both are full, a slot moves
//! to its other bucket (cuckoo hashing, Pagh and Rodler 2004; which bucket is the other follows
//! from the fingerprint, as in Fan et al. 2014). A look-up so reads two lines at the most.
//!
//! The second word of a slot is its state; 0 is a slot that holds nothing, or is in somebody's hands.
//! - A decision on a key that is there replaces its state without a lock, in three steps: it marks the state by
//!   compare-and-swap, reads the first word once more, and writes the new state, or the old one where the slot is
//!   not its key's any more.
//! - Who puts a key in, moves one or takes one out holds the segment's lock, and takes the state out
//!   by a compare-and-swap first, never one that is marked: so no replacement is lost, and a slot changes hands
//!   only while its state is 0.
//! - A first word is written before the state that belongs to it, and read after it.
//!
//! No decision writes to the slot of another key, though two keys may have the same state (all windows on the
//! clock in which one unit is used have one second word, but for the fingerprint), and a slot may pass from
//! one of them to the other between the read of a state and the compare-and-swap. For this succeeds only where
//! the second word is that state, not 0 and without a mark; from then on the slot has a mark, with which
//! it does not change hands; so the first word that is read under it is the owner's for as long as the mark is
//! there. If it is the one that was looked for, the state that was marked is the key's own, whatever the
//! slot held between; else the state is put back as it was, and no reader has taken the marked one for
//! anything. `model` has every order in which that may happen, and ADR 24 what it costs.

use std::collections::VecDeque;

use crate::{
    slot::{LARGE, Slot, fingerprint},
    store::narrow,
    sync::{Mutex, MutexGuard, lock},
};

mod bucket;

use bucket::Cell;
pub(crate) use bucket::{Bucket, Seen};

/// Bits of a hash that say a bucket: those after the lowest two.
const BUCKET_BITS: u32 = if cfg!(loom) { 1 } else { 8 };
/// Buckets of a segment.
const BUCKETS: usize = 1 << BUCKET_BITS;
const WAYS: usize = 4;
/// Both buckets of a key lie within one page of memory, which is looked up once then.
const NEAR: usize = 63;
/// Slots of a segment.
pub(crate) const SLOTS: usize = BUCKETS * WAYS;
/// Seeds are below this.
pub(crate) const SEEDS: usize = 1 << 12;

/// The slots of a segment, zeroed memory being slots never used.
pub(crate) type Buckets = [Bucket; BUCKETS];

/// The slots of a segment, and how a key finds its own among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lines<'a> {
    buckets: &'a Buckets,
    /// Stirred into the choice of buckets; changed when keys gather in few of them.
    seed: u64,
}

/// Where a slot is: its number in the segment.
pub(crate) type Place = usize;

/// How a fingerprint chooses its buckets: what its bits of the hash are stirred with, and how far
/// its other bucket is from the first.
#[derive(Clone, Copy)]
struct Stir {
    first: usize,
    apart: usize,
}

fn low(bits: u64) -> usize {
    narrow(bits) % BUCKETS
}

impl Stir {
    #[inline(always)]
    fn new(fingerprint: u64, seed: u64) -> Self {
        let mixed = (fingerprint ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { first: low(mixed >> 54), apart: (low(mixed >> 44) & NEAR) | 1 }
    }
}

// A handful of instructions each, on the way of every decision.
impl<'a> Lines<'a> {
    #[inline(always)]
    pub(crate) const fn new(buckets: &'a Buckets, seed: u64) -> Self {
        Self { buckets, seed }
    }

    #[inline(always)]
    fn stir(self, fingerprint: u64) -> Stir {
        Stir::new(fingerprint, self.seed)
    }

    fn cell(self, place: Place) -> &'a Cell {
        &self.buckets[place / WAYS].0[place % WAYS]
    }

    /// The two buckets of a hash.
    #[inline(always)]
    fn sides(self, hash: u64) -> [&'a Bucket; 2] {
        let stir = self.stir(fingerprint(hash));
        let first = low(hash >> 2) ^ stir.first;
        // It is on its way while the first is searched.
        self.prefetch(first ^ stir.apart);
        [&self.buckets[first], &self.buckets[first ^ stir.apart]]
    }

    fn find(self, hash: u64) -> Option<(Place, Seen<'a>)> {
        let fingerprint = fingerprint(hash);
        let stir = self.stir(fingerprint);
        let first = low(hash >> 2) ^ stir.first;
        [(first, false), (first ^ stir.apart, true)].into_iter().find_map(|(bucket, second)| {
            let places = bucket * WAYS..(bucket + 1) * WAYS;
            places.into_iter().find_map(|place| {
                let cell = self.cell(place);
                let slot = cell.read().unmarked();
                slot.is_of(fingerprint, second).then_some((place, Seen { cell, slot }))
            })
        })
    }

    /// What is seen without a lock of a key under a rule; `None` also where it is in somebody's
    /// hands, and where only [`find`](Self::find) can tell.
    #[inline(always)]
    pub(crate) fn peek<const GUESS: bool>(self, hash: u64, rule: u64) -> Option<Seen<'a>> {
        let [first, second] = self.sides(hash);
        let wanted = Slot::wanted(fingerprint(hash), rule);
        first.peek::<GUESS>(wanted).or_else(|| second.peek::<false>(wanted.placed(true)))
    }

    /// Brings the lines of a key near, for a request that comes soon.
    #[inline(always)]
    pub(crate) fn touch(self, hash: u64) {
        let stir = self.stir(fingerprint(hash));
        let first = low(hash >> 2) ^ stir.first;
        self.prefetch(first);
        self.prefetch(first ^ stir.apart);
    }

    /// Asks for a line without waiting for it: a read would hold up all that comes after.
    #[inline(always)]
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "std has no other way to ask for a line")
    )]
    fn prefetch(self, bucket: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the line lies within `buckets`, and a prefetch changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(&self.buckets[bucket]).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(self.cell(bucket * WAYS).read());
    }
}

/// The part of the table that a range of hashes lives in, and what is kept beside it.
#[derive(Debug)]
pub(crate) struct Segment<T> {
    buckets: *const Buckets,
    guarded: Mutex<Guarded<T>>,
}

// SAFETY: the pointer is only ever read through, and what it points to is `Sync`.
#[expect(unsafe_code, reason = "a raw pointer is not `Send` by itself")]
unsafe impl<T: Send> Send for Segment<T> {}
// SAFETY: as above; what is kept is behind a mutex.
#[expect(unsafe_code, reason = "a raw pointer is not `Sync` by itself")]
unsafe impl<T: Send> Sync for Segment<T> {}

/// What only the holder of the lock sees.
#[derive(Debug)]
struct Guarded<T> {
    seed: usize,
    /// The lowest two bits of every hash here.
    quarter: u64,
    /// Where the next look for what has recovered begins.
    hand: usize,
    kept: T,
}

/// Bytes of memory that a segment takes, without what is kept beside it.
pub(crate) const BYTES: usize = SLOTS * 16 + 256;

impl<T> Segment<T> {
    /// A segment of `buckets`, which must outlive it.
    pub(crate) fn new(buckets: *const Buckets, seed: usize, quarter: u64, kept: T) -> Self {
        let guarded = Guarded { seed: seed % SEEDS, quarter, hand: 0, kept };
        Self { buckets, guarded: Mutex::new(guarded) }
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked { buckets: self.buckets(), guarded: lock(&self.guarded) }
    }

    #[expect(unsafe_code, reason = "segments of a shard lie in blocks of memory")]
    pub(crate) const fn buckets(&self) -> &Buckets {
        // SAFETY: who made the segment saw to it that they outlive it.
        unsafe { &*self.buckets }
    }
}

/// A segment that nobody else puts keys into or takes any out of.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    buckets: &'a Buckets,
    guarded: MutexGuard<'a, Guarded<T>>,
}

impl<'a, T> Locked<'a, T> {
    /// What is kept beside the slots.
    pub(crate) fn kept(&self) -> &T {
        &self.guarded.kept
    }

    /// What is kept beside the slots.
    pub(crate) fn kept_mut(&mut self) -> &mut T {
        &mut self.guarded.kept
    }

    fn lines(&self) -> Lines<'a> {
        Lines::new(self.buckets, self.guarded.seed as u64)
    }

    pub(crate) fn find(&self, hash: u64) -> Option<(Place, Seen<'a>)> {
        self.lines().find(hash)
    }

    /// What a slot holds.
    fn get(&self, place: Place) -> Slot {
        self.lines().cell(place).read().unmarked()
    }

    /// Takes a slot into one's hands, until it is [`put`](Self::put) back or cleared.
    pub(crate) fn claim(&mut self, place: Place) -> Slot {
        let cell = self.lines().cell(place);
        loop {
            let slot = cell.settled();
            if cell.take(slot) {
                return slot;
            }
        }
    }

    /// Writes a slot that is in one's hands.
    pub(crate) fn put(&mut self, place: Place, slot: Slot) {
        let second = self.get(place).in_second();
        self.lines().cell(place).write(slot.placed(second));
    }

    /// Makes a slot one that was never used.
    pub(crate) fn clear(&mut self, place: Place) {
        self.claim(place);
        self.lines().cell(place).write(Slot::default());
    }

    /// Takes out the slot at `place` if `which` names it. It is asked again where a decision comes
    /// between; it must not do anything but answer for a state that decisions replace.
    fn take(&mut self, place: Place, which: &mut impl FnMut(&mut T, Slot) -> bool) -> Option<Slot> {
        let cell = self.lines().cell(place);
        loop {
            let slot = cell.settled();
            // One that is in our hands has no state to ask about.
            if !slot.is_used() || slot.second == 0 || !which(&mut self.guarded.kept, slot) {
                return None;
            }
            if cell.take(slot) {
                cell.write(Slot::default());
                return Some(slot);
            }
        }
    }

    /// Puts in a key that is not there, into a slot never used or into one that `give_up` gives up.
    /// False where there is none.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        slot: Slot,
        give_up: impl FnMut(&mut T, Slot) -> bool,
    ) -> bool {
        let Some((place, second)) = self.vacate(hash, give_up) else { return false };
        self.lines().cell(place).write(slot.placed(second));
        true
    }

    /// Takes a slot for a key that is not there into one's hands, to be [`put`](Self::put) or cleared:
    /// as [`insert`](Self::insert), but nobody sees it yet.
    pub(crate) fn reserve(
        &mut self,
        hash: u64,
        give_up: impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<Place> {
        let (place, second) = self.vacate(hash, give_up)?;
        let nothing = Slot { second: 0, ..Slot::wanted(fingerprint(hash), LARGE) };
        self.lines().cell(place).write(nothing.placed(second));
        Some(place)
    }

    /// A slot to write a key to that is not there, and whether it is in its second bucket.
    fn vacate(
        &mut self,
        hash: u64,
        mut give_up: impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<(Place, bool)> {
        let stir = self.lines().stir(fingerprint(hash));
        let first = low(hash >> 2) ^ stir.first;
        let sides = [(first, false), (first ^ stir.apart, true)];
        for (bucket, second) in sides {
            if let Some(place) = self.room(bucket, &mut give_up) {
                return Some((place, second));
            }
        }
        for (bucket, second) in sides {
            let mut places = bucket * WAYS..(bucket + 1) * WAYS;
            if let Some(place) = places.find(|&place| self.move_away(place, &mut give_up)) {
                return Some((place, second));
            }
        }
        None
    }

    /// A slot of `bucket` to write to.
    fn room(
        &mut self,
        bucket: usize,
        give_up: &mut impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<Place> {
        let mut places = bucket * WAYS..(bucket + 1) * WAYS;
        let unused = places.clone().find(|&place| !self.get(place).is_used());
        unused.or_else(|| places.find(|&place| self.take(place, give_up).is_some()))
    }

    /// Moves a slot to its other bucket, if there is room. One that is in our hands stays.
    fn move_away(&mut self, place: Place, give_up: &mut impl FnMut(&mut T, Slot) -> bool) -> bool {
        if self.get(place).second == 0 {
            return false;
        }
        let other = (place / WAYS) ^ self.lines().stir(self.get(place).fingerprint()).apart;
        let Some(target) = self.room(other, give_up) else { return false };
        let slot = self.claim(place);
        self.lines().cell(target).write(slot.placed(!slot.in_second()));
        true
    }

    /// Puts in a key that is not there, moving as many slots to their other buckets as it takes. False only
    /// where no arrangement of the slots has room for it, as its search finds one if there is one
    /// (an augmenting path, Berge 1957).
    pub(crate) fn insert_by_moves(&mut self, hash: u64, slot: Slot) -> bool {
        let stir = self.lines().stir(fingerprint(hash));
        let first = low(hash >> 2) ^ stir.first;
        // For each bucket that was reached, the slot whose other bucket it is; breadth first.
        let mut reached: [Option<Option<Place>>; BUCKETS] = [None; BUCKETS];
        let mut queue = VecDeque::from([first, first ^ stir.apart]);
        queue.iter().for_each(|&bucket| reached[bucket] = Some(None));
        while let Some(bucket) = queue.pop_front() {
            let places = bucket * WAYS..(bucket + 1) * WAYS;
            if let Some(mut free) = places.clone().find(|&place| !self.get(place).is_used()) {
                while let Some(Some(place)) = reached[free / WAYS] {
                    let moved = self.claim(place);
                    self.lines().cell(free).write(moved.placed(!moved.in_second()));
                    self.lines().cell(place).write(Slot::default());
                    free = place;
                }
                self.lines().cell(free).write(slot.placed(free / WAYS != first));
                return true;
            }
            for place in places {
                let other = bucket ^ self.lines().stir(self.get(place).fingerprint()).apart;
                if reached[other].is_none() {
                    reached[other] = Some(Some(place));
                    queue.push_back(other);
                }
            }
        }
        false
    }

    /// Every slot in use, with the hash that it tells.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, Slot)> {
        (0..SLOTS).filter_map(|place| {
            let slot = self.get(place);
            slot.is_used().then(|| (self.hash_at(place, slot), slot))
        })
    }

    /// The hash of the key whose slot this is.
    fn hash_at(&self, place: Place, slot: Slot) -> u64 {
        let stir = self.lines().stir(slot.fingerprint());
        let apart = if slot.in_second() { stir.apart } else { 0 };
        let bucket = (place / WAYS) ^ apart ^ stir.first;
        slot.fingerprint() << 10 | (bucket as u64) << 2 | self.guarded.quarter
    }

    /// Takes out every slot that `which` names; see [`take`](Self::take).
    pub(crate) fn take_out(
        &mut self,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> Vec<(Place, Slot)> {
        (0..SLOTS)
            .filter_map(|place| self.take(place, &mut which).map(|slot| (place, slot)))
            .collect()
    }

    /// Takes out those that `which` names of the next `count` slots, and tells how many they were.
    pub(crate) fn take_out_some(
        &mut self,
        count: usize,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> usize {
        let start = self.guarded.hand;
        self.guarded.hand = (start + count) % SLOTS;
        (start..start + count)
            .filter(|place| self.take(place % SLOTS, &mut which).is_some())
            .count()
    }

    /// Puts slots of a segment with the same seed where they were there.
    pub(crate) fn adopt(&mut self, slots: impl Iterator<Item = (Place, Slot)>) {
        slots.for_each(|(place, slot)| self.lines().cell(place).write(slot));
    }

    pub(crate) const fn buckets(&self) -> &'a Buckets {
        self.buckets
    }

    /// The seed by which buckets are chosen.
    pub(crate) fn seed(&self) -> usize {
        self.guarded.seed
    }

    /// The lowest two bits of every hash here.
    pub(crate) fn quarter(&self) -> u64 {
        self.guarded.quarter
    }

    /// Chooses buckets anew by `seed`. False where a slot would find no room; all is then as before.
    pub(crate) fn reseed(&mut self, seed: usize) -> bool {
        let before = self.seed();
        let places = self.take_out(|_, _| true);
        let hashes: Vec<_> =
            places.iter().map(|&(place, slot)| (self.hash_at(place, slot), slot)).collect();
        self.guarded.seed = seed % SEEDS;
        if hashes.iter().all(|(hash, slot)| self.insert(*hash, *slot, |_, _| false)) {
            return true;
        }
        self.take_out(|_, _| true);
        self.guarded.seed = before;
        self.adopt(places.into_iter());
        false
    }
}

/// Every order in which threads can meet, up to the bound that `loom` sets:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p sluicegate-memory --lib model`.
#[cfg(all(test, loom))]
mod model;
