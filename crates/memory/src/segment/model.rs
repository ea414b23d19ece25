use loom::{sync::Arc, thread};

use super::*;
use crate::slot::Tat;

const HASH: u64 = 0x1234_5678_9abc_def0;
const SEED: usize = 7;

/// Another key, which is put where the first was.
fn second_key() -> u64 {
    let bucket = |hash| low(hash >> 2) ^ Probe::new(fingerprint(hash), SEED as u64).first;
    let others = (1..).map(|number: u64| HASH ^ number << 40);
    others.into_iter().find(|&other| bucket(other) == bucket(HASH)).expect("half of all keys are")
}

/// The end of the one window on the clock that all keys use units of, and the bits rounded off, as of an hour.
const END: u64 = 7 << 32;
const ROUNDED: u32 = 30;

/// The state of a key: how many units it has used in that window. Of keys that have used as many, second words are
/// equal but for the fingerprint.
fn slot(hash: u64, policy: u64, used: u64) -> Slot {
    Slot::simple(hash, policy, state(used))
}

fn state(used: u64) -> Tat {
    Tat::of_window(END, used, ROUNDED).expect("it fits")
}

fn taken(slot: Slot) -> u64 {
    let (end, used) = slot.tat().window(ROUNDED);
    assert_eq!(end, Tat::until(END, ROUNDED), "a state that somebody wrote");
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
        let segment = Segment::new(&raw const *buckets, SEED, HASH & 3, ());
        Arc::new(Self { segment, _buckets: buckets })
    }

    /// Where [`HASH`] is put first.
    fn first_index(&self) -> SlotIndex {
        (low(HASH >> 2) ^ self.bucket_view().probe(fingerprint(HASH)).first) * WAYS
    }

    /// Takes a unit of what was seen, unless it has changed.
    fn try_take(seen: &SlotRef<'_>) -> bool {
        !seen.settle() && seen.replace(seen.slot().at(state(taken(seen.slot()) + 1)))
    }

    fn bucket_view(&self) -> BucketView<'_> {
        BucketView::new(self.segment.buckets(), SEED as u64)
    }

    /// Takes a unit as a decision does: without the lock where the key is found, else with it.
    fn take(&self, hash: u64, policy: u64) {
        while let Some(seen) = self.bucket_view().peek::<false>(hash, policy) {
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

    /// What a denial would be answered from.
    fn seen(&self, hash: u64, policy: u64) -> Option<Slot> {
        self.bucket_view()
            .peek::<true>(hash, policy)
            .filter(SlotRef::is_whole)
            .map(|seen| seen.slot())
    }

    fn end(&self, hash: u64) -> Option<u64> {
        self.segment.lock().find(hash).map(|(_, seen)| taken(seen.slot()))
    }
}

fn beside(model: &Arc<Model>, run: impl FnOnce(&Model) + 'static) -> thread::JoinHandle<()> {
    let model = Arc::clone(model);
    thread::spawn(move || run(&model))
}

#[test]
fn no_unit_is_lost_between_decisions() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| model.take(HASH, 1));
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(3));
    });
}

#[test]
fn no_unit_is_lost_between_a_decision_and_a_change_of_rule() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| model.take(HASH, 2));
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(3));
    });
}

#[test]
fn no_unit_is_lost_while_a_slot_moves() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let (index, _) = locked.find(HASH).expect("the key is there");
            assert!(locked.relocate(index, &mut |(), _| false));
            locked.put(index, Slot::default());
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(2));
    });
}

#[test]
fn no_unit_is_lost_while_a_segment_splits() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let moving = locked.drain_where(|(), _| true);
            locked.adopt(moving.into_iter());
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!(model.end(HASH), Some(2));
    });
}

