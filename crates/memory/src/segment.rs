//! A segment: 4096 slots, decided on without a lock where nothing changes.
//!
//! Each key has two buckets of four slots, one cache line each; where both are full, a slot moves
//! to its other bucket (cuckoo hashing, Pagh and Rodler 2004; which bucket is the other follows
//! from the fingerprint, as in Fan et al. 2014). A look-up so reads two lines at the most.
//!
//! Writers hold the segment's mutex and make its version odd while they write. Readers take no
//! lock: they read the version, the slots, and the version again (a sequence lock; every shared
//! word is an atomic, so a torn read is noticed and never undefined).

use crate::{
    slot::{Slot, fingerprint},
    sync::{AtomicU64, Mutex, MutexGuard, Ordering, fence, lock},
};

/// Bits of a hash that say a bucket.
pub(crate) const BUCKET_BITS: u32 = if cfg!(loom) { 1 } else { 10 };
const BUCKETS: usize = 1 << BUCKET_BITS;
const WAYS: usize = 4;
/// Both buckets of a key lie within one page of memory, which is looked up once then.
const NEAR: usize = 63;
/// Slots of a segment.
pub(crate) const SLOTS: usize = BUCKETS * WAYS;

/// One cache line.
#[repr(align(64))]
#[derive(Debug)]
struct Bucket([[AtomicU64; 2]; WAYS]);

impl Bucket {
    fn new() -> Self {
        Self(std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]))
    }
}

/// The part of the table that a range of hashes lives in, and what is kept beside it.
#[derive(Debug)]
pub(crate) struct Segment<T> {
    version: AtomicU64,
    /// Stirred into the choice of buckets; changed when keys gather in few of them.
    seed: AtomicU64,
    /// Where the next look for what has recovered begins.
    hand: AtomicU64,
    buckets: Box<[Bucket]>,
    guarded: Mutex<Guarded<T>>,
}

/// What only the holder of the lock sees.
#[derive(Debug)]
struct Guarded<T> {
    /// The version that the segment has: who writes need not read it from where others do.
    version: u64,
    kept: T,
}

/// Where a slot is: its number in the segment.
pub(crate) type Place = usize;

/// The two buckets of a fingerprint: the first, which its ten bits of the hash lie in, and the other.
#[derive(Clone, Copy)]
struct Stir {
    first: usize,
    apart: usize,
}

fn low(bits: u64) -> usize {
    usize::try_from(bits & (BUCKETS as u64 - 1)).unwrap_or_default()
}

impl Stir {
    #[inline]
    fn new(fingerprint: u64, seed: u64) -> Self {
        let mixed = (fingerprint ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self { first: low(mixed >> 54), apart: (low(mixed >> 44) & NEAR) | 1 }
    }
}

/// Bytes of memory that a segment takes, without what is kept beside it.
pub(crate) const BYTES: usize = SLOTS * 16 + 256;

impl<T> Segment<T> {
    pub(crate) fn new(seed: u64, kept: T) -> Self {
        let buckets = (0..BUCKETS).map(|_| Bucket::new()).collect();
        let (version, hand) = (AtomicU64::new(0), AtomicU64::new(0));
        Self {
            version,
            seed: AtomicU64::new(seed),
            hand,
            buckets,
            guarded: Mutex::new(Guarded { version: 0, kept }),
        }
    }

    #[inline]
    fn read(&self, bucket: usize, way: usize) -> Slot {
        let [first, second] = &self.buckets[bucket].0[way];
        Slot { first: first.load(Ordering::Relaxed), second: second.load(Ordering::Relaxed) }
    }

    #[inline]
    fn stir(&self, fingerprint: u64) -> Stir {
        Stir::new(fingerprint, self.seed.load(Ordering::Relaxed))
    }

