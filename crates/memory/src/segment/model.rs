use loom::{sync::Arc, thread};

use super::*;
use crate::slot::Tat;

const HASH: u64 = 0x1234_5678_9abc_def0;
const SEED: usize = 7;

/// The first bucket of a key under a seed.
fn first_bucket(hash: u64, seed: usize) -> usize {
    low(hash >> 2) ^ Probe::new(fingerprint(hash), seed as u64).first
}

/// Another key with this first bucket under a seed, and the low bits of the fingerprint of [`HASH`].
fn key_at(bucket: usize, seed: usize) -> u64 {
    let others = (1..).map(|number: u64| HASH ^ number << 40);
    others.into_iter().find(|&it| first_bucket(it, seed) == bucket).expect("half of all keys are")
}

/// Another key with the first bucket of [`HASH`].
fn second_key() -> u64 {
    key_at(first_bucket(HASH, SEED), SEED)
}

/// A seed by which [`HASH`] has its other bucket first.
fn other_seed() -> usize {
    let is_other = |&seed: &usize| first_bucket(HASH, seed) != first_bucket(HASH, SEED);
    (SEED + 1..).find(is_other).expect("half of all seeds are")
}

/// The end of the one window on the clock that all keys use units of, and the bits rounded off, as of an hour.
const END: u64 = 7 << 32;
const ROUNDED: u32 = 30;

/// The state of a key: the units it has used in that window. The second words of keys that have used the same number
/// are equal but for the fingerprint.
fn slot(hash: u64, policy: u64, used: u64) -> Slot {
    Slot::simple(hash, policy, state(used))
}

fn state(used: u64) -> Tat {
    Tat::of_window(END, used, ROUNDED).expect("it fits")
}

fn taken(slot: Slot) -> u64 {
    let (end, used) = slot.tat().window(ROUNDED);
    assert_eq!(end, Tat::until(END, ROUNDED), "a state that a thread wrote");
    used
}

/// A segment with its buckets, which `loom` wants to see dropped.
struct Model {
    segment: Segment<()>,
    _buckets: Box<Buckets>,
}

impl Model {
    /// A key that has taken one unit under policy 1.
    fn new() -> Arc<Self> {
        let model = Self::empty();
        assert!(model.segment.lock().insert(HASH, slot(HASH, 1, 1), |(), _| false));
        model
    }

    fn empty() -> Arc<Self> {
        let buckets: Box<Buckets> = Box::new(std::array::from_fn(|_| Bucket::default()));
        let segment = Segment::new(&raw const *buckets, SEED, HASH & 3, 0, ());
        Arc::new(Self { segment, _buckets: buckets })
    }

    /// Takes a unit from the state that was read, unless it has changed.
    fn try_take(seen: &SlotRef<'_>) -> bool {
        !seen.wait_unmarked() && seen.replace(seen.slot().with_tat(state(taken(seen.slot()) + 1)))
    }

    fn key_buckets(&self, hash: u64) -> KeyBuckets<'_> {
        BucketView::new(self.segment.buckets(), SEED as u64).key_buckets(hash)
    }

    /// Takes a unit as a decision does: without the lock where the key is found, else with it.
    fn take(&self, hash: u64, policy: u64) {
        let buckets = self.key_buckets(hash);
        while let Some(seen) = buckets.peek::<false>(hash, policy) {
            if Self::try_take(&seen) {
                return;
            }
        }
        let mut locked = self.segment.lock();
        match locked.find(hash) {
            Some((index, _)) => {
                let seen = locked.claim(index);
                locked.put(index, slot(hash, policy, taken(seen) + 1));
            }
            None => assert!(locked.insert(hash, slot(hash, policy, 1), |(), _| false)),
        }
    }

    /// The state from which a denial would be answered.
    fn seen(&self, hash: u64, policy: u64) -> Option<Slot> {
        self.key_buckets(hash)
            .peek::<true>(hash, policy)
            .filter(SlotRef::is_whole)
            .map(|seen| seen.slot())
    }

    fn end(&self, hash: u64) -> Option<u64> {
        self.segment.lock().find(hash).map(|(_, seen)| taken(seen.slot()))
    }
}

/// Runs `other` in a thread of its own while `own` runs, and then `check`.
fn race(
    other: impl Fn(&Model) + Copy + Send + Sync + 'static,
    own: impl Fn(&Model) + Send + Sync + 'static,
    check: impl Fn(&Model) + Send + Sync + 'static,
) {
    loom::model(move || {
        let model = Model::new();
        let shared = Arc::clone(&model);
        let thread = thread::spawn(move || other(&shared));
        own(&model);
        thread.join().expect("no panic");
        check(&model);
    });
}