#[test]
fn peek_during_update_reads_one_moment() {
    loom::model(|| {
        let model = Model::new();
        let seen = |model: &Model| {
            let seen = model.seen(second_key(), 2);
            assert!(seen.is_none_or(|it| taken(it) == 5), "{seen:?}");
            let seen = model.seen(HASH, 1);
            assert!(seen.is_none_or(|it| taken(it) == 1), "{seen:?}");
        };
        let reader = beside(&model, seen);
        // The slot goes to another key, whose state is a later one.
        let mut locked = model.segment.lock();
        let (index, _) = locked.find(HASH).expect("the key is there");
        locked.clear(index);
        assert!(locked.insert(second_key(), slot(second_key(), 2, 5), |(), _| false));
        drop(locked);
        reader.join().expect("no panic");
        assert_eq!((model.end(HASH), model.end(second_key())), (None, Some(5)));
    });
}

#[test]
fn replace_slot_of_new_key_fails() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            // Recovered slots are reclaimed: a key that took three more has not recovered.
            let (index, _) = locked.find(HASH).expect("the key is there");
            if locked.take(index, &mut |(), slot| taken(slot) == 1).is_some() {
                assert!(locked.insert(second_key(), slot(second_key(), 1, 5), |(), _| false));
                assert_eq!(locked.find(second_key()).map(|(it, _)| it), Some(index));
            }
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        // Either the unit was taken first and the slot not reclaimed, or the take found a new slot.
        let end = (model.end(HASH), model.end(second_key()));
        assert!([(Some(2), None), (Some(1), Some(5))].contains(&end), "{end:?}");
    });
}

/// Another key with the same second word as [`HASH`], put where that was: as when both have used one unit of
/// the same window.
fn put_second_key(locked: &mut Locked<'_, ()>, index: SlotIndex) {
    assert!(locked.insert(second_key(), slot(second_key(), 1, 1), |(), _| false));
    let (found, seen) = locked.find(second_key()).expect("it was put in");
    assert_eq!((found, seen.slot().second), (index, slot(HASH, 1, 1).second));
}

#[test]
fn replace_moved_slot_with_equal_state_fails() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let (index, _) = locked.find(HASH).expect("the key is there");
            assert!(locked.relocate(index, &mut |(), _| false));
            locked.put(index, Slot::default());
            put_second_key(&mut locked, index);
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        assert_eq!((model.end(HASH), model.end(second_key())), (Some(2), Some(1)));
    });
}

#[test]
fn replace_reseeded_slot_with_equal_state_fails() {
    loom::model(|| {
        let model = Model::new();
        let other = beside(&model, |model| {
            let mut locked = model.segment.lock();
            let (index, _) = locked.find(HASH).expect("the key is there");
            // Chosen so that each key has its first bucket elsewhere.
            assert!(locked.reseed(other_seed()));
            assert_ne!(locked.find(HASH).map(|(index, _)| index), Some(index));
            let third = key_at(index / WAYS, other_seed());
            assert!(locked.insert(third, slot(third, 1, 1), |(), _| false));
            assert_eq!(locked.find(third).map(|(index, _)| index), Some(index));
        });
        model.take(HASH, 1);
        other.join().expect("no panic");
        let third = key_at(model.first_index() / WAYS, other_seed());
        assert_eq!((model.end(HASH), model.end(third)), (Some(2), Some(1)));
    });
}

/// A seed by which [`HASH`] has its other bucket first.
fn other_seed() -> usize {
    let bucket = |seed| low(HASH >> 2) ^ Probe::new(fingerprint(HASH), seed as u64).first;
    (SEED + 1..).find(|&seed| bucket(seed) != bucket(SEED)).expect("half of all seeds are")
}

/// A key with that first bucket under a seed, and the low bits of the fingerprint of [`HASH`].
fn key_at(bucket: usize, seed: usize) -> u64 {
    let first = |hash| low(hash >> 2) ^ Probe::new(fingerprint(hash), seed as u64).first;
    let others = (1..).map(|number: u64| HASH ^ number << 40);
    others.into_iter().find(|&other| first(other) == bucket).expect("half of all keys are")
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
        // A reader that saw the directory before the split looks into the old segment first.
        while let Some(seen) = old.bucket_view().peek::<false>(HASH, 1) {
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