    // A handful of instructions each, on the way of every decision.
    #[inline(always)]
    fn find(&self, hash: u64) -> Option<(Place, Slot)> {
        let stir = self.stir(fingerprint(hash));
        let first = low(hash) ^ stir.first;
        // Half of the keys are in their second bucket: it is on its way while the first is searched.
        self.prefetch(first ^ stir.apart);
        let wanted = Slot::wanted(fingerprint(hash));
        self.find_in(first, wanted)
            .or_else(|| self.find_in(first ^ stir.apart, wanted.placed(true)))
    }

    #[inline(always)]
    fn find_in(&self, bucket: usize, wanted: Slot) -> Option<(Place, Slot)> {
        (0..WAYS).find_map(|way| {
            let slot = self.read(bucket, way);
            slot.matches(wanted).then_some((bucket * WAYS + way, slot))
        })
    }

    /// Brings the lines of a key near, for a request that comes soon.
    #[inline]
    pub(crate) fn touch(&self, hash: u64) {
        let stir = self.stir(fingerprint(hash));
        let first = low(hash) ^ stir.first;
        self.prefetch(first);
        self.prefetch(first ^ stir.apart);
    }

    /// Asks for a line without waiting for it: a read would hold up all that comes after.
    #[inline]
    #[cfg_attr(
        target_arch = "x86_64",
        expect(unsafe_code, reason = "std has no other way to ask for a line")
    )]
    fn prefetch(&self, bucket: usize) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the line lies within `buckets`, and a prefetch changes nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(&self.buckets[bucket]).cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        std::hint::black_box(self.read(bucket, 0));
    }

    /// What is kept of a key, and where, read without a lock; `None` also where it could not be read
    /// in peace.
    #[inline(always)]
    pub(crate) fn peek(&self, hash: u64) -> Option<(Place, Slot)> {
        let version = self.version.load(Ordering::Acquire);
        let found = self.find(hash);
        fence(Ordering::Acquire);
        let in_peace = version & 1 == 0 && self.version.load(Ordering::Relaxed) == version;
        found.filter(|_| in_peace)
    }

    pub(crate) fn lock(&self) -> Locked<'_, T> {
        Locked { segment: self, guarded: lock(&self.guarded) }
    }
}

/// A segment that nobody else writes.
#[derive(Debug)]
pub(crate) struct Locked<'a, T> {
    segment: &'a Segment<T>,
    guarded: MutexGuard<'a, Guarded<T>>,
}