/// Takes a unit of [`HASH`] while `change` runs under the lock, with the index of the key.
fn take_during(change: fn(&mut LockedSegment<'_, ()>, SlotIndex), check: fn(&Model)) {
    let other = move |model: &Model| {
        let mut locked = model.segment.lock();
        let (index, _) = locked.find(HASH).expect("the key is there");
        change(&mut locked, index);
    };
    race(other, |model| model.take(HASH, 1), check);
}

/// Inserts another key with the same second word as [`HASH`] at its index: as when both have used one unit of the same
/// window.
fn put_second_key(locked: &mut LockedSegment<'_, ()>, index: SlotIndex) {
    assert!(locked.insert(second_key(), slot(second_key(), 1, 1), |(), _| false));
    let (found, seen) = locked.find(second_key()).expect("it was put in");
    assert_eq!((found, seen.slot().second), (index, slot(HASH, 1, 1).second));
}

/// Moves the slot of [`HASH`] to its other bucket.
fn move_slot(locked: &mut LockedSegment<'_, ()>, index: SlotIndex) {
    assert!(locked.relocate(index, &mut |(), _| false));
    locked.put(index, Slot::default());
}

#[test]
fn take_during_take_loses_no_unit() {
    let take = |model: &Model| model.take(HASH, 1);
    race(take, take, |model| assert_eq!(model.end(HASH), Some(3)));
}

#[test]
fn take_during_change_of_policy_loses_no_unit() {
    let check = |model: &Model| assert_eq!(model.end(HASH), Some(3));
    race(|model| model.take(HASH, 2), |model| model.take(HASH, 1), check);
}

#[test]
fn take_during_move_loses_no_unit() {
    take_during(move_slot, |model| assert_eq!(model.end(HASH), Some(2)));
}

#[test]
fn take_during_split_loses_no_unit() {
    let split = |locked: &mut LockedSegment<'_, ()>, _| {
        let moving = locked.drain_where(|(), _| true);
        locked.adopt(moving.into_iter());
    };
    take_during(split, |model| assert_eq!(model.end(HASH), Some(2)));
}

#[test]
fn peek_during_update_reads_one_moment() {
    let peek = |model: &Model| {
        for (hash, policy, expected) in [(second_key(), 2, 5), (HASH, 1, 1)] {
            let seen = model.seen(hash, policy);
            assert!(seen.is_none_or(|it| taken(it) == expected), "{seen:?}");
        }
    };
    // The slot goes to another key, whose state is a later one.
    let replace = |model: &Model| {
        let mut locked = model.segment.lock();
        let (index, _) = locked.find(HASH).expect("the key is there");
        locked.clear(index);
        assert!(locked.insert(second_key(), slot(second_key(), 2, 5), |(), _| false));
    };
    race(peek, replace, |model| {
        assert_eq!((model.end(HASH), model.end(second_key())), (None, Some(5)));
    });
}

#[test]
fn replace_slot_of_new_key_fails() {
    let reclaim = |locked: &mut LockedSegment<'_, ()>, index| {
        // Recovered slots are reclaimed: a key that took one more unit has not recovered.
        if locked.take(index, &mut |(), slot| taken(slot) == 1).is_some() {
            assert!(locked.insert(second_key(), slot(second_key(), 1, 5), |(), _| false));
            assert_eq!(locked.find(second_key()).map(|(it, _)| it), Some(index));
        }
    };
    take_during(reclaim, |model| {
        // Either the unit was taken first and the slot not reclaimed, or the take found a new slot.
        let end = (model.end(HASH), model.end(second_key()));
        assert!([(Some(2), None), (Some(1), Some(5))].contains(&end), "{end:?}");
    });
}

#[test]
fn replace_moved_slot_with_equal_state_fails() {
    let replace = |locked: &mut LockedSegment<'_, ()>, index| {
        move_slot(locked, index);
        put_second_key(locked, index);
    };
    take_during(replace, |model| {
        assert_eq!((model.end(HASH), model.end(second_key())), (Some(2), Some(1)));
    });
}

#[test]
fn replace_reseeded_slot_with_equal_state_fails() {
    let reseed = |locked: &mut LockedSegment<'_, ()>, index: SlotIndex| {
        // Chosen so that each key has its first bucket elsewhere.
        assert!(locked.reseed(other_seed()));
        assert_ne!(locked.find(HASH).map(|(index, _)| index), Some(index));
        let third = key_at(index / WAYS, other_seed());
        assert!(locked.insert(third, slot(third, 1, 1), |(), _| false));
        assert_eq!(locked.find(third).map(|(index, _)| index), Some(index));
    };
    take_during(reseed, |model| {
        let third = key_at(first_bucket(HASH, SEED), other_seed());
        assert_eq!((model.end(HASH), model.end(third)), (Some(2), Some(1)));
    });
}

/// Two segments: the keys of the first are moved to the second by a split, and another takes the index there.
#[test]
fn replace_split_slot_with_equal_state_fails() {
    loom::model(|| {
        let (old, new) = (Model::new(), Model::empty());
        let other = {
            let (old, new) = (Arc::clone(&old), Arc::clone(&new));
            thread::spawn(move || {
                let mut locked = old.segment.lock();
                let (index, _) = locked.find(HASH).expect("the key is there");
                let moving = locked.drain_where(|(), _| true);
                let mut adopting = new.segment.lock();
                adopting.adopt(moving.into_iter());
                drop(adopting);
                put_second_key(&mut locked, index);
            })
        };
        // A reader with the directory of before the split reads the old segment first.
        let buckets = old.key_buckets(HASH);
        while let Some(seen) = buckets.peek::<false>(HASH, 1) {
            if Model::try_take(&seen) {
                break;
            }
        }
        other.join().expect("no panic");
        let end = (old.end(HASH), new.end(HASH), old.end(second_key()));
        // It took one before the split, or found the key gone.
        assert!([2, 1].map(|taken| (None, Some(taken), Some(1))).contains(&end), "{end:?}");
    });
}