impl<T> Locked<'_, T> {
    /// What is kept beside the slots.
    pub(crate) fn kept(&self) -> &T {
        &self.guarded.kept
    }

    /// What is kept beside the slots.
    pub(crate) fn kept_mut(&mut self) -> &mut T {
        &mut self.guarded.kept
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64) -> Option<(Place, Slot)> {
        self.segment.find(hash)
    }

    /// What a slot holds.
    #[inline]
    pub(crate) fn get(&self, place: Place) -> Slot {
        self.segment.read(place / WAYS, place % WAYS)
    }

    fn put(&mut self, place: Place, slot: Slot) {
        let [first, second] = &self.segment.buckets[place / WAYS].0[place % WAYS];
        first.store(slot.first, Ordering::Relaxed);
        second.store(slot.second, Ordering::Relaxed);
    }

    /// Lets `change` write; readers meanwhile come to nothing and take the lock.
    #[inline]
    fn write<R>(&mut self, change: impl FnOnce(&mut Self) -> R) -> R {
        let version = self.guarded.version.wrapping_add(2);
        self.guarded.version = version;
        self.segment.version.store(version.wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        let result = change(self);
        self.segment.version.store(version, Ordering::Release);
        result
    }

    /// Writes what a slot holds from now on.
    #[inline]
    pub(crate) fn set(&mut self, place: Place, slot: Slot) {
        let second = self.get(place).in_second();
        self.write(|it| it.put(place, slot.placed(second)));
    }

    /// Makes a slot one that was never used.
    pub(crate) fn clear(&mut self, place: Place) {
        self.write(|it| it.put(place, Slot::default()));
    }

    /// Puts in a key that is not there, into a slot never used or into one that `give_up` gives up.
    /// False where there is none.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        slot: Slot,
        mut give_up: impl FnMut(&mut T, Slot) -> bool,
    ) -> bool {
        let stir = self.segment.stir(fingerprint(hash));
        let first = low(hash) ^ stir.first;
        let mut sides = [(first, false), (first ^ stir.apart, true)];
        // The emptier of both keeps the table even.
        let used =
            |bucket| (0..WAYS).filter(|&way| self.segment.read(bucket, way).is_used()).count();
        if used(sides[0].0) > used(sides[1].0) {
            sides.reverse();
        }
        for (bucket, second) in sides {
            if let Some(place) = self.room(bucket, &mut give_up) {
                self.write(|it| it.put(place, slot.placed(second)));
                return true;
            }
        }
        for (bucket, second) in sides {
            for place in bucket * WAYS..(bucket + 1) * WAYS {
                if self.move_away(place, &mut give_up) {
                    self.write(|it| it.put(place, slot.placed(second)));
                    return true;
                }
            }
        }
        false
    }

    /// A slot of `bucket` to write to.
    fn room(
        &mut self,
        bucket: usize,
        give_up: &mut impl FnMut(&mut T, Slot) -> bool,
    ) -> Option<Place> {
        let places = bucket * WAYS..(bucket + 1) * WAYS;
        let unused = places.clone().find(|&place| !self.get(place).is_used());
        unused.or_else(|| {
            places.into_iter().find(|&place| {
                let slot = self.get(place);
                give_up(&mut self.guarded.kept, slot)
            })
        })
    }

    /// Moves a slot to its other bucket, if there is room.
    fn move_away(&mut self, place: Place, give_up: &mut impl FnMut(&mut T, Slot) -> bool) -> bool {
        let slot = self.get(place);
        let other = (place / WAYS) ^ self.segment.stir(slot.fingerprint()).apart;
        let Some(target) = self.room(other, give_up) else { return false };
        self.write(|it| {
            it.put(target, slot.placed(!slot.in_second()));
            it.put(place, Slot::default());
        });
        true
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
        let stir = self.segment.stir(slot.fingerprint());
        let apart = if slot.in_second() { stir.apart } else { 0 };
        slot.fingerprint() << 10 | ((place / WAYS) ^ apart ^ stir.first) as u64
    }

    /// Takes out every slot that `which` names.
    pub(crate) fn take_out(
        &mut self,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> Vec<(Place, Slot)> {
        self.write(|it| {
            let mut out = Vec::new();
            for place in 0..SLOTS {
                let slot = it.get(place);
                if slot.is_used() && which(&mut it.guarded.kept, slot) {
                    it.put(place, Slot::default());
                    out.push((place, slot));
                }
            }
            out
        })
    }

    /// Takes out those that `which` names of the next `count` slots, and tells how many they were.
    pub(crate) fn take_out_some(
        &mut self,
        count: usize,
        mut which: impl FnMut(&mut T, Slot) -> bool,
    ) -> usize {
        let start = usize::try_from(self.segment.hand.load(Ordering::Relaxed)).unwrap_or_default();
        self.segment.hand.store((start + count) as u64, Ordering::Relaxed);
        self.write(|it| {
            let places = (start..start + count).map(|place| place % SLOTS);
            let out = places.filter(|&place| {
                let slot = it.get(place);
                let goes = slot.is_used() && which(&mut it.guarded.kept, slot);
                if goes {
                    it.put(place, Slot::default());
                }
                goes
            });
            out.count()
        })
    }

    /// Puts slots of a segment with the same seed where they were there.
    pub(crate) fn adopt(&mut self, slots: impl Iterator<Item = (Place, Slot)>) {
        self.write(|it| slots.for_each(|(place, slot)| it.put(place, slot)));
    }

    /// The seed by which buckets are chosen.
    pub(crate) fn seed(&self) -> u64 {
        self.segment.seed.load(Ordering::Relaxed)
    }

    /// Chooses buckets anew by `seed`. False where a slot would find no room; all is then as before.
    pub(crate) fn reseed(&mut self, seed: u64) -> bool {
        let before = self.seed();
        let hashes: Vec<_> = self.slots().collect();
        let places = self.take_out(|_, _| true);
        self.segment.seed.store(seed, Ordering::Relaxed);
        if hashes.iter().all(|(hash, slot)| self.insert(*hash, *slot, |_, _| false)) {
            return true;
        }
        self.take_out(|_, _| true);
        self.segment.seed.store(before, Ordering::Relaxed);
        self.adopt(places.into_iter());
        false
    }
}

/// Every order in which threads can meet, up to the bound that `loom` sets:
/// `RUSTFLAGS="--cfg loom" cargo test --release -p sluicegate-memory --lib model`.
#[cfg(all(test, loom))]
mod model {
    use loom::{sync::Arc, thread};

    use super::*;
    use crate::slot::Tat;

    const HASH: u64 = 0x1234_5678_9abc_def1;

    fn slot(hash: u64, number: u64) -> Slot {
        Slot::simple(hash, number, Tat::at(number))
    }

    fn seen(segment: &Segment<()>) -> Option<Slot> {
        segment.peek(HASH).map(|(_, slot)| slot)
    }

    fn with_key() -> Arc<Segment<()>> {
        let segment = Arc::new(Segment::new(7, ()));
        assert!(segment.lock().insert(HASH, slot(HASH, 1), |(), _| false));
        segment
    }

    /// What a reader may see of the key: all of one state.
    fn is_whole(seen: Slot) -> bool {
        seen.tat() == Tat::at(seen.rule())
    }

    #[test]
    fn a_reader_sees_a_slot_whole_or_not_at_all() {
        loom::model(|| {
            let segment = with_key();
            let writer = thread::spawn({
                let segment = Arc::clone(&segment);
                move || {
                    let mut locked = segment.lock();
                    let (place, _) = locked.find(HASH).expect("the key is there");
                    locked.set(place, slot(HASH, 2));
                }
            });
            assert!(seen(&segment).is_none_or(is_whole));
            writer.join().expect("no panic");
            assert_eq!(seen(&segment).map(Slot::rule), Some(2));
        });
    }

    #[test]
    fn no_write_is_lost() {
        loom::model(|| {
            let segment = with_key();
            let add = |segment: &Segment<()>| {
                let mut locked = segment.lock();
                let (place, seen) = locked.find(HASH).expect("the key is there");
                locked.set(place, slot(HASH, seen.rule() + 1));
            };
            let other = thread::spawn({
                let segment = Arc::clone(&segment);
                move || add(&segment)
            });
            add(&segment);
            assert!(seen(&segment).is_none_or(is_whole));
            other.join().expect("no panic");
            assert_eq!(seen(&segment).map(Slot::rule), Some(3));
        });
    }

    #[test]
    fn a_slot_that_another_key_takes_over_is_never_taken_for_the_first() {
        const OTHER: u64 = 0xfeed_5678_9abc_def1;
        loom::model(|| {
            let segment = with_key();
            let writer = thread::spawn({
                let segment = Arc::clone(&segment);
                move || {
                    let mut locked = segment.lock();
                    let (place, _) = locked.find(HASH).expect("the key is there");
                    locked.clear(place);
                    assert!(locked.insert(OTHER, slot(OTHER, 2), |(), _| false));
                }
            });
            assert!(seen(&segment).is_none_or(|it| it == slot(HASH, 1).placed(it.in_second())));
            writer.join().expect("no panic");
            assert_eq!(seen(&segment), None);
        });
    }
}
